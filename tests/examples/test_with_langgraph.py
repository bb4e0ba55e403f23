"""The LangGraph example runs as its first lines say, each turn in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.openai_server import OpenAIServer, chat_reply
from fixtures.served import served

AGENT = Path(__file__).parents[2] / "examples" / "with_langgraph" / "agent.py"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a running service."""
    with served("--data", str(tmp_path / "data"), "--embedder", "hash") as found:
        yield found


def say(url: str, *arguments: str, **variables: str) -> str:
    """Return the answer of the agent."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("THREEFOLD_", "OPENAI_"))}
    environment = plain | {"THREEFOLD_URL": url} | variables
    command = [sys.executable, str(AGENT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_agent_remembers_across_processes_and_threads(url: str) -> None:
    assert say(url, "ana", "monday", "I deploy to staging on Fridays.") == "Noted."
    assert "I deploy to staging on Fridays." in say(url, "ana", "tuesday", "When do I deploy to staging?")
    assert say(url, "ben", "tuesday", "When do I deploy to staging?") == "Noted."


def test_agent_works_with_any_openai_compatible_endpoint(url: str, openai_server: OpenAIServer) -> None:
    openai_server.script(chat_reply("On Fridays."))
    online = {"MODEL": "small", "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": openai_server.url}
    assert say(url, "ana", "monday", "When do I deploy?", **online) == "On Fridays."
