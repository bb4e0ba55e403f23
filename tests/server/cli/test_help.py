"""Every command has help with an example."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from fixtures.command_line import Run
from threefold_server.cli import full_app


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that does something."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


COMMANDS = list(commands(get_command(full_app())))


def test_commands_are_complete() -> None:
    assert {" ".join(words) for words in COMMANDS} == {
        *("demo", "serve", "worker", "migrate", "consolidate", "rebuild", "reembed", "purge"),
        *("backup", "restore", "migrate-store", "doctor"),
        *("recall", "write", "list", "forget", "status", "replay", "import", "mcp"),
        *(f"admin {verb}" for verb in ("owners", "usage", "list", "export", "rename", "forget")),
        *(f"audit {verb}" for verb in ("list", "verify")),
        *(f"facts {verb}" for verb in ("save", "show", "edit", "delete", "history", "restore")),
        *(f"sessions {verb}" for verb in ("list", "turns", "state", "digests", "end")),
        *(f"keys {verb}" for verb in ("create", "list", "rotate", "revoke")),
    }


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example(words: tuple[str, ...], run: Run) -> None:
    shown = run(*words, "--help")
    assert shown.code == 0
    assert f"Example:\n    $ threefold {' '.join(words)}" in shown.out


def test_every_setting_has_a_flag(run: Run) -> None:
    from threefold_server.cli.store import SECRETS
    from threefold_server.settings import Settings

    shown = set(re.findall(r"--([\w-]+)", run("serve", "--help").out))
    assert {name for name in Settings.model_fields if name.replace("_", "-") not in shown} == SECRETS


def test_help_is_shown_without_a_command(run: Run) -> None:
    shown = run()
    assert shown.code == 2
    assert "recall" in shown.out + shown.err


def test_client_command_does_not_import_the_service() -> None:
    script = (
        "import sys; from threefold_server.cli import main\ntry: main(['recall', '--help'])\nexcept SystemExit: pass"
    )
    script += "\nprint(*{'sqlalchemy', 'fastapi', 'onnxruntime'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
