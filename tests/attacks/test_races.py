"""Many concurrent first calls to several services, for one owner, session, item, thread or fact, with forgets.

Each call is answered as if it were alone: no error, nothing lost, and nothing stored twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.faults import Serving
from threefold_server.local import LocalService

CALLS = 24
SERVICES = {"sqlite": 1, "postgresql": 4}
SERVED = {200, 201, 202}

Call = tuple[str, str, dict[str, Any]]


class Attack:
    """Sends calls to all services at once, as one user."""

    def __init__(self, clients: list[httpx.Client]) -> None:
        self._clients = clients

    def at_once(self, calls: list[Call], user: str = "ana") -> Counter[int]:
        """Send all calls, each in its own thread, and return the number of answers by status."""
        with ThreadPoolExecutor(len(calls)) as pool:
            clients = islice(cycle(self._clients), len(calls))
            return Counter(pool.map(self._send, clients, calls, repeat(user)))

    def get(self, path: str, user: str = "ana") -> Any:
        return self._clients[0].get(path, headers=_as(user)).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any], user: str = "ana") -> Any:
        return self._clients[0].post(path, json=body, headers=_as(user)).raise_for_status().json()

    def _send(self, client: httpx.Client, call: Call, user: str) -> int:
        method, path, body = call
        return client.request(method, path, json=body, headers=_as(user)).status_code


def _as(user: str) -> dict[str, str]:
    return {"X-Threefold-User": user, "X-Threefold-Agent": "support"}


@pytest.fixture
def attack(database_url: str) -> Iterator[Attack]:
    """One service on SQLite, which has one writer, or four on Postgres, each with its own connections."""
    with ExitStack() as stack:
        clients: list[httpx.Client] = []
        for _ in range(SERVICES[database_url.partition(":")[0]]):
            service = stack.enter_context(
                LocalService(database_url=database_url, embedder="hash", allow_user_level=True)
            )
            client = httpx.Client(base_url="http://threefold.local", transport=service.transport())
            clients.append(stack.enter_context(client))
        yield Attack(clients)


def write(session: str, turn: str) -> Call:
    turns = [{"role": "user", "content": f"turn {turn} " + "word " * 50, "id": turn}]
    return "POST", "/v1/write", {"session_id": session, "turns": turns}


def save(number: int) -> Call:
    return "POST", "/v1/facts", {"text": f"Fact number {number}."}


def put(key: str) -> Call:
    ops = [{"op": "put", "namespace": ["n"], "key": key, "value": {"text": key}, "index": ["text"]}]
    return "POST", "/v1/items/batch", {"ops": ops}


def checkpoint(thread: str, key: str) -> Call:
    blob = {"channel": "c", "version": key, "type": "t", "data": "AA=="}
    body = {"checkpoint_id": key, "type": "t", "data": "AA==", "versions": {"c": key}, "blobs": [blob]}
    return "POST", f"/v1/threads/{thread}/checkpoints", body


KINDS: dict[str, Callable[[int], Call]] = {
    "turns of one session": lambda number: write("s", str(number)),
    "one turn": lambda _: write("s", "same"),
    "sessions": lambda number: write(f"s{number}", "1"),
    "facts": save,
    "items": lambda number: put(str(number)),
    "one item": lambda _: put("same"),
    "checkpoints of one thread": lambda number: checkpoint("t", str(number)),
    "one checkpoint": lambda _: checkpoint("t", "same"),
    "threads": lambda number: checkpoint(f"t{number}", "1"),
}


def test_concurrent_first_calls_of_each_kind_succeed(attack: Attack) -> None:
    check_each_kind(attack)


@pytest.mark.timeout(300)
def test_concurrent_first_calls_to_four_processes_succeed(postgres_url: str, tmp_path: Path) -> None:
    """Four services that share nothing but the database."""
    with ExitStack() as stack:
        clients: list[httpx.Client] = []
        for number in range(SERVICES["postgresql"]):
            options = ("--database-url", postgres_url, "--allow-user-level")
            serving = stack.enter_context(Serving(tmp_path / f"log{number}", *options))
            clients.append(stack.enter_context(httpx.Client(base_url=serving.url, timeout=60)))
        attack = Attack(clients)
        check_each_kind(attack)
        check_forgets_and_first_writes(attack)


def check_each_kind(attack: Attack) -> None:
    """Each kind of call is for a new user, whose row only one of the calls creates."""
    for user, call in KINDS.items():
        assert set(attack.at_once([call(number) for number in range(CALLS)], user)) <= SERVED, user
    assert set(attack.at_once([write("fifty", str(number)) for number in range(50)], "fifty")) <= SERVED
    turns = attack.get("/v1/sessions/s/turns?limit=100", "turns of one session")["turns"]
    assert [turn["seq"] for turn in turns] == list(range(1, CALLS + 1))
    assert {turn["id"] for turn in turns} == set(map(str, range(CALLS)))
    assert len(attack.get("/v1/sessions/s/turns", "one turn")["turns"]) == 1
    assert len(attack.get("/v1/sessions?limit=100", "sessions")["sessions"]) == CALLS
    listed = attack.post("/v1/list", {"limit": 100}, "facts")
    assert len(listed["items"]) == CALLS
    assert len(_items(attack, "items")) == CALLS
    assert len(_items(attack, "one item")) == 1
    for user, count in {"checkpoints of one thread": CALLS, "one checkpoint": 1, "threads": CALLS}.items():
        assert len(attack.post("/v1/threads/query", {"limit": 100}, user)["checkpoints"]) == count, user


def _items(attack: Attack, user: str) -> list[Any]:
    found = attack.post("/v1/items/batch", {"ops": [{"op": "search", "prefix": ["n"], "limit": 100}]}, user)
    return found["results"][0]["items"]


def test_concurrent_calls_of_all_kinds_by_a_new_user_succeed(attack: Attack) -> None:
    calls = [
        call
        for number in range(CALLS // 5)
        for call in (
            write("s", str(number)),
            write("other", str(number)),
            save(number),
            put(str(number)),
            checkpoint("s", str(number)),
        )
    ]
    assert set(attack.at_once(calls)) <= SERVED
    assert len(attack.get("/v1/sessions/s/turns")["turns"]) == CALLS // 5
    assert len(_items(attack, "ana")) == CALLS // 5


def test_concurrent_forgets_and_first_writes_succeed(attack: Attack) -> None:
    check_forgets_and_first_writes(attack)


def check_forgets_and_first_writes(attack: Attack) -> None:
    """Each turn is erased or stored, and its session is numbered without gaps."""
    for round_number in range(3):
        forgets: list[Call] = [
            ("POST", "/v1/forget", {"session_id": "s"}),
            ("POST", "/v1/forget", {"level": "user"}),
        ]
        writes = [write("s", f"{round_number}.{number}") for number in range(8)]
        calls = [call for pair in zip(writes, forgets * 4, strict=True) for call in pair]
        calls += [call for number in range(8) for call in (save(number), checkpoint("s", f"{round_number}.{number}"))]
        assert set(attack.at_once(calls)) <= {*SERVED, 409}, round_number  # 409: the thread was just deleted
    assert attack.at_once([("POST", "/v1/forget", {"level": "user"})]) == {200: 1}
    assert attack.get("/v1/sessions")["sessions"] == []
    assert attack.post("/v1/list", {})["items"] == []
