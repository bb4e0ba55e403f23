"""Attacks on availability: small requests for enormous work, and one owner that uses the capacity of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from threefold import MemoryClient
from threefold.errors import InvalidRequest, Unavailable
from threefold_server.local import LocalService

AT_ONCE = 46  # more than the threads that a process shares
EXPANDING = [
    "{a,b}" * 200,
    "{a,b}." * 50,
    "{*,a}" * 100,
    "a{x,y,z}" * 60,
    "{[0],[1]}" * 40,
    "*." * 999,
    "[*]" * 999,
]


def put(memory: MemoryClient, index: list[str], value: dict[str, Any]) -> None:
    operation = {"op": "put", "namespace": ["notes"], "key": "k", "value": value, "index": index}
    memory.items_batch([operation])


@pytest.mark.parametrize("path", EXPANDING)
def test_expanding_path_is_refused(memory: MemoryClient, path: str) -> None:
    with pytest.raises(InvalidRequest, match="index: "):
        put(memory, [path], {"a": "words"})


def test_expanding_paths_do_not_stop_the_service(service: LocalService, memory: MemoryClient) -> None:
    nested: dict[str, Any] = {"a": "words", "b": "words"}
    for _ in range(40):
        nested = {"a": nested, "b": "words"}

    def attack(number: int) -> None:
        with pytest.raises(InvalidRequest), service.client(user="mallory", agent="support") as mallory:
            put(mallory, ["{a,b}" * 160 + str(number)], nested)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attack, range(AT_ONCE)))
    put(memory, ["{a,b}"], {"a": "words"})


# One owner's long turns


TURN_CHARS, TURNS, READERS_OF_MALLORY, RECALLS = 300_000, 60, 12, 12


@pytest.fixture
def busy(database_url: str) -> Iterator[LocalService]:
    """A service that consolidates while it serves. Its deadline is long for a machine with other work, and far below
    the minutes that reading the whole backlog takes."""
    options: dict[str, Any] = {"embedder": "hash", "allow_user_level": True, "tier_deadline": 10}
    with LocalService(database_url=database_url, **options) as running:
        yield running


def long_turn(number: int) -> str:
    words = " ".join(f"word{number}x{position}" for position in range(TURN_CHARS // 12))
    return f"Turn {number} is about zebras. {words}"


def test_backlog_of_one_owner_takes_nothing_from_another(busy: LocalService) -> None:
    """Mallory's 18 MB are written, searched and listed all the time, in vain. Each answer to Ana has all tiers."""
    done = Event()
    outcomes: Counter[str] = Counter()

    def read_all_the_time(number: int) -> None:
        with busy.client("mallory", "support", timeout=60) as mallory:
            while not done.is_set():
                try:
                    if number % 3:
                        mallory.recall("word5x7 zebras", session_id="s1", token_budget=4_000)
                    else:
                        mallory.list(limit=1_000)
                    outcomes["answered"] += 1
                except Unavailable:
                    outcomes["unavailable"] += 1

    with busy.client("ana", "support", timeout=60) as ana, ThreadPoolExecutor(READERS_OF_MALLORY + 1) as pool:
        ana.write("s1", [{"role": "user", "content": "My train leaves at noon."}])
        with busy.client("mallory", "support", timeout=120) as mallory:
            mallory.write("s1", [{"role": "user", "content": long_turn(number)} for number in range(TURNS)])
        attack = [pool.submit(read_all_the_time, number) for number in range(READERS_OF_MALLORY)]
        try:
            for number in range(RECALLS):
                ana.write("s2", [{"role": "user", "content": f"Remark {number} about the train."}])
                answer = ana.recall("train at noon", session_id="s2")
                assert answer.degraded == []
                assert "My train leaves at noon." in [memory.text for memory in answer.memories]
                assert answer.window[-1].content == f"Remark {number} about the train."
                assert len(ana.list(limit=100).items) == number + 2
        finally:
            done.set()
        for reader in attack:
            reader.result()
    assert outcomes["answered"] > 0
