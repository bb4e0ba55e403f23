"""Races on API keys: rotations and revocations at the same time, and calls meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TypeVar

import httpx
import pytest

from fixtures.keys import make_key
from threefold.errors import Conflict
from threefold_server.clock import DAY, now_micros
from threefold_server.http import key_identity
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.store import keys

T = TypeVar("T")
AT_ONCE = 8
SERVICES = {"sqlite": 1, "postgresql": 3}


@pytest.fixture
def connections(database_url: str) -> Iterator[list[Database]]:
    """Connections as of several commands of an operator."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Database(database_url))) for _ in range(AT_ONCE)]


@pytest.fixture
def clients(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[httpx.Client]]:
    """Clients of several services in mode `keys`, which remember a key for a short time."""
    monkeypatch.setattr(key_identity, "CACHE_MICROS", 50_000)
    with ExitStack() as stack:
        opened: list[httpx.Client] = []
        for _ in range(SERVICES[database_url.partition(":")[0]]):
            service = stack.enter_context(LocalService(database_url=database_url, mode="keys", embedder="hash"))
            client = httpx.Client(base_url="http://threefold.local", transport=service.transport())
            opened.append(stack.enter_context(client))
        yield opened


def at_once(connections: list[Database], function: Callable[[Database], T]) -> list[T]:
    with ThreadPoolExecutor(len(connections)) as pool:
        return list(pool.map(function, connections))


def key_id_of(token: str) -> str:
    return token.split("_")[1]


def is_proven(database: Database, token: str) -> bool:
    return database.read_sync("system", lambda c: keys.verify(c, token, now_micros())) is not None


def test_a_key_is_revoked_once(connections: list[Database], database_url: str) -> None:
    key_id = key_id_of(make_key(database_url))
    revoked = at_once(connections, lambda d: d.write_sync("system", lambda c: keys.revoke(c, key_id, now_micros())))
    assert sorted(revoked) == [False] * (AT_ONCE - 1) + [True]


def test_a_key_has_two_tokens_at_most_while_it_is_rotated(connections: list[Database], database_url: str) -> None:
    """With grace one rotation succeeds, and without grace each of them ends the token before it."""
    first = make_key(database_url)

    def rotate(database: Database, grace: int) -> str | None:
        now = now_micros()
        try:
            return database.write_sync("system", lambda c: keys.rotate(c, key_id_of(first), now, now + grace))
        except Conflict:
            return None

    with_grace = [token for token in at_once(connections, lambda d: rotate(d, DAY)) if token]
    assert len(with_grace) == 1
    assert is_proven(connections[0], first)
    without_grace = [token for token in at_once(connections, lambda d: rotate(d, 0)) if token]
    assert len(without_grace) == AT_ONCE
    alive = [token for token in (first, *with_grace, *without_grace) if is_proven(connections[0], token)]
    assert len(alive) == 1
    assert alive[0] in without_grace


def test_no_token_survives_a_revocation_during_rotations(connections: list[Database], database_url: str) -> None:
    for _ in range(5):
        token = make_key(database_url)

        def act(database: Database, token: str = token) -> str | None:
            now, key_id = now_micros(), key_id_of(token)
            if database is connections[3]:
                database.write_sync("system", lambda c: keys.revoke(c, key_id, now))
                return None
            return database.write_sync("system", lambda c: keys.rotate(c, key_id, now, now))

        tokens = [token, *filter(None, at_once(connections, act))]
        assert not any(is_proven(connections[0], each) for each in tokens)


def test_calls_during_a_revocation_are_answered_or_refused_and_then_refused(
    clients: list[httpx.Client], connections: list[Database], database_url: str
) -> None:
    tokens = [make_key(database_url, user_value=f"user{number}") for number in range(AT_ONCE)]
    calls = [(client, token) for token in tokens for client in clients]
    revoked: list[str] = []

    def call_until_refused(client: httpx.Client, token: str) -> Counter[int]:
        """Call again and again; whoever is refused stays refused."""
        headers = {"Authorization": f"Bearer {token}"}
        statuses = Counter[int]()
        while 401 not in statuses:
            body = {"session_id": "s", "turns": [{"role": "user", "content": "hello"}]}
            statuses[client.post("/v1/write", json=body, headers=headers).status_code] += 1
            if 401 in statuses:
                assert token in revoked
        for _ in range(3):
            assert client.get("/v1/whoami", headers=headers).status_code == 401
        return statuses

    def revoke(number: int) -> None:
        revoked.append(tokens[number])
        connections[number].write_sync("system", lambda c: keys.revoke(c, key_id_of(tokens[number]), now_micros()))

    with ThreadPoolExecutor(len(calls) + AT_ONCE) as pool:
        answers: list[Future[Counter[int]]] = [pool.submit(call_until_refused, *call) for call in calls]
        time.sleep(0.2)
        list(pool.map(revoke, range(AT_ONCE)))
        for answer in answers:
            assert set(answer.result()) <= {200, 202, 401}


def test_a_new_key_works_in_every_service_at_once(
    clients: list[httpx.Client], connections: list[Database], database_url: str
) -> None:
    tokens = [f"tf_{keys.new_key_id()}_unknown" for _ in range(AT_ONCE)]
    for token in tokens:
        for client in clients:
            assert client.get("/v1/whoami", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    made = at_once(connections, lambda _: make_key(database_url))
    assert len(set(made)) == AT_ONCE
    for token in made:
        for client in clients:
            assert client.get("/v1/whoami", headers={"Authorization": f"Bearer {token}"}).status_code == 200
