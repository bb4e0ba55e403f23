"""An ordinary write on Postgres: one round trip, with the same rows as the general path."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import psycopg
import pytest
from anyio.abc import TaskGroup
from sqlalchemy import Connection, select

from fixtures.consolidation import START, World, build_world, until
from threefold.contract import TurnIn, WriteRequest, WriteResponse
from threefold_server.operations.write import _Append  # pyright: ignore[reportPrivateUsage]
from threefold_server.rules.access import Reach, session_scope
from threefold_server.storage.engine.tables import owners, sessions, tasks, turns
from threefold_server.storage.erasure import erased_ids, forget_records
from threefold_server.storage.sessions import append
from threefold_server.storage.sessions.append import Thresholds, send_append
from threefold_server.storage.sessions.turns import rows_of

pytestmark = pytest.mark.anyio

LONG = "word " * 30
"""About 30 tokens; a few such turns are folded."""


@pytest.fixture
def world(postgres_url: str) -> Iterator[World]:
    world = build_world(postgres_url, extracts=True)
    yield world
    world.service.database.close()


def said(key: str, **options: Any) -> TurnIn:
    return TurnIn(role="user", content=f"{key} {LONG}", id=key, **options)


async def begin(world: World) -> None:
    """Make the first writes of sessions, which use the general path."""
    await world.write("s1", said("0"))
    await world.write("s2", said("0"))
    world.clock.advance(1)


async def go_on(world: World) -> list[WriteResponse]:
    return [
        await world.write("s1", said("1", payload='{"a": "\\\\ \\" \\u00e9"}', name="Ana"), said("2", group="g")),
        await world.write("s1", *(said(key) for key in "34é😀")),
        await world.write("s2", said("1", created_at="2026-01-02T03:04:05+02:00"), said("2", kind="tool_call")),
        await world.write("s2", said("3"), visibility="session", run_end=True),
    ]


async def test_fast_path_stores_the_same_rows_as_the_general_path(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(world)
    with only_at_once(monkeypatch):
        answers = await go_on(world)
    assert {answer.scheduled for answer in answers} == {True, False}
    tables = (owners, sessions, turns, tasks)
    left = [world.rows(table) for table in tables]
    assert {row.kind for row in left[3] if row.due_at == world.clock.now} == {"fold", "extract"}
    world.write_sync(lambda c: [c.execute(table.delete()) for table in reversed(tables)])
    world.clock.now = START
    monkeypatch.setattr(_Append, "fits_fast_path", False)
    await begin(world)
    assert await go_on(world) == answers
    assert [world.rows(table) for table in tables] == left


@contextmanager
def only_at_once(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Fail if a write uses the general path."""

    def goes(*_: object) -> None:
        raise AssertionError("the general way")

    with monkeypatch.context() as patched:
        patched.setattr(_Append, "run", goes)
        yield


async def test_owner_without_a_name_gets_it_again(world: World) -> None:
    """A forget of everything can clear the name while a new session starts."""
    await world.write("s1", said("1"))
    world.write_sync(lambda connection: connection.execute(owners.update().values(name="")))
    await world.write("s1", said("2"))
    assert [row.name for row in world.rows(owners)] == [world.caller.owner_name]


async def test_known_and_erased_turns_use_the_general_path(world: World) -> None:
    await world.write("s1", said("1"), said("2"))
    await world.write("s1", said("2"), said("3"))
    await world.forget(session_id="s1")
    await world.write("s1", said("3"), said("4"))
    assert [(row.seq, row.turn_id) for row in world.rows(turns)] == [(1, "4")]


async def test_append_of_another_owner_changes_nothing(world: World) -> None:
    await world.write("s1", said("1"))
    scope, thresholds = session_scope(world.caller, "s1"), Thresholds(fold_above=0, extract_every=1, idle_at=START)
    rows = rows_of([(said("2"), 30)], after=0, visibility=Reach.user, now=START)
    start = partial(send_append, scope=scope, rows=rows, thresholds=thresholds, now=START)
    left = [world.rows(table) for table in (sessions, turns, tasks)]
    assert await world.service.database.write_at_once(uuid4(), start) is None
    assert [world.rows(table) for table in (sessions, turns, tasks)] == left
    assert await world.service.database.write_at_once(world.caller.owner, start)


async def test_session_created_after_the_lock_uses_the_general_path(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock found no row, so another writer could use the same turn numbers."""
    scope, lock = session_scope(world.caller, "s1"), append._LOCK  # pyright: ignore[reportPrivateUsage]
    rows = rows_of([(said("2"), 30)], after=0, visibility=Reach.user, now=START)
    thresholds = Thresholds(fold_above=0, extract_every=1, idle_at=START)

    class Between:
        def run(self, connection: Connection, **key: Any) -> None:
            lock.run(connection, **key)
            request = WriteRequest(session_id="s1", turns=[said("1")])
            other = _Append(world.service, world.caller, scope, request, [30], START)
            world.service.database.write_sync(scope.owner, other.run)

    monkeypatch.setattr(append, "_LOCK", Between())
    start = partial(send_append, scope=scope, rows=rows, thresholds=thresholds, now=START)
    done = await anyio.to_thread.run_sync(lambda: world.service.database.write_sync(scope.owner, lambda c: start(c)()))
    assert done is None
    assert [row.turn_id for row in world.rows(turns)] == ["1"]


class Held:
    """Stops a transaction with its locks until a writer waits for it."""

    def __init__(self) -> None:
        self._stands, self._goes_on = Event(), Event()

    def __call__(self, *_: object) -> None:
        self._stands.set()
        assert self._goes_on.wait(60)

    async def until_waited_for(
        self, postgres_url: str, group: TaskGroup, writer: Callable[[], Coroutine[Any, Any, Any]]
    ) -> None:
        await anyio.to_thread.run_sync(self._stands.wait, 60)
        group.start_soon(writer)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            await until(lambda: bool(connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall()))
        self._goes_on.set()


async def test_turn_erased_while_its_writer_waits_stays_erased(world: World, postgres_url: str) -> None:
    await world.write("s1", said("1"))
    held = Held()

    def erase(connection: Connection) -> None:
        connection.execute(select(sessions.c.session).with_for_update()).all()
        held()
        erased_ids.mark_erased(connection, world.caller.owner, [(world.key("s1"), "2")], START + 1_000_000)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, world.write_sync, erase)
        await held.until_waited_for(postgres_url, group, partial(world.write, "s1", said("2")))
    assert [row.turn_id for row in world.rows(turns)] == ["1"]


async def test_late_write_that_waits_for_a_forget_restores_no_session(
    world: World, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.write("s1", said("1"))
    held = Held()
    monkeypatch.setattr(forget_records, "require_purge", held)  # the last step of a forget
    async with anyio.create_task_group() as group:
        group.start_soon(partial(world.forget, session_id="s1"))
        await held.until_waited_for(postgres_url, group, partial(world.write, "s1", said("1")))
    assert world.rows(sessions) == []
