"""Every example in the documentation runs, in order, in an empty directory, and prints what the page shows.

The `python` fences of a page share a namespace, and a `text` fence after one is its output. In `console` fences the
lines that start with `$ ` are typed, and the others are the output. In an output, `...` stands for any text. An
example that cannot run here says why on the line before its fence: <!-- not run: the reason -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from threefold.endpoint import DEFAULT_URL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("packages/*/README.md"))]
SHELLS = {"bash", "console", "sh", "shell"}

FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>\S[^\n]*?) -->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$"
    r"(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
VARIES = re.compile(r"\b[0-9a-f]{32}\b|\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d[\d:.]*Z?)?\b|\bhttp://127\.0\.0\.1:\d+")
"""Ids, times and ports, which may differ from those on the page."""


class Example(NamedTuple):
    """A fence: its language, its code, the line of the page where the code starts, and its expected output."""

    language: str
    code: str
    line: int
    output: str = ""


def examples(page: str) -> list[Example]:
    """Return the fences of a page that run."""
    found = [
        Example(fence["language"], fence["code"], page.count("\n", 0, fence.start("code")) + 1, fence["output"] or "")
        for fence in FENCE.finditer(page)
        if not fence["reason"]
    ]
    return [example for example in found if example.language in SHELLS | {"python"}]


def typed_and_shown(console: str) -> tuple[str, str]:
    """Return the typed lines of a console, with continuation lines joined, and the lines of output."""
    lines = console.replace("\\\n", "").splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    return "\n".join(typed), "\n".join(line for line in lines if not line.startswith("$ "))


def check_output(shown: str, said: str, place: str) -> None:
    """Raise an error if the output differs from what the page shows."""
    shown, said = (VARIES.sub("(varies)", text) for text in (shown, said))
    if shown.strip() and not OutputChecker().check_output(shown, said, ELLIPSIS | NORMALIZE_WHITESPACE):
        raise AssertionError(f"{place}: the page shows\n{shown}\nbut it says\n{said}")


def run_python(example: Example, page: str, namespace: dict[str, Any]) -> None:
    """Run a fence, after empty lines that give tracebacks the line numbers of the page."""
    code = compile("\n" * (example.line - 1) + example.code, page, "exec", dont_inherit=True)
    with redirect_stdout(StringIO()) as said:
        exec(code, namespace)
    check_output(example.output, said.getvalue(), f"{page}:{example.line}")


def run_console(example: Example, page: str) -> None:
    """Run a fence as one script in the current directory, with our programs first on PATH."""
    script, shown = typed_and_shown(example.code)
    assert script, f"{page}:{example.line}: no line starts with '$ '"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page}:{example.line}: {done.stdout}"
    check_output(shown, done.stdout, f"{page}:{example.line}")


def run_page(name: str, text: str) -> None:
    """Run every example of a page in order."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(text):
        if example.language == "python":
            run_python(example, name, namespace)
        else:
            run_console(example, name)


@pytest.fixture(autouse=True)
def at_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run examples in an empty directory, because they write files."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if examples(page.read_text())],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_examples_run(page: Path, monkeypatch: pytest.MonkeyPatch, reader_environment: dict[str, str]) -> None:
    for name, value in reader_environment.items():
        monkeypatch.setenv(name, value)
    run_page(page.name, page.read_text().replace(DEFAULT_URL, reader_environment["THREEFOLD_URL"]))


def test_page_runs_in_order_and_shares_names() -> None:
    run_page(
        "page.md",
        "```python\nword = 'kept'\n```\n```console\n$ echo two \\\n  words > file\n```\n"
        "```python\nfrom pathlib import Path\n"
        "assert Path('file').read_text() == 'two words\\n'\nassert word == 'kept'\n```\n",
    )


def test_output_as_shown_passes() -> None:
    day, other_day = "2026-05-08 13:56", "2027-01-01 00:00"
    run_page(
        "page.md",
        f"```console\n$ echo one {day}\none {other_day}\n$ echo two; echo three\n...\nthree\n```\n"
        "```python\nprint('a   b')\n```\n\n```text\na b\n```\n",
    )


@pytest.mark.parametrize(
    "page", ["```console\n$ echo one\ntwo\n```\n", "```python\nprint('one')\n```\n```text\ntwo\n```\n"]
)
def test_output_that_differs_from_the_page_fails(page: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:2: the page shows"):
        run_page("page.md", page)


def test_failing_command_fails_its_page() -> None:
    with pytest.raises(AssertionError, match=r"page\.md:3: "):
        run_page("page.md", "Text\n```console\n$ false\n$ true\n```\n")


def test_failing_statement_is_reported_with_its_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run_page("page.md", "Text\n\n```python\nx = 0\n1 / x\n```\n")
    assert (failure.traceback[-1].path, failure.traceback[-1].lineno + 1) == ("page.md", 5)


def test_shell_fence_without_a_prompt_fails() -> None:
    with pytest.raises(AssertionError, match="no line starts with"):
        run_page("page.md", "```bash\necho hello\n```\n")


def test_example_is_left_out_only_with_a_reason() -> None:
    assert examples("<!-- not run: needs a cluster -->\n```console\n$ false\n```\n") == []
    assert len(examples("<!-- not run: -->\n```console\n$ false\n```\n")) == 1
