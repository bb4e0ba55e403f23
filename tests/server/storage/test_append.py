"""An ordinary write on Postgres: one round trip, and the same in every row as the general way."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from sqlalchemy import Connection, select

from fixtures.consolidation import START, World, build_world, until
from threefold.contract import TurnIn
from threefold_server.storage import erasures
from threefold_server.storage.tables import owners, sessions, tasks, turns
from threefold_server.write import _Append  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.anyio

LONG = "word " * 30
"""Some 30 tokens: a few of these are folded."""


@pytest.fixture
def world(postgres_url: str) -> Iterator[World]:
    world = build_world(postgres_url, extracts=True)
    yield world
    world.service.database.close()


def said(key: str, **options: Any) -> TurnIn:
    return TurnIn(role="user", content=f"{key} {LONG}", id=key, **options)


async def live(world: World) -> None:
    await world.write("s1", said("1", payload='{"a": "\\\\ \\" \\u00e9"}', name="Ana"), said("2", group="g"))
    world.clock.advance(1)
    await world.write("s1", *(said(key) for key in "34é😀"))
    await world.write("s2", said("1", created_at="2026-01-02T03:04:05+02:00"), said("2", kind="tool_call"))


async def test_it_leaves_the_same_rows_as_the_general_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await live(world)
    tables = (owners, sessions, turns, tasks)
    left = [world.rows(table) for table in tables]
    assert {row.kind for row in left[3] if row.due_at == START + 1_000_000} == {"index", "fold", "extract"}
    world.write_sync(lambda c: [c.execute(table.delete()) for table in reversed(tables)])
    world.clock.now = START
    monkeypatch.setattr(_Append, "is_ordinary", False)
    await live(world)
    assert [world.rows(table) for table in tables] == left


async def test_it_takes_one_round_trip(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The general way begins by asking; a session that has not begun needs it no more than another."""

    def asks(*_: object) -> None:
        raise AssertionError("the general way")

    monkeypatch.setattr("threefold_server.storage.turns.start_contents", asks)
    await live(world)
    assert len(world.rows(turns)) == 8


async def test_what_is_known_or_was_erased_is_left_to_the_general_way(world: World) -> None:
    await world.write("s1", said("1"), said("2"))
    await world.write("s1", said("2"), said("3"))
    await world.forget(session_id="s1")
    await world.write("s1", said("3"), said("4"))
    assert [(row.seq, row.turn_id) for row in world.rows(turns)] == [(1, "4")]


async def test_a_turn_erased_while_its_writer_waits_for_the_session_stays_erased(
    world: World, postgres_url: str
) -> None:
    await world.write("s1", said("1"))
    locked, waits = Event(), Event()

    def erase(connection: Connection) -> None:
        connection.execute(select(sessions.c.session).with_for_update()).all()
        locked.set()
        assert waits.wait(60)
        erasures.mark_erased(connection, world.caller.owner, [(world.key("s1"), "2")], START + 1_000_000)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, world.write_sync, erase)
        await anyio.to_thread.run_sync(locked.wait, 60)
        group.start_soon(world.write, "s1", said("2"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            await until(lambda: bool(connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall()))
        waits.set()
    assert [row.turn_id for row in world.rows(turns)] == ["1"]
