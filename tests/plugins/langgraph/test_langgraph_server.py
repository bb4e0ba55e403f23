"""Threads and items behind a real LangGraph Server (`langgraph dev`), with and without `auth`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient

from fixtures.command_line import clean_environment
from fixtures.served import served
from threefold import MemoryClient
from threefold.contract import QueryCheckpointsRequest

ROOT = Path(__file__).parents[3]
UV = ROOT / ".ci" / "uv"
SERVER = ("langgraph-api==0.16.7", "langgraph-runtime-inmem==0.36.7", "langgraph-cli==0.4.40", "langgraph==1.2.24")
QUIET = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("langgraph_server")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with LangGraph Server and the plugin; its dependencies are not those of the other tests."""
    directory = tmp_path_factory.mktemp("langgraph_server") / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, directory], check=True)
    packages = [f"--editable={ROOT / 'packages' / name}" for name in ("core", "langgraph_plugin")]
    install = [UV, "pip", "install", "--quiet", "--python", directory / "bin" / "python", *SERVER, *packages]
    subprocess.run(install, check=True, cwd=ROOT)
    return directory / "bin"


@pytest.fixture(scope="module")
def memory_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Threefold service."""
    data = str(tmp_path_factory.mktemp("memory"))
    with served("--data", data, "--embedder", "hash", "--tier-deadline", "30") as url:
        yield url


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return cast(int, probe.getsockname()[1])


@contextmanager
def langgraph_dev(environment: Path, directory: Path, memory_url: str, *, auth: bool, **user: str) -> Generator[str]:
    """Run `langgraph dev` with checkpointer and store of the plugin, and yield its URL."""
    shutil.copy(Path(__file__).parent / "served" / "agent.py", directory)
    config = {
        "dependencies": ["."],
        "graphs": {"agent": "./agent.py:graph"},
        "checkpointer": {"path": "threefold_langgraph.server.create_checkpointer"},
        "store": {"path": "threefold_langgraph.server.create_store"},
        **({"auth": {"path": "./agent.py:auth"}} if auth else {}),
    }
    (directory / "langgraph.json").write_text(json.dumps(config))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        environment / "langgraph",
        "dev",
        "--no-browser",
        "--no-reload",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    settings = clean_environment(url=memory_url, **user) | QUIET
    settings["PATH"] = f"{environment}{os.pathsep}{settings['PATH']}"
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(command, cwd=directory, env=settings, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            while not answers(url):
                assert process.poll() is None, (directory / "log").read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def closing_client(url: str, user: str | None = None) -> Any:
    """Return a client without types, as they are only partly known, which keeps no idle connection."""
    transport = httpx.HTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))
    headers = {} if user is None else {"x-user": user}
    return SyncLangGraphClient(httpx.Client(base_url=url, transport=transport, headers=headers, timeout=60))


def answers(url: str) -> bool:
    """Return whether the server is ready."""
    try:
        return httpx.get(f"{url}/ok").status_code == 200
    except httpx.TransportError:
        return False


def stored(memory_url: str, user: str, thread_id: str) -> int:
    """Return the number of checkpoints that the service has of a thread of a user."""
    with MemoryClient(memory_url, user=user) as memory:
        return len(memory.threads.query(QueryCheckpointsRequest(thread_id=thread_id)).checkpoints)


def use_all_calls(client: Any, memory_url: str, user: str) -> None:
    """Use a thread and an item inside and outside of runs, and delete both."""
    thread_id = client.threads.create()["thread_id"]
    client.runs.wait(thread_id, "agent", input=HELLO)
    state = client.threads.get_state(thread_id)
    assert [message["content"] for message in state["values"]["messages"]] == ["hello", "message 1"]
    assert len(client.threads.get_history(thread_id)) == 3
    client.threads.update_state(thread_id, HELLO)
    copy = client.threads.copy(thread_id)
    copied = client.threads.get_state(copy["thread_id"])
    assert len(copied["values"]["messages"]) == 3
    assert stored(memory_url, user, thread_id) == stored(memory_url, user, copy["thread_id"]) == 4
    client.threads.delete(thread_id)
    assert (stored(memory_url, user, thread_id), stored(memory_url, user, copy["thread_id"])) == (0, 4)

    client.store.put_item(["notes"], "k", {"text": user})
    assert client.store.get_item(["notes"], "k")["value"] == {"text": user}
    assert [item["key"] for item in client.store.search_items(["notes"])["items"]] == ["k"]
    client.store.delete_item(["notes"], "k")
    assert client.store.search_items(["notes"])["items"] == []


def test_server_without_auth_acts_for_the_user_of_the_environment(
    environment: Path, memory_url: str, tmp_path: Path
) -> None:
    with langgraph_dev(environment, tmp_path, memory_url, auth=False, user="ana") as url:
        client = closing_client(url)
        use_all_calls(client, memory_url, "ana")
        # Calls outside of runs act for ana, so they would not find a thread of another user.
        thread_id = client.threads.create()["thread_id"]
        with pytest.raises(Exception, match="Forbidden"):
            client.runs.wait(thread_id, "agent", input=HELLO, config={"configurable": {"user_id": "ben"}})


def test_server_with_auth_acts_for_the_user_of_each_request(environment: Path, memory_url: str, tmp_path: Path) -> None:
    with langgraph_dev(environment, tmp_path, memory_url, auth=True) as url:
        clients = {user: closing_client(url, user) for user in ("cem", "dana")}
        for user, client in clients.items():
            use_all_calls(client, memory_url, user)
        thread_id = clients["cem"].threads.create()["thread_id"]
        clients["cem"].runs.wait(thread_id, "agent", input=HELLO)
        clients["cem"].store.put_item(["notes"], "own", {"text": "mine"})
        assert clients["dana"].threads.get_history(thread_id) == []
        assert clients["dana"].store.search_items(["notes"])["items"] == []


def test_server_that_knows_no_user_refuses_every_call(environment: Path, memory_url: str, tmp_path: Path) -> None:
    with langgraph_dev(environment, tmp_path, memory_url, auth=False) as url:
        client = closing_client(url)
        thread_id = client.threads.create()["thread_id"]
        with pytest.raises(Exception, match="InvalidRequest"):
            client.runs.wait(thread_id, "agent", input=HELLO)
        with pytest.raises(httpx.HTTPStatusError):
            client.threads.delete(thread_id)
        with pytest.raises(httpx.HTTPStatusError):
            client.store.put_item(["notes"], "k", {"text": "v"})
