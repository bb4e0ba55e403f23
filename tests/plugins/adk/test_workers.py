"""Several processes append to one session: no event is lost or doubled, and each worker's order is kept."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.served import served
from plugins.adk.appender import read
from threefold import MemoryClient
from threefold_adk import ThreefoldSessionService

WORKERS = ["one", "two"]

pytestmark = pytest.mark.slow


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """The URL of a served service on each database, with an empty session."""
    with served("--database-url", database_url, "--embedder", "hash") as url:
        sessions = ThreefoldSessionService(uri=uri(url))
        asyncio.run(create(sessions))
        yield url


async def create(sessions: ThreefoldSessionService) -> None:
    await sessions.create_session(app_name="app", user_id="ana", session_id="s")


def uri(url: str) -> str:
    return url.replace("http://", "threefold://")


def start(url: str, worker: str, count: int) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("appender.py")
    return subprocess.Popen([sys.executable, script, uri(url), worker, str(count)])


def finish(*workers: subprocess.Popen[bytes]) -> None:
    assert [worker.wait() for worker in workers] == [0, 0]


def check(url: str, count: int) -> None:
    with MemoryClient(url, user="ana", agent="app") as client:
        pages = [client.turns("s", from_seq=first, limit=1_000).turns for first in range(1, 2 * count + 1, 1_000)]
    said = [turn.content for page in pages for turn in page]
    for worker in WORKERS:
        assert [text for text in said if text.startswith(worker)] == [f"{worker} {n}" for n in range(count)]
    assert len(said) == 2 * count
    state = asyncio.run(read(ThreefoldSessionService(uri=uri(url)))).state
    assert state == dict.fromkeys(WORKERS, (count - 1) // 5 * 5)


def test_two_processes_append_to_one_session(url: str) -> None:
    finish(*(start(url, worker, 500) for worker in WORKERS))
    check(url, 500)


def test_killed_process_can_start_over(url: str) -> None:
    other, killed = start(url, "one", 25), start(url, "two", 25)
    with MemoryClient(url, user="ana", agent="app") as client:
        while all(turn.content != "two 5" for turn in client.turns("s").turns):
            pass
    killed.kill()
    killed.wait()
    finish(other, start(url, "two", 25))
    check(url, 25)
