"""Tasks as rows: each is due once and held by one worker, and the functions that read across owners are listed."""

from __future__ import annotations

import inspect

import pytest
from sqlalchemy import Connection

from fixtures.consolidation import SECOND, START, World
from threefold.contract import SessionStatus
from threefold_server.storage.engine.tables import tasks as task_table
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import Claim, TaskKind
from threefold_server.storage.store import system

pytestmark = pytest.mark.anyio

CROSS_OWNER = {
    "can_claim",
    "add_reads",
    "all_owners",
    "claim_due",
    "claim_embedder",
    "database_clock",
    "drop_erased_owners",
    "drop_vectors",
    "due_tasks",
    "embedder_stamp",
    "fold_idle",
    "held_for_all",
    "newest_write",
    "oldest_due",
    "parked_tasks",
    "queue_extraction",
    "rebuild_owner",
    "replace_embedder",
    "requeue_parked",
    "retire_threads",
    "retire_turns",
    "stale_leases",
    "sweep_erased_turns",
    "sweep_expired_facts",
    "sweep_expired_items",
    "task_counts",
    "owners_with_more_passages",
    "vectors_of_others",
}


def test_functions_across_owners_are_listed() -> None:
    public = inspect.getmembers(system, lambda item: inspect.isfunction(item) and item.__module__ == system.__name__)
    assert {name for name, _ in public if not name.startswith("_")} == CROSS_OWNER


def claim(world: World, **wanted: int) -> list[Claim]:
    kinds: dict[TaskKind, int] = {"index": wanted.get("index", 0), "fold": wanted.get("fold", 0)}
    now = world.clock.now
    return world.write_sync(lambda c: system.claim_due(c, kinds, now, now + 60 * SECOND))


def schedule(world: World, session: str, kind: TaskKind, due_at: int) -> None:
    owner, key = world.caller.owner, world.key(session)
    world.write_sync(lambda c: tasks.schedule(c, owner, key, kind, due_at))


def status(world: World, session: str, now: int) -> SessionStatus:
    def read(connection: Connection) -> SessionStatus:
        return tasks.status(connection, world.caller.owner, world.key(session), 0, now)

    return world.service.database.read_sync(world.caller.owner, read)


async def test_longest_due_tasks_are_claimed_first_and_only_once(world: World) -> None:
    for number in range(5):
        await world.write(f"s{number}", "A remark.")
        world.clock.advance(1)
    first = claim(world, index=2)
    assert [found.subject for found in first] == [world.key("s0"), world.key("s1")]
    assert len({found.lease for found in first}) == 2
    assert [found.subject for found in claim(world, index=9)] == [world.key("s2"), world.key("s3"), world.key("s4")]
    assert claim(world, index=9) == []


async def test_each_kind_has_its_own_limit_and_due_time(world: World) -> None:
    await world.write("s1", "A remark.")
    schedule(world, "s1", "fold", world.clock.now + SECOND)
    assert [found.kind for found in claim(world, fold=1)] == []
    world.clock.advance(1)
    assert [found.kind for found in claim(world, index=1, fold=1)] == ["index", "fold"]


async def test_due_task_keeps_its_time_and_parked_task_stays_parked(world: World) -> None:
    await world.write("s1", "A remark.")
    schedule(world, "s1", "index", START + 9)
    assert world.task("s1", "index").due_at == START
    [held] = claim(world, index=1)
    world.write_sync(lambda c: tasks.park(c, held, "no"))
    schedule(world, "s1", "index", START + 9)
    assert world.task("s1", "index").due_at is None
    assert claim(world, index=1) == []


async def test_task_is_due_at_the_earlier_time_unless_it_waits_for_a_retry(world: World) -> None:
    await world.write("s1", "A remark.")
    schedule(world, "s1", "index", START - 9)
    assert world.task("s1", "index").due_at == START - 9
    [held] = claim(world, index=1)
    world.write_sync(lambda c: tasks.retry_later(c, held, 1, START + 9, "no"))
    schedule(world, "s1", "index", START)
    assert world.task("s1", "index").due_at == START + 9


async def test_only_the_holder_changes_a_task(world: World) -> None:
    await world.write("s1", "A remark.")
    [stale] = claim(world, index=1)
    world.clock.advance(61)
    [held] = claim(world, index=1)
    before = world.task("s1", "index")

    def meddle(connection: Connection) -> None:
        tasks.complete(connection, stale)
        tasks.park(connection, stale, "no")
        tasks.retry_later(connection, stale, 1, START, "no")
        tasks.release(connection, stale)
        tasks.advance(connection, stale, 7)

    world.write_sync(meddle)
    assert world.task("s1", "index") == before
    assert not world.write_sync(lambda c: tasks.extend(c, stale, START))
    assert world.write_sync(lambda c: tasks.extend(c, held, START))


async def test_status_of_a_session(world: World) -> None:
    await world.write("s1", "A remark.")
    assert status(world, "s1", START).state == "pending"
    [held] = claim(world, index=1)
    assert status(world, "s1", START).state == "running"
    assert status(world, "s1", START + 60 * SECOND).state == "pending"
    world.write_sync(lambda c: tasks.retry_later(c, held, 3, START + 90 * SECOND, "429"))
    waiting = status(world, "s1", START)
    assert waiting.state == "pending"
    assert waiting.reason == "index: attempt 4 of 8 follows at 2023-11-14T22:14:50+00:00: 429"
    schedule(world, "s1", "fold", START)
    [fold] = claim(world, fold=1)
    world.write_sync(lambda c: tasks.park(c, fold, "policy"))
    parked = status(world, "s1", START)
    assert (parked.state, parked.reason) == ("parked", "fold: policy")


async def test_task_due_much_later_is_not_pending(world: World) -> None:
    await world.write("s1", "A remark.")
    await world.settle()
    schedule(world, "s1", "extract", START + 300 * SECOND)
    assert status(world, "s1", START).state == "idle"


async def test_session_without_turns_is_idle(world: World) -> None:
    found = status(world, "s1", START)
    assert (found.state, found.indexed_upto, found.digested_upto, found.extracted_upto) == ("idle", 0, 0, 0)


async def test_tasks_are_changed_only_by_their_owner(world: World) -> None:
    """A claim with another owner changes nothing, even if it has the subject and the lease."""
    await world.write("s1", "A remark.")
    [held] = claim(world, index=1)
    stranger = Claim(world.key("x"), held.subject, held.kind, held.upto, held.lease, held.erase_epoch)
    world.write_sync(lambda c: tasks.complete(c, stranger))
    assert [row.lease for row in world.rows(task_table, kind="index")] == [held.lease]
