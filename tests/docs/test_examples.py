"""The documentation is true: every example in it runs, in order, in an empty directory, and says what the page shows.

Fences of `python` share one namespace per page, and a `text` fence behind one is what it prints. In fences of `console`
the lines that start with `$ ` are typed, the others are what comes back. In what is shown, `...` stands for anything.
An example that cannot run here says why, on the line before its fence: <!-- not run: the reason -->
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
"""Ids, times and ports: another one is as good."""


class Example(NamedTuple):
    """One fence: its language, its text, the line of the page where the text starts, and the fence that it prints."""

    language: str
    code: str
    line: int
    output: str = ""


def examples(page: str) -> list[Example]:
    """The fences of a page that are to be run."""
    found = [
        Example(fence["language"], fence["code"], page.count("\n", 0, fence.start("code")) + 1, fence["output"] or "")
        for fence in FENCE.finditer(page)
        if not fence["reason"]
    ]
    return [example for example in found if example.language in SHELLS | {"python"}]


def typed_and_shown(console: str) -> tuple[str, str]:
    """What the reader types: the lines after `$ `, with those that a backslash continues; and what the rest shows."""
    lines = console.replace("\\\n", "").splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    return "\n".join(typed), "\n".join(line for line in lines if not line.startswith("$ "))


def check_output(shown: str, said: str, place: str) -> None:
    """A page that shows an output shows the one that comes."""
    shown, said = (VARIES.sub("(varies)", text) for text in (shown, said))
    if shown.strip() and not OutputChecker().check_output(shown, said, ELLIPSIS | NORMALIZE_WHITESPACE):
        raise AssertionError(f"{place}: the page shows\n{shown}\nbut it says\n{said}")


def run_python(example: Example, page: str, namespace: dict[str, Any]) -> None:
    """Run a fence; the empty lines before it make tracebacks name the page's own lines."""
    code = compile("\n" * (example.line - 1) + example.code, page, "exec", dont_inherit=True)
    with redirect_stdout(StringIO()) as said:
        exec(code, namespace)
    check_output(example.output, said.getvalue(), f"{page}:{example.line}")


def run_console(example: Example, page: str) -> None:
    """Run a fence as one script, in the current directory, with our own programs first on PATH."""
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
    """Run every example of a page, in order."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(text):
        if example.language == "python":
            run_python(example, name, namespace)
        else:
            run_console(example, name)


@pytest.fixture(autouse=True)
def at_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples write where they are."""
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


def test_a_page_runs_in_order_and_shares_names() -> None:
    run_page(
        "page.md",
        "```python\nword = 'kept'\n```\n```console\n$ echo two \\\n  words > file\n```\n"
        "```python\nfrom pathlib import Path\n"
        "assert Path('file').read_text() == 'two words\\n'\nassert word == 'kept'\n```\n",
    )


def test_what_a_page_shows_is_what_it_says() -> None:
    day, other_day = "2026-05-08 13:56", "2027-01-01 00:00"
    run_page(
        "page.md",
        f"```console\n$ echo one {day}\none {other_day}\n$ echo two; echo three\n...\nthree\n```\n"
        "```python\nprint('a   b')\n```\n\n```text\na b\n```\n",
    )


@pytest.mark.parametrize(
    "page", ["```console\n$ echo one\ntwo\n```\n", "```python\nprint('one')\n```\n```text\ntwo\n```\n"]
)
def test_another_output_than_the_page_shows_fails(page: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:2: the page shows"):
        run_page("page.md", page)


def test_a_failing_command_fails_its_page() -> None:
    with pytest.raises(AssertionError, match=r"page\.md:3: "):
        run_page("page.md", "Text\n```console\n$ false\n$ true\n```\n")


def test_a_failing_statement_is_reported_at_its_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run_page("page.md", "Text\n\n```python\nx = 0\n1 / x\n```\n")
    assert (failure.traceback[-1].path, failure.traceback[-1].lineno + 1) == ("page.md", 5)


def test_a_shell_fence_without_a_prompt_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no line starts with"):
        run_page("page.md", "```bash\necho hello\n```\n")


def test_only_an_example_with_a_reason_is_left_out() -> None:
    assert examples("<!-- not run: needs a cluster -->\n```console\n$ false\n```\n") == []
    assert len(examples("<!-- not run: -->\n```console\n$ false\n```\n")) == 1
