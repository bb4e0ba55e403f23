"""The commands of ADK with `threefold://` addresses: a fact told in one session is known in a new one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from google.adk.cli.service_registry import ServiceRegistry

from fixtures.served import served
from threefold import MemoryClient
from threefold_adk import ThreefoldMemoryService, ThreefoldSessionService, register
from threefold_adk.uris import client_from

ADK = Path(sys.executable).with_name("adk")
QUIET = os.environ | {"ADK_DISABLE_LOAD_DOTENV": "1", "PYTHONUNBUFFERED": "1"}

AGENT = '''
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.tools import preload_memory
from google.genai import types


class Model(BaseLlm):
    """Knows what it is sent."""

    async def generate_content_async(self, llm_request, stream=False):
        sent = str(llm_request.contents)
        answer = "It is Tom." if "called Tom" in sent else "I do not know."
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=answer)]))


root_agent = LlmAgent(name="guide", model=Model(model="scripted"), tools=[preload_memory])
'''

SERVICES_PY = """
import threefold_adk

threefold_adk.register()
"""
SERVICES_YAML = """
services:
  - {scheme: threefold, type: session, class: threefold_adk.ThreefoldSessionService}
  - {scheme: threefold, type: memory, class: threefold_adk.ThreefoldMemoryService}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a served service."""
    with served("--data", str(tmp_path_factory.mktemp("service")), "--embedder", "hash") as url:
        yield url


def make_agent(place: Path) -> None:
    """Write the directory of an agent, which also names it."""
    place.mkdir()
    (place / "__init__.py").write_text("from . import agent\n")
    (place / "agent.py").write_text(AGENT)


def options(url: str) -> list[str]:
    uri = url.replace("http://", "threefold://")
    return [f"--session_service_uri={uri}", f"--memory_service_uri={uri}"]


@contextmanager
def served_by_adk(command_name: str, agents: Path, url: str) -> Generator[httpx.Client]:
    """Serve `adk api_server` or `adk web` until the block ends."""
    command = [ADK, command_name, "--port=0", *options(url), str(agents)]
    with subprocess.Popen(command, env=QUIET, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log: list[str] = []
        address = None
        while address is None and (line := process.stderr.readline()):
            log.append(line)
            address = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
        reader = Thread(target=log.extend, args=(process.stderr,))  # a full pipe would block the server
        reader.start()
        try:
            assert address is not None, "".join(log)
            with httpx.Client(base_url=address[1], timeout=60) as client:
                yield client
        finally:
            process.terminate()
            reader.join()


def ask(server: httpx.Client, session: str, text: str) -> str:
    """Return the answer of the agent in a session of ana."""
    message: dict[str, Any] = {"role": "user", "parts": [{"text": text}]}
    body = {"appName": "guide", "userId": "ana", "sessionId": session, "newMessage": message}
    events = server.post("/run", json=body).raise_for_status().json()
    return events[-1]["content"]["parts"][0]["text"]


@pytest.mark.slow
def test_adk_api_server(url: str, tmp_path: Path) -> None:
    make_agent(tmp_path / "guide")
    (tmp_path / "services.py").write_text(SERVICES_PY)
    with served_by_adk("api_server", tmp_path, url) as server:
        place = "/apps/guide/users/ana/sessions"
        server.post(f"{place}/first", json={"user:name": "Ana"}).raise_for_status()
        server.post(f"{place}/second").raise_for_status()
        assert ask(server, "second", "What is my cat called?") == "I do not know."
        assert ask(server, "first", "My cat is called Tom") == "It is Tom."
        server.post(f"{place}/third").raise_for_status()
        assert ask(server, "third", "What is my cat called?") == "It is Tom."
        server.patch("/apps/guide/users/ana/memory", json={"sessionId": "first"}).raise_for_status()
        found = server.get(f"{place}/third").raise_for_status().json()
        assert (len(found["events"]), found["state"]) == (2, {"user:name": "Ana"})
        assert sorted(each["id"] for each in server.get(place).json()) == ["first", "second", "third"]
        server.delete(f"{place}/second").raise_for_status()
        assert server.get(f"{place}/second").status_code == 404
    with MemoryClient(url, user="ana", agent="guide") as client:
        assert [turn.content for turn in client.turns("first").turns] == ["My cat is called Tom", "It is Tom."]


@pytest.mark.slow
def test_adk_web(url: str, tmp_path: Path) -> None:
    make_agent(tmp_path / "guide")
    (tmp_path / "services.yaml").write_text(SERVICES_YAML)
    with served_by_adk("web", tmp_path, url) as server:
        assert server.get("/list-apps").raise_for_status().json() == ["guide"]
        assert "html" in server.get("/dev-ui/").raise_for_status().headers["content-type"]
        server.post("/apps/guide/users/ben/sessions/web").raise_for_status()
        message = {"role": "user", "parts": [{"text": "My cat is called Tom"}]}
        body = {"appName": "guide", "userId": "ben", "sessionId": "web", "newMessage": message}
        server.post("/run", json=body).raise_for_status()
    with MemoryClient(url, user="ben", agent="guide") as client:
        assert [turn.content for turn in client.turns("web").turns] == ["My cat is called Tom", "It is Tom."]


@pytest.mark.slow
def test_adk_run(url: str, tmp_path: Path) -> None:
    agent = tmp_path / "runner"
    make_agent(agent)
    (agent / "services.yaml").write_text(SERVICES_YAML)
    for text in ("My cat is called Tom", "What is my cat called?"):
        command = [ADK, "run", *options(url), agent, text]
        assert "It is Tom." in subprocess.check_output(command, env=QUIET, text=True, stdin=subprocess.DEVNULL)


def test_schemes_are_registered() -> None:
    registry = ServiceRegistry()
    register(registry)
    for scheme in ("threefold", "threefold+https"):
        uri = f"{scheme}://localhost:1"
        assert isinstance(registry.create_session_service(uri, agents_dir="."), ThreefoldSessionService)
        assert isinstance(registry.create_memory_service(uri, agents_dir="."), ThreefoldMemoryService)


def test_addresses_of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_URL", "http://memory.test:9")
    assert client_from("threefold://").url == "http://memory.test:9"
    assert client_from("threefold://localhost:8181").url == "http://localhost:8181"
    assert client_from("threefold+https://memory.test/base/").url == "https://memory.test/base"
    assert client_from("Threefold://localhost:8181").url == "http://localhost:8181"
    for wrong in ("http://localhost:8181", "threefold:/localhost:8181", "threefold:"):
        with pytest.raises(ValueError, match="must begin with threefold://"):
            client_from(wrong)
    with pytest.raises(ValueError, match="must not contain credentials"):
        client_from("threefold://ana:secret@localhost")
