"""The documentation is complete: each setting and each command is mentioned in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from threefold_server.cli import app
from threefold_server.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]


def commands(group: TyperGroup, path: str) -> Iterator[str]:
    """Every command below a group, as it is typed."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


@pytest.fixture(scope="module")
def documentation() -> str:
    """The text of README.md and of every page in docs/."""
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")))


def test_every_setting_is_documented(documentation: str) -> None:
    settings = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    assert [setting for setting in settings if setting not in documentation] == []


def test_every_command_is_documented(documentation: str) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    typed = list(commands(group, "threefold"))
    assert "threefold keys create" in typed
    assert [command for command in typed if command not in documentation] == []
