"""Writes on SQLite: requests before background work, which holds the write lock briefly, and a free lock is taken."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import Connection

from threefold_server.storage.engine import group_commit
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.write_lock import begin_immediate, is_busy

pytestmark = pytest.mark.anyio

NORMAL, FULL = 1, 2


class Ran(NamedTuple):
    """A write that has run."""

    name: str
    transaction: int
    synchronous: int


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    with closing(Database(sqlite_url)) as opened:
        yield opened


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each transaction."""
    begun: list[None] = []

    def begin(*arguments: Any, **options: Any) -> None:
        begun.append(None)
        begin_immediate(*arguments, **options)

    monkeypatch.setattr(group_commit, "begin_immediate", begin)
    return begun


async def run_behind_a_slow_write(database: Database, transactions: list[None], *names: str) -> list[Ran]:
    """Hand over writes in this order while another one runs; return them in the order in which they ran."""
    running, go_on = threading.Event(), threading.Event()
    ran: list[Ran] = []

    def block(_: Connection) -> None:
        running.set()
        go_on.wait()

    def note(connection: Connection, name: str) -> None:
        driver: Any = connection.connection.driver_connection
        ran.append(Ran(name, len(transactions), driver.execute("PRAGMA synchronous").fetchone()[0]))

    async with anyio.create_task_group() as group:
        group.start_soon(database.write, "system", block)
        await anyio.to_thread.run_sync(running.wait)
        for name in names:
            write = partial(database.write, "system", partial(note, name=name), background=name.startswith("work"))
            group.start_soon(write)
            await anyio.lowlevel.checkpoint()
        go_on.set()
    return ran


async def test_requests_come_before_older_background_work(
    database: Database, transactions: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PATIENCE_SECONDS", math.inf)
    ran = await run_behind_a_slow_write(database, transactions, "work 1", "request 1", "work 2", "request 2")
    assert [(name, number) for name, number, _ in ran] == [
        ("request 1", 2),
        ("request 2", 2),
        ("work 1", 3),
        ("work 2", 4),
    ]


async def test_background_work_that_has_waited_long_enough_comes_first(
    database: Database, transactions: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PATIENCE_SECONDS", 0.0)
    ran = await run_behind_a_slow_write(database, transactions, "request 1", "work", "request 2")
    assert [(name, number) for name, number, _ in ran] == [("request 1", 2), ("work", 3), ("request 2", 4)]


async def test_only_requests_wait_for_the_disk(database: Database, transactions: list[None]) -> None:
    ran = await run_behind_a_slow_write(database, transactions, "work", "request")
    assert {name: synchronous for name, _, synchronous in ran} == {"work": NORMAL, "request": FULL}


async def test_transaction_of_a_command_waits_for_the_disk_after_background_work(database: Database) -> None:
    await database.write("system", lambda _: None, background=True)

    def synchronous(connection: Connection) -> int:
        driver: Any = connection.connection.driver_connection
        return driver.execute("PRAGMA synchronous").fetchone()[0]

    assert database.write_sync("system", synchronous) == FULL


def test_lock_of_another_process_is_waited_for_and_then_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
        closing(sqlite3.connect(path, isolation_level=None)) as own,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as refused:
            begin_immediate(own, 0.05)
        assert is_busy(refused.value)
        release = threading.Timer(0.05, other.execute, ("COMMIT",))
        release.start()
        begin_immediate(own, 60)
        assert own.in_transaction
        release.join()


def test_error_that_waiting_cannot_repair_is_raised_at_once(tmp_path: Path) -> None:
    (tmp_path / "diary.db").write_text("This is a diary, not a database." * 100)
    with closing(sqlite3.connect(tmp_path / "diary.db", isolation_level=None)) as own:
        with pytest.raises(sqlite3.DatabaseError) as refused:
            begin_immediate(own, 600)
        assert not is_busy(refused.value)
