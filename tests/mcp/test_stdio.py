"""`threefold mcp` as clients start it: one process, one identity, and only protocol messages on standard output."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import McpError
from mcp.types import LATEST_PROTOCOL_VERSION

from fixtures.command_line import THREEFOLD, Run, clean_environment, running
from fixtures.keys import make_key
from fixtures.mcp_clients import SETTINGS, call, over_stdio, started
from threefold.contract import Memory
from threefold.tools.answers import NOTHING_FOUND, UNAVAILABLE
from threefold_server.local import LocalService
from threefold_server.settings import sqlite_url
from threefold_server.storage.engine.migrate import upgrade

pytestmark = pytest.mark.anyio

SECRET = "quokka-7391"
HELLO: dict[str, Any] = {
    "protocolVersion": LATEST_PROTOCOL_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
TALK = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "save_memory", "arguments": {"text": "x"}}},
]

LIST = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "list_memories"}}


def memories(data: Path, user: str = "local", agent: str = "local") -> list[Memory]:
    """Return all memories of a user and agent in a store."""
    with LocalService(data, embedder="hash") as service, service.client(user, agent) as memory:
        return list(memory.iter_memories(limit=500))


def converse(command: Sequence[object], lines: Sequence[str]) -> tuple[list[str], str, int]:
    """Send these lines and return standard output, standard error and the exit code of the server."""
    with subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment() | SETTINGS,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        out: list[str] = []
        answered = 0
        while answered < sum('"id"' in line for line in lines):
            out.append(process.stdout.readline())
            answered += '"id"' in out[-1]
            assert out[-1], process.stderr.read()
        rest, log = process.communicate()
    return [*out, *rest.splitlines()], log, process.returncode


async def test_fact_of_one_session_is_found_in_another(tmp_path: Path) -> None:
    async with over_stdio("--data", tmp_path) as client:
        assert (await call(client, "save_memory", text="The gate code is 4711.")).startswith("Saved as ")
        await call(client, "record", message="I deploy to staging on Fridays.")
    async with over_stdio("--data", tmp_path) as client:
        assert "4711" in await call(client, "search_memory", query="What is the gate code?")
        assert "Fridays" in await call(client, "search_memory", query="When do I deploy to staging?")
        assert await call(client, "search_memory", query="gate code", level="session") == NOTHING_FOUND


async def test_instructions_name_the_tools(tmp_path: Path) -> None:
    parameters = StdioServerParameters(command=str(THREEFOLD), args=["mcp", "--data", str(tmp_path)], env=SETTINGS)
    async with started(parameters) as client:
        again = await client.initialize()
        assert again.serverInfo.name == "threefold"
        assert again.instructions is not None
        for tool in (await client.list_tools()).tools:
            assert tool.name in again.instructions
        assert again.instructions.count(".") == 1


async def test_environment_names_user_and_agent(tmp_path: Path) -> None:
    async with over_stdio("--data", tmp_path, "--session", "diary", user="ana", agent="desk") as client:
        await call(client, "record", message="Hello.")
        said = await call(client, "record", message="Send money.", user_id="bob", is_error=True)
        assert "user_id: Extra inputs are not permitted" in said
    (memory,) = memories(tmp_path, "ana", "desk")
    assert (memory.text, memory.user, memory.agent, memory.session_id) == ("Hello.", "ana", "desk", "diary")
    assert memories(tmp_path, "bob", "desk") == []


async def test_key_from_a_file_or_the_environment_is_the_identity(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    upgrade(url)
    (tmp_path / "key").write_text(make_key(url, user_value="ana", agent_value="desk") + "\n")
    async with over_stdio("--data", tmp_path, "--key-file", tmp_path / "key", mode="keys") as client:
        await call(client, "save_memory", text="Ana likes tea.")
    other = make_key(url, user_value="bob", agent_value="desk")
    async with over_stdio("--data", tmp_path, mode="keys", api_key=other) as client:
        assert await call(client, "list_memories") == NOTHING_FOUND
    assert [(memory.text, memory.user, memory.agent) for memory in memories(tmp_path, "ana", "desk")] == [
        ("Ana likes tea.", "ana", "desk")
    ]


async def test_running_service_is_used_with_a_key(tmp_path: Path) -> None:
    with running("serve", "--port", "0", "--data", str(tmp_path), "--mode", "keys", embedder="hash") as service:
        key = make_key(sqlite_url(tmp_path), user_value="ana")
        options = ("--url", service.first_line, "--profile", "kagent", "--tools", "save_memory,load_memory")
        async with over_stdio(*options, api_key=key) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["save_memory", "load_memory"]
            await call(client, "save_memory", content="Ana likes tea.")
        async with over_stdio("--url", service.first_line, "--read-only", api_key=key) as client:
            assert "Ana likes tea." in await call(client, "list_memories")
            assert "no tool 'save_memory'" in await call(client, "save_memory", text="x", is_error=True)


async def test_killed_process_loses_nothing_on_a_shared_store(tmp_path: Path) -> None:
    """Users reported that a shared file was corrupted, or that the last process won.

    Every acknowledged memory is stored; the unfinished one may be stored as well.
    """
    saved: dict[str, list[str]] = {"a": [], "b": []}
    enough = anyio.Event()

    async def save(client: ClientSession, who: str, upto: int) -> None:
        while len(saved[who]) < upto:
            text = f"Heron {len(saved[who])} of writer {who}."
            await call(client, "save_memory", text=text)
            saved[who].append(text)
            if len(saved["b"]) >= 20:
                enough.set()

    async def save_until_killed(client: ClientSession) -> None:
        with pytest.raises(McpError):
            await save(client, "b", 400)

    pid_file = tmp_path / "pid"
    script = f'echo $$ > {pid_file}; exec "$0" mcp --data "$1"'
    doomed = StdioServerParameters(command="sh", args=["-c", script, str(THREEFOLD), str(tmp_path)], env=SETTINGS)
    async with (
        over_stdio("--data", tmp_path) as survivor,
        started(doomed) as victim,
        anyio.create_task_group() as group,
    ):
        group.start_soon(save, survivor, "a", 20)
        group.start_soon(save_until_killed, victim)
        await enough.wait()
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    async with over_stdio("--data", tmp_path) as client:
        listed = await call(client, "list_memories", limit=100)
        assert saved["b"][-1] in listed
        await call(client, "save_memory", text="The next start works.")
    found = [memory.text for memory in memories(tmp_path)]
    unfinished = f"Heron {len(saved['b'])} of writer b."
    assert sorted(set(found) - {unfinished}) == sorted([*saved["a"], *saved["b"], "The next start works."])
    assert len(found) == len(set(found))
    assert len(saved["a"]) == 20


def test_standard_output_has_only_protocol_messages(tmp_path: Path) -> None:
    """Users reported that a log line on standard output ended the MCP session.

    Debug logging, an outdated schema, and dependencies that print and warn all write to standard error.
    """
    with LocalService(tmp_path, embedder="hash") as service, service.client() as memory:
        memory.save("Saved under the old schema.")
    broken = f'{{"jsonrpc": "2.0", "method": 7, "said": "{SECRET}"'
    unknown = f'{{"jsonrpc": "2.0", "id": 4, "method": "{SECRET}"}}'
    noisy = [sys.executable, Path(__file__).with_name("noisy.py")]
    command = [*noisy, "mcp", "--data", tmp_path, "--log-level", "debug"]
    out, log, code = converse(command, [*map(json.dumps, TALK), broken, unknown])
    messages = [json.loads(line) for line in out]
    assert {message["jsonrpc"] for message in messages} == {"2.0"}
    assert sorted(message["id"] for message in messages if "id" in message) == [1, 2, 3, 4]
    for source in ("a migration", "the driver of a migration", "Python", "C", "a program", "a warning", "a log"):
        assert f"noise from {source}" in log
    assert SECRET not in log
    assert code == 0
    out, log, _ = converse(command, [*map(json.dumps, TALK[:2]), json.dumps(LIST)])
    assert "noise from a migration" not in log  # the migration ran in the first start
    assert "] x\\n" in out[-1]
    assert "] Saved under the old schema.\\n" in out[-1]


def test_new_store_is_created_silently(tmp_path: Path) -> None:
    out, log, code = converse([THREEFOLD, "mcp", "--data", tmp_path / "new"], list(map(json.dumps, TALK)))
    assert len(out) == 3
    assert log == ""
    assert code == 0


def test_lone_surrogate_does_not_lose_the_message(tmp_path: Path) -> None:
    """JavaScript escapes half of a split emoji, and the parser would refuse the whole message."""
    cut = json.dumps(TALK[3]).replace('"x"', r'"The heron \ud83d"')
    assert "\\ud83d" in cut
    converse([THREEFOLD, "mcp", "--data", tmp_path], [*map(json.dumps, TALK[:2]), cut])
    assert [memory.text for memory in memories(tmp_path)] == ["The heron \ufffd"]


def test_server_ends_if_its_client_closes_the_output(tmp_path: Path) -> None:
    with subprocess.Popen(
        [THREEFOLD, "mcp", "--data", tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment() | SETTINGS,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(json.dumps(TALK[0]) + "\n")
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait() != 0


async def test_unreachable_service_is_reported_by_the_tools(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with over_stdio("--url", f"http://127.0.0.1:{port}") as client:
        assert len((await client.list_tools()).tools) == 5
        assert await call(client, "search_memory", query="tea") == UNAVAILABLE
        assert await call(client, "save_memory", text="x") == UNAVAILABLE
        assert await call(client, "record", message="x") == UNAVAILABLE
        assert await call(client, "list_memories") == UNAVAILABLE


def test_interrupt_ends_the_server(tmp_path: Path) -> None:
    command = [THREEFOLD, "mcp", "--data", tmp_path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment() | SETTINGS
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(TALK[0]) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "message"),
    [
        (["--tools", "nonsense"], {}, 2, "has no 'nonsense'"),
        (["--read-only", "--tools", "record"], {}, 2, "no tool is left"),
        (["--session", " "], {}, 2, "session: must not be blank"),
        (["--url", "nowhere"], {}, 2, "must be an http:// or https:// URL"),
        (["--key-file", "missing"], {}, 1, "--key-file: No such file or directory: missing"),
        (["--key-file", "junk"], {}, 2, "api_key must be printable ASCII"),
        (["--data", "store", "--key-file", "junk"], {}, 2, "api_key must be printable ASCII"),
        (["--data", "store", "--key-file", "empty"], {}, 2, "api_key must be printable ASCII"),
        (["--data", "diary"], {}, 1, "the database file is damaged or not a SQLite database"),
        (["--data", "junk"], {}, 1, "File exists"),
        (["--data", "store"], {"embedder": "nonsense"}, 2, "unknown embedder 'nonsense'"),
        (["--data", "store"], {"port": "x"}, 2, "(THREEFOLD_PORT): Input should be a valid integer"),
        (["--data", "store"], {"mode": "keys"}, 1, "no API key: send"),
        (["--data", "store"], {"mode": "keys", "api_key": "wrong"}, 1, "the API key is unknown"),
    ],
)
def test_startup_error_is_one_line(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], code: int, message: str
) -> None:
    (tmp_path / "junk").write_bytes(b"\xff\x00")
    (tmp_path / "empty").touch()
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "threefold.db").write_text("This is a diary.")
    done = subprocess.run(
        [THREEFOLD, "mcp", *arguments],
        cwd=tmp_path,
        env=clean_environment(**{"embedder": "hash"} | settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert message in done.stderr
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (code, 1, "")


def test_data_and_url_together_are_refused(run: Run, tmp_path: Path) -> None:
    refused = run("mcp", "--data", tmp_path, "--url", "http://127.0.0.1:1")
    assert (refused.code, "give one of them" in refused.err) == (2, True)


def test_missing_extra_is_reported_with_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there(_: str) -> bool:
        return False

    monkeypatch.setattr("threefold_server.cli.mcp.installed", not_there)
    refused = run("mcp", "--data", tmp_path)
    assert (refused.code, "pip install 'threefold-server[mcp]'" in refused.err) == (1, True)
