"""The Pydantic AI example runs as its README says, with the scripted model and with an endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.openai_server import OpenAIServer, chat_reply
from fixtures.served import served

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_pydantic_ai" / "agent.py"
BLOCK = "Recalled from earlier turns and sessions."


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(
        "--data", str(tmp_path_factory.mktemp("service")), "--embedder", "hash", "--tier-deadline", "30"
    ) as url:
        yield url


def run(url: str, **variables: str) -> list[str]:
    """Return the answers of the agent."""
    environment = os.environ | {"THREEFOLD_URL": url} | variables
    command = [sys.executable, "-W", "error", EXAMPLE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.removeprefix("agent: ") for line in done.stdout.splitlines() if line.startswith("agent: ")]


def test_example_runs_offline(url: str) -> None:
    told = "You told me: Always send my parcels to Oslo."
    assert run(url) == ["I take note.", "I take note.", told]


def test_example_runs_with_an_endpoint(url: str, openai_server: OpenAIServer) -> None:
    openai_server.script(chat_reply("Noted."), chat_reply("I do not know."), chat_reply("To Oslo."))
    model = {"MODEL": "openai-chat:scripted", "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": openai_server.url}
    assert run(url, **model) == ["Noted.", "I do not know.", "To Oslo."]
    asked = [str(asked.body) for asked in openai_server.asked]
    assert [BLOCK in text for text in asked] == [False, False, True]
