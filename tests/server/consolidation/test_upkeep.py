"""Maintenance: expired data is deleted, facts that are read often live longer, and gauges count open tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import pytest
from sqlalchemy import insert

from fixtures.consolidation import SECOND, World
from threefold.contract import PutCheckpointRequest, TurnIn
from threefold.errors import Conflict, Unavailable
from threefold_server.consolidation.fold import fold_session
from threefold_server.consolidation.upkeep import AT_ONCE, every, flush_reads, retire_threads, retire_turns, sweep
from threefold_server.models.ports import ModelError, ModelRefused
from threefold_server.operations.threads import put_checkpoint
from threefold_server.service import Service
from threefold_server.storage.engine.tables import checkpoints, digests, erased_turns, facts, passages, threads, turns
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.sessions.tasks import LeaseLost

pytestmark = pytest.mark.anyio

DAY = 86_400


def fact_of(world: World, text: str) -> AnyRow:
    [row] = world.rows(facts, text=text)
    return row


async def read(world: World, text: str, times: int) -> None:
    fact = fact_of(world, text)
    world.service.reads[fact.owner, fact.fact] += times
    await flush_reads(world.service)


async def test_expired_facts_are_deleted_with_their_index_and_pinned_ones_stay(world: World) -> None:
    await world.save("The parcel comes today.", expires_in_days=1)
    await world.save("The parcel was blue.", expires_in_days=1, pinned=True)
    await world.save("The office gets a parcel.", expires_in_days=1, shared=True)
    await world.save("The parcel is due in a week.", expires_in_days=7)
    world.clock.advance(DAY + 1)
    await sweep(world.service)
    assert {row.text for row in world.rows(facts)} == {"The parcel was blue.", "The parcel is due in a week."}
    assert len(world.rows(passages)) == 2
    assert len(world.found_by_word("parcel")) == 2


async def test_many_expired_facts_are_deleted_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threefold_server.consolidation.upkeep.AT_ONCE", 2)
    for number in range(5):
        await world.save(f"Remark {number}.", expires_in_days=1)
    world.clock.advance(DAY + 1)
    assert [await sweep(world.service) for _ in range(3)] == [True, True, False]
    assert world.rows(facts) == []


async def test_ids_of_erased_turns_are_deleted_after_their_time(world: World) -> None:
    for mark, until_ in ((b"old", -1), (b"new", 1)):
        values = {"owner": world.caller.owner, "turn": mark, "until": world.clock.now + until_}
        world.write_sync(lambda c, values=values: c.execute(insert(erased_turns).values(values)))
    await sweep(world.service)
    assert [row.turn for row in world.rows(erased_turns)] == [b"new"]


async def test_open_tasks_are_counted_by_kind_and_state(world: World) -> None:
    def gauge(kind: str, state: str) -> float | None:
        return world.service.metrics.work_registry.get_sample_value("threefold_tasks", {"kind": kind, "state": state})

    async def fail() -> None:
        raise ModelRefused("no") if "refuse" in world.embedder.calls[-1][0] else ModelError("later")

    world.embedder.before = fail
    await world.write("refused", "refuse")
    await world.write("waiting", "wait")
    await world.settle()
    await world.write("due", "A remark.")
    await sweep(world.service)
    assert (gauge("embed", "parked"), gauge("embed", "waiting"), gauge("index", "due")) == (1, 1, 1)
    world.claim("index")
    await sweep(world.service)
    assert (gauge("index", "running"), gauge("index", "due")) == (1, None)


async def test_reads_are_counted(world: World) -> None:
    await world.save("The boat is blue.")
    await world.save("The car is red.")
    await read(world, "The boat is blue.", 2)
    await read(world, "The boat is blue.", 3)
    assert fact_of(world, "The boat is blue.").access_count == 5
    assert fact_of(world, "The car is red.").access_count == 0
    assert world.service.reads == {}


async def test_expiry_of_a_fact_read_often_is_extended_once(world: World) -> None:
    await world.save("The boat is blue.", expires_in_days=2)
    created = world.clock.now
    world.clock.advance(DAY)
    await read(world, "The boat is blue.", 9)
    assert fact_of(world, "The boat is blue.").expires_at == created + 2 * DAY * SECOND
    await read(world, "The boat is blue.", 1)
    await read(world, "The boat is blue.", 10)
    assert fact_of(world, "The boat is blue.").expires_at == created + 4 * DAY * SECOND
    assert [row.expires_at for row in world.rows(passages)] == [created + 4 * DAY * SECOND]
    world.clock.advance(2 * DAY)
    await sweep(world.service)
    assert len(world.rows(facts)) == 1


@pytest.mark.parametrize("options", [{"pinned": True, "expires_in_days": 2}, {}], ids=["pinned", "without expiry"])
async def test_expiry_of_other_facts_is_unchanged(world: World, options: dict[str, Any]) -> None:
    await world.save("The boat is blue.", **options)
    before = fact_of(world, "The boat is blue.").expires_at
    await read(world, "The boat is blue.", 10)
    after = fact_of(world, "The boat is blue.")
    assert (after.expires_at, after.extended) == (before, False)


async def test_late_counts_do_not_revive_an_expired_fact(world: World) -> None:
    await world.save("The boat is blue.", expires_in_days=1)
    world.clock.advance(2 * DAY)
    await read(world, "The boat is blue.", 10)
    assert not fact_of(world, "The boat is blue.").extended


async def test_counts_of_a_forgotten_fact_are_dropped(world: World) -> None:
    fact = await world.save("The boat is blue.")
    row = fact_of(world, "The boat is blue.")
    await world.forget(memory_ids=[fact.id])
    world.service.reads[row.owner, row.fact] += 1
    await flush_reads(world.service)
    assert world.rows(facts) == []


async def test_many_counts_are_written_in_batches(world: World) -> None:
    """In one statement, 20,000 counts were refused by Postgres, kept for another try, and never written."""
    world.service.reads.update({(uuid4(), uuid4()): 1 for _ in range(2 * AT_ONCE + 1)})
    assert [await flush_reads(world.service) for _ in range(3)] == [True, True, False]
    assert not world.service.reads


async def test_counts_survive_an_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.save("The boat is blue.")
    with monkeypatch.context() as outage:

        def fail(*_: object, **__: object) -> None:
            raise Unavailable("down")

        outage.setattr("threefold_server.storage.store.system.add_reads", fail)
        with pytest.raises(Unavailable):
            await read(world, "The boat is blue.", 2)
    await read(world, "The boat is blue.", 1)
    assert fact_of(world, "The boat is blue.").access_count == 3


async def test_turns_past_the_retention_are_erased_as_by_a_forget(world: World) -> None:
    world.service.settings = world.service.settings.model_copy(update={"turn_retention_days": 30.0})
    await world.write("s1", TurnIn(role="user", id="t1", content="The code is 4711."), *["A remark. " * 5] * 12)
    await world.settle()
    assert "4711" in world.rows(digests)[0].text
    world.clock.advance(20 * DAY)
    await world.write("s1", "The parcel came.")
    await retire_turns(world.service)
    assert not any(row.erased for row in world.rows(turns))
    world.clock.advance(20 * DAY)
    await retire_turns(world.service)
    await world.settle()
    assert [row.content for row in world.rows(turns) if not row.erased] == ["The parcel came."]
    assert world.rows(digests) == []
    assert world.found_by_word("4711") == []
    assert world.found_by_word("parcel") == [14]
    await world.write("s1", TurnIn(role="user", id="t1", content="The code is 4711."))
    assert len(world.rows(turns)) == 14


async def test_many_old_turns_of_several_owners_are_erased_in_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threefold_server.consolidation.upkeep.AT_ONCE", 2)
    world.service.settings = world.service.settings.model_copy(update={"turn_retention_days": 30.0})
    for user in ("ana", "ben"):
        world.caller = type(world.caller)(user, "support", world.caller.ceiling)
        await world.write("s1", *["A remark."] * 5)
    world.clock.advance(31 * DAY)
    assert [await retire_turns(world.service) for _ in range(7)] == [True] * 6 + [False]
    assert all(row.erased for row in world.rows(turns))


async def test_fold_in_progress_brings_no_retired_turn_back(world: World) -> None:
    world.service.settings = world.service.settings.model_copy(update={"turn_retention_days": 30.0})
    await world.write("s1", "The code is 4711.", *["A remark. " * 5] * 12)
    claim = world.claim("fold")

    async def retire_meanwhile() -> None:
        world.clock.advance(31 * DAY)
        await retire_turns(world.service)

    world.summarizer.before = retire_meanwhile
    with pytest.raises(LeaseLost):
        await fold_session(world.service, claim)
    assert world.rows(digests) == []


async def test_turns_without_a_retention_stay(world: World) -> None:
    await world.write("s1", "First.")
    world.clock.advance(10_000 * DAY)
    await retire_turns(world.service)
    assert [row.content for row in world.rows(turns)] == ["First."]


async def test_idle_threads_past_the_retention_are_deleted_in_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threefold_server.consolidation.upkeep.THREADS_AT_ONCE", 2)

    async def put(thread_id: str, checkpoint_id: str) -> None:
        request = PutCheckpointRequest(checkpoint_id=checkpoint_id, type="t", data=b"x")
        await put_checkpoint(world.service, world.caller, thread_id, request)

    for number in range(4):
        await put(f"t{number}", "1")
    world.clock.advance(20 * DAY)
    await put("t0", "2")
    world.clock.advance(20 * DAY)
    await retire_threads(world.service)
    assert len(world.rows(threads)) == 4  # threads stay if the store has no retention
    world.service.settings = world.service.settings.model_copy(update={"thread_retention_days": 30.0})
    assert [await retire_threads(world.service) for _ in range(2)] == [True, False]
    assert [row.thread_id for row in world.rows(threads)] == ["t0"]
    assert [row.checkpoint_id for row in world.rows(checkpoints)] == ["1", "2"]
    with pytest.raises(Conflict, match="deleted"):
        await put("t1", "1")


async def test_failed_job_is_repeated(world: World) -> None:
    outcomes: list[Exception | bool] = [Unavailable("down"), ValueError("a bug"), False]
    done = anyio.Event()

    async def job(_: Service) -> bool:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if not outcomes:
            done.set()
        return outcome

    async with anyio.create_task_group() as group:
        group.start_soon(every, 0.001, world.service, job)
        await done.wait()
        group.cancel_scope.cancel()


async def test_job_with_more_work_does_not_wait(world: World) -> None:
    done = anyio.Event()
    outcomes = [False, True]

    async def job(_: Service) -> bool:
        more = outcomes.pop()
        if not more:
            done.set()
        return more

    async with anyio.create_task_group() as group:
        group.start_soon(every, 3_600, world.service, job)
        await done.wait()
        group.cancel_scope.cancel()


async def test_cancelling_waits_for_the_current_batch(world: World) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def job(_: Service) -> None:
        begun.set()
        await anyio.sleep(0.001)
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(every, 3_600, world.service, job)
        await begun.wait()
        group.cancel_scope.cancel()
    assert ended.is_set()


async def test_idle_session_is_folded_down_to_the_target(make_world: Callable[..., World]) -> None:
    world = make_world(token_budget=100, idle_seconds=60)
    await world.write("s1", *(f"On day {number} Ana moved {number} boxes to the new house." for number in range(5)))
    await world.settle()
    assert (await world.status("s1")).digested_upto == 0
    await sweep(world.service)
    await world.settle()
    assert (await world.status("s1")).digested_upto == 0
    world.clock.advance(61)
    await sweep(world.service)
    await world.settle()
    folded = (await world.status("s1")).digested_upto
    assert folded > 0
    await world.write("s1", *(f"On day {number} Bo moved {number} boxes to the old house." for number in range(3)))
    world.clock.advance(61)
    await sweep(world.service)
    await world.settle()
    assert (await world.status("s1")).digested_upto > folded
