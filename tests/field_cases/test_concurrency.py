"""Reports on concurrency and order: no write is lost, stored twice, or blocked by another writer."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.consolidation import World
from fixtures.faults import check_consistent, check_turns
from fixtures.talk import said
from threefold import MemoryClient
from threefold.errors import Conflict, InternalError, NotFound, RevisionConflict
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.tables import turns

pytestmark = pytest.mark.anyio


def test_stale_writer_is_refused(memory: MemoryClient) -> None:
    """Reported: writers were either refused as stale by mistake or interleaved silently.

    The check compares revision numbers, so turns of the same microsecond are never stale.
    """
    at = datetime(2026, 1, 1, tzinfo=UTC)
    memory.write("s1", [said("first", created_at=at)], expected_revision=0)
    with pytest.raises(RevisionConflict) as refusal:
        memory.write("s1", [said("stale", created_at=at)], expected_revision=0)
    revision = refusal.value.details["revision"]
    for number in range(10):
        answer = memory.write("s1", [said(f"fresh {number}", created_at=at)], expected_revision=revision)
        revision = answer.revision
    contents = [turn.content for turn in memory.turns("s1").turns]
    assert contents == ["first", *(f"fresh {number}" for number in range(10))]


def test_losers_of_a_race_get_the_current_revision(memory: MemoryClient, caplog: pytest.LogCaptureFixture) -> None:
    """Reported: expected conflicts were logged as errors with traces. One of a hundred writes wins, the others get
    409."""

    def write(number: int) -> int:
        try:
            memory.write("s1", [said(f"racer {number}")], expected_revision=0)
        except RevisionConflict as lost:
            return int(lost.details["revision"])
        return 0

    with ThreadPoolExecutor(10) as pool:
        assert Counter(pool.map(write, range(100))) == {0: 1, 1: 99}
    assert len(memory.turns("s1").turns) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_one_of_many_concurrent_updates_of_a_fact_wins(memory: MemoryClient) -> None:
    """Each update names the version it replaces, so two versions are never current at the same time."""
    fact = memory.save("the heron is grey")

    def change(number: int) -> int:
        try:
            memory.update_fact(fact.id, text=f"the heron is number {number}")
        except Conflict:
            return 0
        return 1

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(change, range(20))) == 1
    versions = memory.fact_history(fact.id).versions
    assert [version.valid_to is None for version in versions] == [False, True]
    assert [item.id for item in memory.list().items] == [versions[1].id]


def test_failed_write_leaves_no_lock_and_no_partial_data(
    service: LocalService, memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported: one bad item left the store locked for all. A refused write and an internal error behave the same."""
    memory.write("s1", [said("one", id="1")])
    with pytest.raises(Conflict):
        memory.write("s1", [said("new", id="2"), said("other", id="1")])
    with monkeypatch.context() as fault:

        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        fault.setattr("threefold_server.storage.sessions.sessions.advance", fail)
        with pytest.raises(InternalError):
            memory.write("s1", [said("new", id="2")], expected_revision=1)  # several statements on Postgres as well
    with service.client(user="ana", agent="support") as other:
        assert other.write("s1", [said("two", id="3")]).last_seq == 2
    assert [turn.id for turn in memory.turns("s1").turns] == ["1", "3"]


async def test_failed_statement_leaves_the_next_one_unaffected(world: World) -> None:
    """Reported: after one bad write all later ones failed, because the transaction was never rolled back."""
    database, owner = world.service.database, world.caller.owner

    def fail(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.execute("SELECT no_such_column").fetchall()

    for pipelined in (True, False):
        for run in (database.write, database.read):
            with pytest.raises(Exception, match=r"no_such_column|did not answer"):
                await run(owner, fail, pipelined=pipelined)
    for number in range(20):  # more than there are connections
        await world.write("s1", f"turn {number}")
    assert len(world.rows(turns)) == 20


def test_concurrent_first_starts_on_an_empty_directory(tmp_path: Path) -> None:
    """Reported: the first requests after a deployment failed with "table does not exist" or "locked"."""

    def start(number: int) -> None:
        with LocalService(tmp_path / "store", embedder="hash") as service, service.client() as memory:
            for turn in range(5):
                memory.write("s1", [said("hello", id=f"{number}.{turn}")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    with LocalService(tmp_path / "store", embedder="hash") as service, service.client() as memory:
        check_turns(memory, {"s1": [f"{number}.{turn}" for number in range(4) for turn in range(5)]})


def test_concurrent_calls_of_every_kind_end_in_a_consistent_store(database_url: str) -> None:
    """Reported: the SQLite history was locked when several sessions ran in parallel.

    Two services on one database write, recall, save, update, forget and fold for one owner. No call fails because of
    another, and the tiers agree at the end.
    """
    marks: dict[str, Any] = {"token_budget": 120, "compaction_trigger": 100, "compaction_target": 40}
    settings: dict[str, Any] = {"embedder": "hash", **marks}

    def work(client: MemoryClient, number: int) -> None:
        for step in range(12):
            session = f"s{step % 2}"
            client.write(session, [said(f"the heron of {number} lands {step} times", id=f"{number}.{step}")])
            client.recall("heron", session_id=session)
            fact = client.save(f"the heron of {number} is number {step}", session_id=session)
            with suppress(NotFound):
                client.update_fact(fact.id, text="the heron moved")
            with suppress(NotFound):
                client.end(session)
            if step % 4 == 3:
                client.forget(session_id=session)
            elif step % 4 == 1:
                client.forget(memory_ids=[fact.id, f"{number}.{step}"])

    with (
        LocalService(database_url=database_url, **settings) as one,
        LocalService(database_url=database_url, **settings) as two,
        one.client() as first,
        two.client() as second,
    ):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [first, second, first, second], range(4)))
        for session in first.sessions().sessions:
            first.end(session.session_id, wait=30)
            first.wait(session.session_id)
        check_consistent(database_url)
