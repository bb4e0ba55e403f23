"""Every call to the database ends: after its deadline, when cancelled, behind others, and when the service stops."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial

import anyio
import pytest
from sqlalchemy import Connection, Select, func, literal, select, text

from threefold.errors import Unavailable
from threefold_server.settings import DATABASE_THREADS
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.deadline import Lane, allowed

pytestmark = pytest.mark.anyio

ENDLESS = text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n"
)
ONE: Select[int] = select(literal(1))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def endless(connection: Connection) -> None:
    connection.execute(ENDLESS)


def one(connection: Connection) -> int:
    return connection.execute(ONE).scalar_one()


async def test_read_ends_at_its_deadline_and_frees_its_thread(database_url: str) -> None:
    allowed.set(0.2)
    with closing(Database(database_url)) as database:
        for _ in range(DATABASE_THREADS + 1):
            with pytest.raises(Unavailable) as late:
                await database.read("system", endless)
            assert "outcome" not in late.value.details
        allowed.set(30)
        assert await database.read("system", one) == 1
        await database.aclose()


async def test_cancelled_reads_free_their_threads(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        assert await database.read("system", one) == 1
        async with anyio.create_task_group() as group:
            for _ in range(2 * DATABASE_THREADS):
                group.start_soon(database.read, "system", endless)
            await anyio.sleep(0.1)
            group.cancel_scope.cancel()
        assert await database.read("system", one) == 1
        await database.aclose()


async def test_cancelled_read_keeps_its_connection_to_postgres(postgres_url: str) -> None:
    """The server is asked to end the statement, because a new connection costs both sides several milliseconds."""

    def backend(connection: Connection) -> int:
        return connection.execute(select(func.pg_backend_pid())).scalar_one()

    def states(connection: Connection, pid: int) -> list[str]:
        query = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
        return [state for (state,) in connection.execute(query, {"pid": pid})]

    with closing(Database(postgres_url)) as database:
        pid = await database.read("system", backend)
        with anyio.move_on_after(0.3):
            await database.read("system", endless)
        while (found := await database.write("system", partial(states, pid=pid))) == ["active"]:  # noqa: ASYNC110
            await anyio.sleep(0.02)
        assert found in (["idle"], ["idle in transaction (aborted)"])
        await database.aclose()


async def test_readiness_does_not_wait_for_other_threads(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        async with anyio.create_task_group() as group:
            for _ in range(DATABASE_THREADS):
                group.start_soon(database.read, "system", endless)
            await anyio.sleep(0.1)
            assert await database.probe("system", one, 30) == 1
            group.cancel_scope.cancel()
        await database.aclose()


async def test_stopping_service_ends_its_calls(database_url: str) -> None:
    database = Database(database_url)
    async with anyio.create_task_group() as group:

        async def call() -> None:
            with pytest.raises(Unavailable):
                await database.read("system", endless)

        group.start_soon(call)
        await anyio.sleep(0.1)
        await database.aclose()


async def test_outcome_of_work_that_does_not_return_depends_on_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that started has an unknown outcome; one that waited for a thread was never run."""
    monkeypatch.setattr("threefold_server.storage.engine.deadline.SLACK_SECONDS", 0)
    held = threading.Event()
    ran: list[int] = []
    lane = Lane(1)
    with pytest.raises(Unavailable, match="may or may not be stored") as begun:
        await lane.run(0.5, held.wait, writing=True)
    assert begun.value.details["outcome"] == "unknown"
    with pytest.raises(Unavailable, match="nothing was stored") as waiting:
        await lane.run(0.5, lambda: ran.append(1), writing=True)
    assert "outcome" not in waiting.value.details
    held.set()
    assert await lane.run(30, lambda: 2) == 2
    assert ran == []
    await lane.aclose()
