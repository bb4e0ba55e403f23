"""Transactions that lose a race on Postgres are run again, and other errors are raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.exc import IntegrityError, ProgrammingError

from threefold_server.storage.engine import races
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.races import ATTEMPTS
from threefold_server.storage.engine.tables import owners, sessions

FIRST, SECOND = sorted([uuid4(), uuid4()])


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    with closing(Database(postgres_url)) as database:
        database.write_sync("system", lambda c: [add(c, owner) for owner in (FIRST, SECOND)])
        yield database


def add(connection: Connection, owner: UUID) -> None:
    connection.execute(insert(owners).values(owner=owner, kind="user", name="", created_at=0))


def rename(connection: Connection, owner: UUID, name: str) -> None:
    connection.execute(update(owners).where(owners.c.owner == owner).values(name=name))


def names(database: Database) -> list[str]:
    return sorted(database.read_sync("system", lambda c: c.execute(select(owners.c.name)).scalars().all()))


def meet(barrier: Barrier) -> None:
    """Wait for the other transaction; in a second run it does not come."""
    try:
        barrier.wait(5)
    except BrokenBarrierError:
        return


def both(*functions: Any) -> None:
    """Run functions in parallel until all have returned."""
    threads = [Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_both_transactions_of_a_deadlock_succeed(database: Database) -> None:
    barrier, runs = Barrier(2), list[str]()

    def crossing(name: str, here: UUID, there: UUID) -> None:
        def cross(connection: Connection) -> None:
            runs.append(name)
            rename(connection, here, f"{name} 1")
            if len(runs) <= 2:
                meet(barrier)
            rename(connection, there, f"{name} 2")

        database.write_sync("system", cross)

    both(lambda: crossing("a", FIRST, SECOND), lambda: crossing("b", SECOND, FIRST))
    assert len(runs) == 3  # the loser ran twice
    assert sorted({name[0] for name in names(database)}) == [runs[2]]


def test_transaction_that_loses_a_unique_race_runs_again_and_finds_the_row(database: Database) -> None:
    barrier, key = Barrier(2), uuid4()
    made: list[bool] = []

    def add_unless_there() -> None:
        def run(connection: Connection) -> bool:
            found = connection.execute(select(owners).where(owners.c.owner == key)).first()
            if found is None:
                if not barrier.broken:
                    meet(barrier)
                add(connection, key)
            return found is None

        made.append(database.write_sync("system", run))

    both(add_unless_there, add_unless_there)
    assert sorted(made) == [False, True]


def test_serialization_failure_is_run_again(database: Database) -> None:
    runs: list[int] = []

    def read_then_write(connection: Connection) -> None:
        runs.append(connection.execute(text("SELECT count(*) FROM owners")).scalar_one())
        if len(runs) == 1:
            database.write_sync("system", lambda c: rename(c, FIRST, "other"))
        rename(connection, FIRST, "own")

    database.snapshot_sync("system", read_then_write)
    assert len(runs) == 2
    assert names(database) == ["", "own"]


@pytest.mark.parametrize("pipelined", [False, True])
def test_repeated_conflict_is_raised_after_a_limited_number_of_runs(
    database: Database, pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "FIRST_PAUSE", 0)
    runs: list[int] = []
    values = {"owner": FIRST, "kind": "user", "name": "", "created_at": 0}

    def clash(connection: Connection) -> None:
        runs.append(1)
        if pipelined:
            Prepared(insert(owners).values(values)).run(connection)
        else:
            add(connection, FIRST)

    driver: Any = database._reader.dialect.loaded_dbapi  # pyright: ignore[reportPrivateUsage]
    run: Any = database._pipelined_sync if pipelined else database.write_sync  # pyright: ignore[reportPrivateUsage]
    with pytest.raises((IntegrityError, driver.IntegrityError)):
        run("system", clash)
    assert len(runs) == ATTEMPTS


def test_other_errors_are_raised_at_once(database: Database) -> None:
    runs: list[int] = []

    def fail(connection: Connection) -> None:
        runs.append(1)
        connection.execute(text("SELECT nothing FROM nowhere"))

    with pytest.raises(ProgrammingError):
        database.write_sync("system", fail)
    assert len(runs) == 1


def test_row_whose_parent_is_missing_is_written_again(database: Database) -> None:
    """The owner is deleted between its check and the first write."""
    owner, runs = uuid4(), list[int]()

    def write(connection: Connection) -> None:
        runs.append(1)
        if len(runs) > 1:
            add(connection, owner)
        values = {"owner": owner, "session": uuid4(), "agent": "a", "session_id": "s", "created_at": 0, "updated_at": 0}
        connection.execute(insert(sessions).values(values))

    database.write_sync("system", write)
    assert len(runs) == 2
