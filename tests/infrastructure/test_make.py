"""The targets of the Makefile, and how they find uv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERBS = {"demo", "test", "soak", "bench", "lint", "format", "typecheck", "docs", "help"}


def run(*command: str | Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout."""
    environment = os.environ | {"PATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH without uv and Python, with a copy of our script beside it."""
    for program in ("awk", "dirname", "sh"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    shutil.copy(ROOT / ".ci" / "uv", tmp_path / "run-uv")
    return tmp_path


def install(machine: Path, name: str, script: str) -> None:
    """Put a shell script on the PATH of the machine."""
    (machine / name).write_text(f"#!/bin/sh\n{script}\n")
    (machine / name).chmod(0o755)


def run_uv(machine: Path) -> subprocess.CompletedProcess[str]:
    """Run our uv script on that machine."""
    return run(machine / "run-uv", "--say", "hello", path=str(machine))


def test_make_lists_every_target() -> None:
    listed = run("make")
    assert listed.stdout == run("make", "help").stdout
    described = {line.split()[1] for line in listed.stdout.splitlines() if len(line.split()) > 2}
    assert described >= VERBS


def test_new_uv_on_path_is_used(machine: Path) -> None:
    install(machine, "uv", 'if [ "$1" = --version ]; then echo "uv 0.9.0 (abc)"; else echo "$@"; fi')
    assert run_uv(machine).stdout == "--say hello\n"


@pytest.mark.parametrize("answer", ["echo 'uv 0.8.99'", "exit 1"])
def test_old_or_broken_uv_is_not_used_and_old_python_is_named(machine: Path, answer: str) -> None:
    install(machine, "uv", answer)
    install(machine, "python3", 'if [ "$1" = --version ]; then echo "Python 3.10.4"; else exit 1; fi')
    refused = run_uv(machine)
    assert refused.returncode == 1
    assert refused.stderr == "Threefold needs Python 3.11 or newer; python3 here is: Python 3.10.4\n"
