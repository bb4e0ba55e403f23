"""Every command has help with an example."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from fixtures.command_line import Run, clean_environment
from threefold_server.cli import STORE_COMMANDS, client_app, full_app


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


SERVER = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "numpy", "onnxruntime", "prometheus_client"}
ONLINE = [
    ["write", "s1", "I deploy on Fridays."],
    ["recall", "deploy"],
    ["facts", "save", "Staging is deployed on Fridays."],
    ["list"],
    ["sessions", "list"],
    ["forget", "--session", "s1", "--yes"],
    ["status"],
]
PROBE = """
import json, sys
from threefold_server.cli import main

for words in json.loads(sys.argv[1]):
    try:
        main(words)
        code = 0
    except SystemExit as end:
        code = end.code
    print(json.dumps([words, code or 0, sorted(set(sys.modules) & set(sys.argv[2:]))]), file=sys.stderr)
"""


def probe(commands: list[list[str]], **settings: str) -> list[tuple[list[str], int, list[str]]]:
    """Run commands in one new process and return of each its words, its exit code and the server's modules by then."""
    command = [sys.executable, "-c", PROBE, json.dumps(commands), *SERVER]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(**settings), check=True)
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[[")]


def test_client_commands_do_not_import_the_server(served: str) -> None:
    found = probe(ONLINE, url=served, user="imports")
    assert [(words, code, modules) for words, code, modules in found] == [(words, 0, []) for words in ONLINE]


def test_help_does_not_import_the_server() -> None:
    client = [[*words, "--help"] for words in COMMANDS if words[0] not in STORE_COMMANDS]
    pages = [["--help"], [], ["nonsense"], ["facts"], *client]
    found = probe(pages)
    assert [(words, modules) for words, _, modules in found] == [(words, []) for words in pages]


def test_store_command_runs_behind_a_double_dash(run: Run) -> None:
    assert "(THREEFOLD_PORT)" in run("--", "serve", "--port", "70000").err


def test_summaries_of_store_commands_are_those_of_their_help() -> None:
    client = get_command(client_app())
    all_commands: dict[str, Any] = getattr(get_command(full_app()), "commands")  # noqa: B009 - of a group, says typer
    own = {
        name: command.get_short_help_str(limit=1_000)
        for name, command in all_commands.items()
        if name not in getattr(client, "commands")  # noqa: B009
    }
    assert own == STORE_COMMANDS
