"""The Google ADK example runs as its README says, and the commands of ADK find it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.adk.apps.app import App
from google.adk.cli.utils.agent_loader import AgentLoader

from fixtures.served import served

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_adk"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served("--data", str(tmp_path / "data"), "--embedder", "hash", "--tier-deadline", "30") as url:
        yield url


def test_example_runs_offline(url: str) -> None:
    command = [sys.executable, "-W", "error", EXAMPLE / "shop" / "agent.py"]
    done = subprocess.run(command, env=os.environ | {"THREEFOLD_URL": url}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = "agent: You told me: Always send my parcels to Oslo."
    answers = [line for line in done.stdout.splitlines() if line.startswith("agent: ")]
    assert answers == ["agent: I take note.", "agent: I take note.", told]


def test_commands_of_adk_load_the_example() -> None:
    found = AgentLoader(str(EXAMPLE)).load_agent("shop")
    assert isinstance(found, App)
    assert found.name == "shop"
