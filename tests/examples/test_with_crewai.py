"""The CrewAI example runs as its first lines say, each request in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.crewai_host import QUIET
from fixtures.openai_server import OpenAIServer, chat_reply
from fixtures.served import served

AGENT = Path(__file__).parents[2] / "examples" / "with_crewai" / "agent.py"
Say = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path) -> Iterator[Say]:
    """Return a function that asks the crew on a running service."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("THREEFOLD_", "OPENAI_"))}
    with served("--data", str(tmp_path / "data"), "--embedder", "hash") as url:
        environment = plain | QUIET | {"HOME": str(tmp_path), "OTEL_SDK_DISABLED": "true", "THREEFOLD_URL": url}

        def ask(*arguments: str, **variables: str) -> str:
            command = [sys.executable, str(AGENT), *arguments]
            done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
            return done.stdout.strip()

        yield ask


def test_crew_remembers_across_processes_and_sessions(say: Say) -> None:
    assert say("ana", "monday", "I deploy to staging on Fridays.") == "Noted."
    assert "I deploy to staging on Fridays." in say("ana", "tuesday", "When do I deploy to staging?")
    assert say("ben", "tuesday", "When do I deploy to staging?") == "Noted."


def test_crew_works_with_any_openai_compatible_endpoint(say: Say, openai_server: OpenAIServer) -> None:
    openai_server.script(chat_reply("On Fridays."))
    online = {"MODEL": "small", "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": openai_server.url}
    assert say("ana", "monday", "When do I deploy?", **online).endswith("On Fridays.")
