"""Every supported Python on this machine can install the lock file and passes the fast tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = ROOT / ".ci" / "uv"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [version for version in ("3.11", "3.12", "3.13") if version != RUNNING]
FAST_TESTS = ["tests/core", "tests/server/unit"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("packaging")]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def find_python(version: str) -> str | None:
    """Return an interpreter from PATH, uv, or pyenv, whose shims only run the version chosen there."""
    found = run(UV, "python", "find", "--system", version)
    if found.returncode == 0:
        return found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python")), None)


@pytest.mark.parametrize("version", OTHERS)
def test_fast_tests_pass_on_other_pythons(version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not here")
    isolated = ("run", "--isolated", "--frozen", "--quiet", "--python", python)
    tests = run(UV, *isolated, "pytest", "-q", "-p", "no:cacheprovider", *FAST_TESTS)
    assert tests.returncode == 0, tests.stdout + tests.stderr
