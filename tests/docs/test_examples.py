"""The documentation is true: every example in it runs, in order, in an empty directory.

Fences of `python` share one namespace per page; fences of `console` are the lines that start with `$ `. An example
that cannot run here says why, on the line before its fence: <!-- not run: the reason -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))) if path.exists()]
SHELLS = {"bash", "console", "sh", "shell"}

FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>\S[^\n]*?) -->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Example(NamedTuple):
    """One fence: its language, its text, and the line of the page where the text starts."""

    language: str
    code: str
    line: int


def examples(page: str) -> list[Example]:
    """The fences of a page that are to be run."""
    found = [
        Example(fence["language"], fence["code"], page.count("\n", 0, fence.start("code")) + 1)
        for fence in FENCE.finditer(page)
        if not fence["reason"]
    ]
    return [example for example in found if example.language in SHELLS | {"python"}]


def commands(console: str) -> str:
    """What the reader types: the lines after `$ `, and those that a backslash continues."""
    joined = console.replace("\\\n", "")
    return "\n".join(line[2:] for line in joined.splitlines() if line.startswith("$ "))


def run_python(example: Example, page: str, namespace: dict[str, Any]) -> None:
    """Run a fence; the empty lines before it make tracebacks name the page's own lines."""
    exec(compile("\n" * (example.line - 1) + example.code, page, "exec"), namespace)


def run_console(example: Example, page: str) -> None:
    """Run a fence as one script, in the current directory, with our own programs first on PATH."""
    script = commands(example.code)
    assert script, f"{page}:{example.line}: no line starts with '$ '"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}:{example.line}: {done.stdout}{done.stderr}"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_run(page: Path, monkeypatch: pytest.MonkeyPatch, reader_environment: dict[str, str]) -> None:
    for name, value in reader_environment.items():
        monkeypatch.setenv(name, value)
    run_page(page.name, page.read_text())


def test_a_page_runs_in_order_and_shares_names() -> None:
    run_page(
        "page.md",
        "```python\nword = 'kept'\n```\n```console\n$ echo two \\\n  words > file\nsome output\n```\n"
        "```python\nfrom pathlib import Path\n"
        "assert Path('file').read_text() == 'two words\\n'\nassert word == 'kept'\n```\n",
    )


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
