"""A database that hangs or is locked: calls are answered, acknowledged data is kept, and no restart is needed."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.faults import Serving, Writers, check_turns
from fixtures.keys import make_key
from fixtures.postgres import OwnPostgres

ENOUGH = 60.0
"""Seconds in which a call must be answered; without a deadline it waits for the database."""

Call = tuple[str, str, dict[str, Any] | None]

CALLS: list[Call] = [
    ("POST", "/v1/write", {"session_id": "s1", "turns": [{"id": "asked", "role": "user", "content": "heron"}]}),
    ("POST", "/v1/recall", {"query": "heron", "session_id": "s1"}),
    ("POST", "/v1/list", {}),
    ("POST", "/v1/facts", {"text": "Herons are birds."}),
    ("POST", "/v1/forget", {"session_id": "unknown"}),
    ("GET", "/v1/sessions", None),
    ("GET", "/v1/sessions/s1/turns", None),
    ("POST", "/v1/threads/query", {}),
    ("GET", "/v1/admin/owners", None),
    ("GET", "/v1/admin/audit", None),
    ("GET", "/v1/admin/export?user=ana", None),
]


def ask(url: str, call: Call, **headers: str) -> httpx.Response:
    method, path, body = call
    return httpx.request(method, url + path, json=body, timeout=ENOUGH, headers=headers)


def all_at_once(url: str, calls: list[Call], **headers: str) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(partial(ask, url, **headers), calls))


def wait_until_ready(url: str) -> None:
    end = time.monotonic() + ENOUGH
    while httpx.get(f"{url}/readyz", timeout=ENOUGH).status_code != 200:
        assert time.monotonic() < end, "the service does not recover by itself"
        time.sleep(0.05)


def check_refused(answers: list[httpx.Response]) -> None:
    for answer in answers:
        assert answer.status_code == 503, answer.request.url
        assert answer.json()["error"]["code"] == "unavailable"


def check_probes(url: str) -> None:
    """Check that both probes answer at once and that readiness names the cause."""
    ready = httpx.get(f"{url}/readyz", timeout=10)
    assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
    assert ready.elapsed.total_seconds() < 6  # 2 s are promised
    for path in ("/healthz", "/metrics"):
        assert httpx.get(url + path, timeout=10).status_code == 200


@pytest.mark.timeout(300)
def test_calls_are_answered_while_postgres_hangs(own_postgres: OwnPostgres, tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--database-url", own_postgres.url, "--allow-admin") as serving:
        assert ask(serving.url, CALLS[0]).status_code == 200
        with Writers(partial(serving.client, timeout=ENOUGH), ["s2", "s3", "s4", "s5"]) as writers:
            writers.wait_for(40)
            own_postgres.server.freeze()
            for _ in range(2):  # first the calls that detect it, then those refused at once
                check_refused(all_at_once(serving.url, CALLS * 3))
                check_probes(serving.url)
            own_postgres.server.thaw()
            wait_until_ready(serving.url)
            writers.wait_for(40)
            assert writers.failures
        with serving.client() as client:
            check_turns(client, writers.turns)
        assert all(answer.status_code in (200, 201, 202) for answer in all_at_once(serving.url, CALLS))
        assert serving.stop() == 0


@pytest.mark.timeout(120)
def test_write_of_unknown_outcome_says_so(own_postgres: OwnPostgres, tmp_path: Path) -> None:
    """The write reached the server, which stores it later. Repeated with its id, it is stored once."""
    with Serving(tmp_path / "log", "--database-url", own_postgres.url, "--consolidate", "off") as serving:
        turn = {"id": "t1", "role": "user", "content": "heron"}
        first: Call = ("POST", "/v1/write", {"session_id": "s1", "turns": [{**turn, "id": "t0"}]})
        second: Call = ("POST", "/v1/write", {"session_id": "s1", "turns": [turn]})
        assert ask(serving.url, first).status_code == 200
        own_postgres.server.freeze()
        answer = ask(serving.url, second)
        check_refused([answer])
        assert answer.json()["error"]["details"]["outcome"] == "unknown"
        own_postgres.server.thaw()
        wait_until_ready(serving.url)
        again = ask(serving.url, second)
        assert again.status_code == 200
        assert again.json()["last_seq"] == 2


@pytest.mark.timeout(120)
def test_caller_is_refused_while_its_key_cannot_be_read(own_postgres: OwnPostgres, tmp_path: Path) -> None:
    token = make_key(own_postgres.url)
    with Serving(tmp_path / "log", "--database-url", own_postgres.url, "--mode", "keys") as serving:
        own_postgres.server.freeze()
        calls = [call for call in CALLS if "admin" not in call[1]]
        check_refused(all_at_once(serving.url, calls, Authorization=f"Bearer {token}"))
        assert ask(serving.url, CALLS[1]).status_code == 401  # needs no database
        own_postgres.server.thaw()
        wait_until_ready(serving.url)
        assert ask(serving.url, CALLS[1], Authorization=f"Bearer {token}").status_code == 200


@pytest.mark.timeout(120)
def test_service_stops_while_postgres_hangs(own_postgres: OwnPostgres, tmp_path: Path) -> None:
    serving = Serving(tmp_path / "log", "--database-url", own_postgres.url)
    serving.start()
    ask(serving.url, CALLS[0])
    own_postgres.server.freeze()
    assert serving.stop() == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_calls_are_answered_while_the_sqlite_file_is_locked(tmp_path: Path, lock: str) -> None:
    with Serving(tmp_path / "log", "--data", str(tmp_path)) as serving:
        with Writers(partial(serving.client, timeout=ENOUGH), ["s3", "s4"]) as writers:
            writers.wait_for(10)
            with closing(sqlite3.connect(tmp_path / "threefold.db", isolation_level=None, timeout=60)) as other:
                other.execute(lock)
                writes = [_write(f"l{number}") for number in range(100)]
                check_refused(all_at_once(serving.url, writes))
                for read in (("GET", "/v1/sessions", None), ("GET", "/readyz", None), ("GET", "/healthz", None)):
                    assert ask(serving.url, read).status_code == 200  # readers do not wait for a writer
                other.execute("ROLLBACK")
            writers.wait_for(10)
        with serving.client() as client:
            check_turns(client, writers.turns)
            assert "s5" not in [
                session.session_id for session in client.sessions().sessions
            ]  # a refused write is not stored
        _end_while_locked(serving, tmp_path / "threefold.db")


def _write(turn_id: str) -> Call:
    return ("POST", "/v1/write", {"session_id": "s5", "turns": [{"id": turn_id, "role": "user", "content": "heron"}]})


def _end_while_locked(serving: Serving, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert serving.stop() == 0
