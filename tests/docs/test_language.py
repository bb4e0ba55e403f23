"""Code, help, errors and documentation use plain English: words that made earlier texts hard to read are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = re.compile(
    r"\b(?:(?i:whoever|whosoever|anew|mends?|mended|mending|by and by|as good as|such as are|so many per|all the same"
    r"|nobody's|somebody's|everybody's|hither|thereof|wherein|what holds|what hinders|what waits|what stands"
    r"|in its stead|mere|lest|albeit)|none is|is none|are none)\b"  # case matters: `None is` is plain
)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, or the strings and comments of a Python file, with their line numbers."""
    source = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), start=1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for number, line in enumerate(source.splitlines(), start=1):
        if (comment := re.search(r"(?:^|\s)#\s(.*)", line)) is not None:
            yield number, comment[1]


def refused_in(path: Path) -> list[str]:
    """Return each use of a refused word in a file, with its line."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r}"
        for number, text in texts_of(path)
        for found in REFUSED.finditer(text)
    ]


@pytest.mark.parametrize("folder", ["packages", "benchmarks", "examples", "docs"])
def test_code_and_documentation_are_plain(folder: str) -> None:
    files = [path for kind in ("*.py", "*.md") for path in sorted((ROOT / folder).rglob(kind))]
    assert files
    assert [place for path in files for place in refused_in(path)] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_pages_of_the_root_are_plain(name: str) -> None:
    assert refused_in(ROOT / name) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Refuses whoever is none. Made anew.", ["whoever", "is none", "anew"]),
        ("Return the row; None is returned if the value is None.", []),
    ],
)
def test_word_list_refuses_words_regardless_of_case_except_none(text: str, words: list[str]) -> None:
    assert [found[0] for found in REFUSED.finditer(text)] == words
