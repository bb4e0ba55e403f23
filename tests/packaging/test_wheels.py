"""The wheels as users get them: built, installed into an empty environment, and used from another directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from conformance.crewai_host import QUIET
from fixtures.served import served

ROOT = Path(__file__).parents[2]
UV = ROOT / ".ci" / "uv"
MAX_SERVER_BYTES = 270 * 10**6
PLUGINS = {"pydantic_ai": "", "langgraph": "[middleware]", "crewai": "", "adk": ""}
"""Each plugin with the extra that its README installs."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("packaging")]

# httpx imports rich and click if they are installed, so modules loaded by pydantic and httpx are subtracted.
THIRD_PARTY = """
import sys
def third_party():
    files = {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()}
    return {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}
import httpx, pydantic, annotated_types
before = third_party()
import threefold
print(*(third_party() - before))
"""


def run(*command: str | Path, directory: Path = ROOT, **variables: str) -> str:
    """Run a command that must succeed, and return its output."""
    environment = os.environ | variables
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Installation:
    """An environment with only the given wheels and their dependencies, at the locked versions."""

    def __init__(self, directory: Path, constraints: Path, *wheels: Path | str) -> None:
        self.directory = directory
        run(UV, "venv", "--quiet", "--python", sys.executable, directory)
        run(UV, "pip", "install", "--quiet", "--python", self.program("python"), "--constraint", constraints, *wheels)

    def program(self, name: str) -> Path:
        return self.directory / "bin" / name

    def bytes_on_disk(self) -> int:
        """Return the size that `du` reports: the blocks of each file, counted once."""
        files = {(stat.st_dev, stat.st_ino): stat.st_blocks for stat in map(Path.lstat, self.directory.rglob("*"))}
        return 512 * sum(files.values())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every wheel of the workspace, by name."""
    directory = tmp_path_factory.mktemp("wheels")
    run(UV, "build", "--quiet", "--all-packages", "--out-dir", directory)
    return {path.name.partition("-")[0]: path for path in directory.glob("*.whl")}


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions, with which the other tests run and which are in the cache of uv."""
    path = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    run(UV, "export", "--quiet", "--frozen", "--no-hashes", "--no-emit-workspace", "--output-file", path)
    return path


@pytest.fixture(scope="module")
def core(wheels: dict[str, Path], constraints: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The core package alone."""
    return Installation(tmp_path_factory.mktemp("core") / "venv", constraints, wheels["threefold"])


@pytest.fixture(scope="module")
def server(wheels: dict[str, Path], constraints: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The service on SQLite without extras."""
    directory = tmp_path_factory.mktemp("server") / "venv"
    return Installation(directory, constraints, wheels["threefold"], wheels["threefold_server"])


def test_every_wheel_has_types_and_the_licence(wheels: dict[str, Path]) -> None:
    assert wheels.keys() >= {"threefold", "threefold_server"}
    licence = (ROOT / "LICENSE").read_bytes()
    for name, path in wheels.items():
        with ZipFile(path) as wheel:
            assert f"{name}/py.typed" in wheel.namelist()
            (file,) = (file for file in wheel.namelist() if file.endswith("/licenses/LICENSE"))
            assert wheel.read(file) == licence


def test_core_requires_only_pydantic_and_httpx(core: Installation) -> None:
    script = "import importlib.metadata as m; print(*m.requires('threefold'))"
    requirements = run(core.program("python"), "-c", script).split()
    assert {requirement.partition("<")[0] for requirement in requirements} == {"httpx", "pydantic"}


def test_core_works_with_nothing_else_installed(core: Installation, tmp_path: Path) -> None:
    run(core.program("python"), "-W", "error", "-c", "import threefold, threefold.contract", directory=tmp_path)


def test_core_imports_nothing_more_if_everything_is_installed() -> None:
    assert run(sys.executable, "-c", THIRD_PARTY).split() == []


def test_service_on_sqlite_is_small(server: Installation) -> None:
    assert server.bytes_on_disk() < MAX_SERVER_BYTES


def test_command_line_works_from_the_wheel(server: Installation, tmp_path: Path) -> None:
    assert "serve" in run(server.program("threefold"), "--help", directory=tmp_path)


def quick_start(plugin: str) -> tuple[str, str]:
    """Return the first program in the README of a plugin, and its output."""
    page = (ROOT / "packages" / f"{plugin}_plugin" / "README.md").read_text()
    shown = re.search(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert shown is not None, plugin
    return shown[1], shown[2]


def words(printed: str) -> list[str]:
    """Return the words of an output, with the date replaced and line breaks ignored."""
    return re.sub(r"\d{4}-\d\d-\d\d", "(day)", printed).split()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader with a running service and an empty home."""
    with served("--data", str(tmp_path / "data"), "--embedder", "hash", "--tier-deadline", "30") as url:
        yield QUIET | {"HOME": str(tmp_path), "THREEFOLD_URL": url}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin_requires_only_core_and_its_framework(
    plugin: str, wheels: dict[str, Path], constraints: Path, tmp_path: Path, reader: dict[str, str]
) -> None:
    wheel = f"{wheels[f'threefold_{plugin}']}{PLUGINS[plugin]}"
    alone = Installation(tmp_path / "venv", constraints, wheels["threefold"], wheel)
    program, shown = quick_start(plugin)
    assert words(run(alone.program("python"), "-c", program, directory=tmp_path, **reader)) == words(shown)


def test_all_plugins_work_in_one_process(tmp_path: Path, reader: dict[str, str]) -> None:
    """In the environment of the tests, which has all four frameworks; each plugin has its own users."""
    programs, shown = zip(*map(quick_start, PLUGINS), strict=True)
    own = [program.replace('"ana"', f'"{plugin}"') for program, plugin in zip(programs, PLUGINS, strict=True)]
    printed = run(sys.executable, "-c", "\n".join(own), directory=tmp_path, THREEFOLD_USER="local", **reader)
    assert words(printed) == words("".join(shown))
