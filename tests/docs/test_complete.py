"""The documentation covers every setting, command, route, error, metric, client option and folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter
from typer.core import TyperGroup
from typer.main import get_command

from threefold.calls import ForgetOptions, ListOptions, RecallOptions, SaveOptions, UpdateOptions, WriteOptions
from threefold.errors import ERRORS
from threefold_server.app import create_app
from threefold_server.cli import full_app
from threefold_server.settings import PREFIX, Settings
from threefold_server.telemetry import Metrics

ROOT = Path(__file__).parents[2]
SETTING = re.compile(rf"^\| `{PREFIX}(?P<name>\w+)` \| `?(?P<default>[^`|]*?)`? \|", re.MULTILINE)


def commands(group: TyperGroup, path: str) -> Iterator[str]:
    """Yield every command of a group as it is typed."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def missing(names: list[str], text: str) -> list[str]:
    """Return the names that do not occur in the text."""
    assert names
    return [name for name in names if name not in text]


@pytest.fixture(scope="module")
def documentation() -> str:
    """The text of README.md and of all pages in docs/."""
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")))


def test_every_setting_is_documented_with_its_default(documentation: str) -> None:
    shown = {found["name"].lower(): found["default"] for found in SETTING.finditer(documentation)}
    assert shown.keys() == Settings.model_fields.keys()
    for name, field in Settings.model_fields.items():
        default = (
            None if shown[name] == "unset" else TypeAdapter(field.rebuild_annotation()).validate_python(shown[name])
        )
        assert default == field.default, name


def test_every_command_is_documented(documentation: str) -> None:
    group = get_command(full_app())
    assert isinstance(group, TyperGroup)
    assert missing(list(commands(group, "threefold")), documentation) == []


def test_every_route_is_documented() -> None:
    paths: dict[str, dict[str, object]] = create_app(Settings(embedder="hash")).openapi()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert missing(routes, (ROOT / "docs" / "contract.md").read_text()) == []


def test_every_error_is_documented() -> None:
    rows = [f"| `{code}` | {error.status} |" for code, error in ERRORS.items()]
    assert missing(rows, (ROOT / "docs" / "contract.md").read_text()) == []


def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    families = [*metrics.registry.collect(), *metrics.work_registry.collect()]
    names = [f"`{family.name}_total`" if family.type == "counter" else f"`{family.name}`" for family in families]
    assert missing(names, (ROOT / "docs" / "operations.md").read_text()) == []


def test_every_client_option_is_documented() -> None:
    options = (RecallOptions, WriteOptions, ListOptions, ForgetOptions, SaveOptions, UpdateOptions)
    names = sorted({name for option in options for name in get_type_hints(option)})
    assert missing([f"{name}=" for name in names], (ROOT / "docs" / "python.md").read_text()) == []


def test_every_folder_of_the_service_is_on_the_map() -> None:
    source = ROOT / "packages" / "server" / "src" / "threefold_server"
    folders = [f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()]
    assert missing(folders, (ROOT / "CONTRIBUTING.md").read_text()) == []
