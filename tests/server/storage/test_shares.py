"""One owner never holds the database threads of all others."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from uuid import uuid4

import anyio
import pytest
from sqlalchemy import Connection, literal, select

from fixtures.consolidation import until
from threefold.errors import Unavailable
from threefold_server.settings import DATABASE_THREADS
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.deadline import allowed

SHARE = DATABASE_THREADS - 1

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Blocked:
    """Calls that hold their thread until they are let go, whatever their deadline."""

    def __init__(self) -> None:
        self.running = 0
        self._go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, _: Connection) -> None:
        with self._lock:
            self.running += 1
        self._go.wait()

    def let_go(self) -> None:
        self._go.set()


def one(connection: Connection) -> int:
    return connection.execute(select(literal(1))).scalar_one()


async def refused(call: Callable[[], Awaitable[object]]) -> Unavailable:
    with pytest.raises(Unavailable) as refusal:
        await call()
    return refusal.value


@pytest.mark.parametrize("threads", [2, DATABASE_THREADS, 7])
async def test_owner_leaves_a_thread_to_others(database_url: str, threads: int) -> None:
    blocked = Blocked()
    heavy = uuid4()
    with closing(Database(database_url, threads=threads)) as database:
        async with anyio.create_task_group() as group:
            for _ in range(3 * threads):
                group.start_soon(database.read, heavy, blocked)
            await until(lambda: blocked.running == threads - 1)
            for _ in range(3 * threads):
                assert await database.read(uuid4(), one) == 1
            assert await database.read("system", one) == 1
            assert blocked.running == threads - 1
            blocked.let_go()
        assert blocked.running == 3 * threads
        await database.aclose()


async def test_only_the_owner_with_many_calls_is_refused(database_url: str) -> None:
    blocked = Blocked()
    heavy, other = uuid4(), uuid4()
    with closing(Database(database_url)) as database:
        async with anyio.create_task_group() as group:
            for _ in range(SHARE):
                group.start_soon(database.read, heavy, blocked)
            await until(lambda: blocked.running == SHARE)
            allowed.set(0.05)
            refusal = await refused(partial(database.read, heavy, one))
            assert "this owner has" in refusal.message
            assert refusal.details == {"retry_after": 1}
            allowed.set(30)
            assert await database.read(other, one) == 1
            blocked.let_go()
        assert await database.read(heavy, one) == 1
        await database.aclose()


async def test_abandoned_call_holds_its_share_until_its_thread_is_free(database_url: str) -> None:
    """An owner that gives up calls again and again must not collect threads."""
    blocked, owner = Blocked(), uuid4()
    with closing(Database(database_url)) as database:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for _ in range(2 * DATABASE_THREADS):
                    group.start_soon(database.read, owner, blocked)
                await until(lambda: blocked.running == SHARE)
                group.cancel_scope.cancel()
            assert await database.read(uuid4(), one) == 1
            assert blocked.running == SHARE
        blocked.let_go()
        assert [await database.read(owner, one) for _ in range(2 * DATABASE_THREADS)] == [1] * 2 * DATABASE_THREADS
        await database.aclose()


async def test_background_reads_leave_all_readers_free(database_url: str) -> None:
    blocked = Blocked()
    with closing(Database(database_url)) as database:
        async with anyio.create_task_group() as group:
            for _ in range(DATABASE_THREADS):
                group.start_soon(partial(database.read, uuid4(), blocked, background=True))
            await until(lambda: blocked.running > 0)
            for _ in range(2 * DATABASE_THREADS):
                assert await database.read(uuid4(), one) == 1
            blocked.let_go()
        await database.aclose()
