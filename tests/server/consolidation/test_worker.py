"""The worker: due work is done once, even if a model, a worker, the database or the code fails."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any
from uuid import uuid4

import anyio
import pytest
from sqlalchemy import event, update
from sqlalchemy.pool import Pool

from fixtures.consolidation import SECOND, START, World, build_world, until
from fixtures.postgres import OwnPostgres
from threefold.errors import Unavailable
from threefold_server.consolidation import worker
from threefold_server.consolidation.fold import fold_session
from threefold_server.consolidation.index import embed_passages, index_words
from threefold_server.consolidation.process import run_background
from threefold_server.consolidation.rebuild import retry_parked
from threefold_server.consolidation.worker import Worker, retry_delay, run_until_idle, run_workers
from threefold_server.models.ports import ModelError, ModelRefused
from threefold_server.storage.engine.tables import digests, facts, passages, tasks
from threefold_server.storage.sessions.tasks import MAX_ATTEMPTS

pytestmark = pytest.mark.anyio

LONG = [f"Remark {number} about the harbour and its walls." for number in range(12)]


def failing(*errors: Exception) -> Callable[[], Awaitable[None]]:
    """Return a model hook that raises these errors in order and then works."""
    left = list(errors)

    async def before() -> None:
        if left:
            raise left.pop(0)

    return before


class Gate:
    """Holds a model call until the test opens it."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.opened = anyio.Event()
        self.left = anyio.Event()

    async def before(self) -> None:
        self.reached.set()
        try:
            await self.opened.wait()
        finally:
            self.left.set()


@asynccontextmanager
async def working(world: World) -> AsyncGenerator[Worker]:
    """Run a worker until the end of the block."""
    running = Worker(world.service)
    world.service.wake = running.wake
    async with anyio.create_task_group() as group:
        group.start_soon(running.run)
        yield running
        running.stop()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Records of the service, even if an earlier test turned propagation off."""
    monkeypatch.setattr(logging.getLogger("threefold"), "propagate", True)
    caplog.set_level(logging.INFO, "threefold")
    return caplog


def fields(record: logging.LogRecord) -> dict[str, object]:
    return record.__dict__["fields"]


@pytest.fixture
def checked_out() -> Iterator[set[object]]:
    """The database connections in use."""
    connections: set[object] = set()

    def checkout(_: object, record: object, proxy: object) -> None:
        connections.add(record)

    def checkin(_: object, record: object) -> None:
        connections.discard(record)

    event.listen(Pool, "checkout", checkout)
    event.listen(Pool, "checkin", checkin)
    yield connections
    event.remove(Pool, "checkout", checkout)
    event.remove(Pool, "checkin", checkin)


def test_retry_delays_grow_and_last_over_ten_minutes() -> None:
    delays = [retry_delay(attempts, None) for attempts in range(1, MAX_ATTEMPTS)]
    assert delays == sorted(delays)
    assert delays[0] >= 5
    assert sum(delays) > 600


def test_retry_after_of_a_model_is_respected_up_to_a_limit() -> None:
    assert retry_delay(1, 90) == 90
    assert retry_delay(7, 1) > 300
    assert retry_delay(1, 1e9) == 3_600


async def test_no_connection_is_held_during_a_model_call(world: World, checked_out: set[object]) -> None:
    """Users reported that the service stalled when a model was slow. No transaction or connection waits for a model."""
    in_use: list[int] = []

    async def count() -> None:
        in_use.append(len(checked_out))

    world.embedder.before = world.summarizer.before = count
    await world.write("s1", *LONG)
    await index_words(world.service, world.claim("index"))
    await embed_passages(world.service, world.claim("embed"))
    await fold_session(world.service, world.claim("fold"))
    assert in_use == [0, 0]


async def test_rate_limit_of_ten_minutes_parks_nothing(world: World) -> None:
    """Users reported that one hour without quota marked 4,013 memories as failed for ever."""

    async def limited() -> None:
        if world.clock.now < START + 600 * SECOND:
            raise ModelError("429", retry_after=30)

    world.embedder.before = limited
    for session in ("s1", "s2", "s3"):
        await world.write(session, "A remark.")
    await world.settle_in_time()
    assert len(world.with_vector()) == 3
    assert [row.parked for row in world.rows(tasks) if row.parked] == []


async def test_task_that_always_fails_is_parked_after_a_limited_number_of_tries(world: World) -> None:
    """Users reported that one bad message was sent again every 2 s, for $200 in one night. Other tasks continue."""
    attempts: list[int] = []

    async def poisoned() -> None:
        if "poison" in world.embedder.calls[-1][0]:
            attempts.append(world.clock.now)
            raise ModelError("no usable answer")

    world.embedder.before = poisoned
    await world.write("bad", "poison")
    await world.write("good", "fine")
    await world.settle_in_time()
    gaps = [later - earlier for earlier, later in pairwise(attempts)]
    assert len(attempts) == MAX_ATTEMPTS
    assert gaps == sorted(gaps)
    assert len(world.with_vector()) == 1
    status = await world.status("bad")
    assert (status.state, status.reason) == ("parked", "embed: no usable answer")
    failures = world.service.metrics.task_failures
    assert failures.labels("embed", "false")._value.get() == MAX_ATTEMPTS  # pyright: ignore[reportPrivateUsage]


async def test_refusal_is_parked_at_once_and_can_be_retried(world: World) -> None:
    """Users reported that temporary and permanent errors were not told apart."""
    world.embedder.before = failing(ModelRefused("policy"))
    await world.write("s1", "First.")
    await world.settle()
    world.clock.advance(100_000)
    await world.write("s1", "Second.")
    await world.settle()
    assert len(world.embedder.calls) == 1
    assert (await world.status("s1")).reason == "embed: policy"
    assert await retry_parked(world.service) == 1
    await world.settle()
    assert world.with_vector() == [1, 2]
    assert (await world.status("s1")).state == "idle"


@pytest.mark.parametrize("reason", ["half an emoji \ud83d", "a NUL \x00"])
async def test_reason_that_no_database_can_store_is_cleaned(world: World, reason: str) -> None:
    """The reason comes from the model server. If it could not be stored, all other work would stop."""
    world.embedder.before = failing(ModelRefused(reason))
    await world.write("s1", "First.")
    await world.settle()
    await world.write("s2", "Second.")
    await world.settle()
    assert (await world.status("s1")).reason == f"embed: {reason[:-1]}\ufffd"
    assert len(world.with_vector()) == 1


async def test_progress_resets_the_number_of_failures(world: World) -> None:
    """Slow progress is not given up: each of two batches succeeds after seven failures."""
    attempts: list[str] = []

    async def seldom() -> None:
        attempts.append("try")
        if len(attempts) % MAX_ATTEMPTS:
            raise ModelError("busy")

    world.embedder.before = seldom
    await world.write("s1", *(f"Remark {number}." for number in range(40)))
    await world.settle_in_time()
    assert len(world.with_vector()) == 40
    assert len(attempts) == 2 * MAX_ATTEMPTS
    assert world.task("s1", "embed").attempts == 0


async def test_bug_is_logged_by_type_and_line_and_stops_no_other_work(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    world.embedder.before = failing(ValueError("the code is 4711"))
    await world.write("s1", "First.")
    await world.write("s2", "Second.")
    await world.settle()
    assert len(world.with_vector()) == 1
    [record] = [record for record in log.records if record.message == "task failed"]
    assert fields(record)["error"] == "ValueError"
    assert str(fields(record)["at"]).startswith("test_worker.py:")
    assert "4711" not in log.text + str(record.__dict__)
    world.clock.advance(10)
    await world.settle()
    assert len(world.with_vector()) == 2


async def test_work_of_a_killed_worker_is_taken_over_after_its_lease(world: World) -> None:
    await world.write("s1", "First.")
    world.claim("index")
    world.clock.advance(59)
    await world.settle()
    assert world.rows(passages) == []
    world.clock.advance(2)
    await world.settle()
    assert world.with_vector() == [1]


async def test_clock_set_back_delays_no_work(world: World) -> None:
    """Neither the work of a worker that died before, nor that for turns written afterwards."""
    await world.write("s1", "First.")
    world.claim("index")
    await world.write("s2", "Second.")
    world.clock.advance(-3_600)
    await world.write("s1", "Third.")
    await world.write("s2", "Fourth.")
    await world.settle()
    assert sorted(world.found_by_word("first") + world.found_by_word("fourth")) == [1, 2]
    assert world.with_vector() == [1, 2, 1, 2]


async def test_lease_is_kept_if_the_clock_is_set_back_a_little(world: World) -> None:
    await world.write("s1", "First.")
    world.claim("index")
    world.clock.advance(-50)
    await world.write("s1", "Second.")
    await world.settle()
    assert world.with_vector() == []


async def test_two_workers_do_each_task_once(world: World, make_world: Callable[..., World]) -> None:
    other = make_world()
    for number in range(10):
        await world.write(f"s{number}", *LONG, f"Only in {number}.")
    async with anyio.create_task_group() as group:
        group.start_soon(world.settle)
        group.start_soon(other.settle)
    embedded = Counter(text for each in (world, other) for call in each.embedder.calls for text in call)
    assert embedded.total() == 10 * (len(LONG) + 1)
    assert len(world.rows(digests)) == len(world.summarizer.calls) + len(other.summarizer.calls) == 10
    assert [row for row in world.rows(tasks) if row.due_at or row.lease or row.parked] == []


async def test_slow_summarizer_delays_no_indexing(make_world: Callable[..., World]) -> None:
    """Users reported that the service stalled when a model was slow. With the smallest number of slots."""
    world, gate = make_world(consolidators=1), Gate()
    world.summarizer.before = gate.before
    async with working(world):
        await world.write("slow", *LONG)
        await gate.reached.wait()
        await world.write("other", "A remark.")
        await until(lambda: world.key("other") in {row.source for row in world.rows(passages) if row.embedder})
        assert world.rows(digests) == []
        assert (await world.status("slow")).state == "running"
        gate.opened.set()
    assert len(world.rows(digests)) == 1


async def test_saved_fact_wakes_the_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 3_600)
    async with working(world):
        for number in range(1, 4):
            await world.save(f"Remark {number}.")
            await until(lambda number=number: len(world.with_vector()) == number)


async def test_turns_written_by_other_processes_are_found(
    world: World, make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.01)
    async with working(world):
        await make_world().write("s1", "A remark.")
        await until(lambda: world.with_vector() == [1])


async def test_many_writers_of_one_session_lose_nothing(world: World) -> None:
    async def write(writer: int) -> None:
        for number in range(10):
            await world.write("s1", f"Remark {number} of {writer} about the harbour.")

    async with working(world):
        async with anyio.create_task_group() as group:
            for writer in range(4):
                group.start_soon(write, writer)
        await until(lambda: not any(row.due_at or row.lease for row in world.rows(tasks)))
    assert world.with_vector() == list(range(1, 41))
    assert len(world.rows(digests)) > 0
    assert [row.parked for row in world.rows(tasks) if row.parked] == []


async def test_stop_finishes_the_current_work_and_claims_no_more(make_world: Callable[..., World]) -> None:
    world, gate = make_world(consolidators=1), Gate()
    world.embedder.before = gate.before
    async with working(world) as running:
        await world.write("s1", "First.")
        await gate.reached.wait()
        running.stop()
        await world.write("s2", "Second.")
        gate.opened.set()
    assert world.with_vector() == [1]
    assert world.task("s2", "index").due_at == world.clock.now


async def test_cancelling_finishes_the_current_work(world: World) -> None:
    gate, scope = Gate(), anyio.CancelScope()
    world.embedder.before = gate.before
    await world.write("s1", "First.")

    async def run() -> None:
        with scope:
            await Worker(world.service).run()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await gate.reached.wait()
        scope.cancel()
        gate.opened.set()
    assert world.with_vector() == [1]


async def test_work_that_exceeds_the_grace_period_is_released(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE_SECONDS", 0)
    gate = Gate()
    world.embedder.before = gate.before
    async with working(world):
        await world.write("s1", "First.")
        await gate.reached.wait()
    task = world.task("s1", "embed")
    assert (task.lease, task.attempts, task.due_at) == (None, 0, world.clock.now)
    assert world.with_vector() == []


async def test_lease_is_extended_during_a_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.005)
    gate = Gate()
    world.embedder.before = gate.before
    async with working(world):
        await world.write("s1", "First.")
        await gate.reached.wait()
        world.clock.advance(50)
        await until(lambda: world.task("s1", "embed").lease_until == START + (50 + 60) * SECOND)
        gate.opened.set()
    assert world.with_vector() == [1]


async def test_lost_lease_ends_the_call_and_keeps_the_new_holder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.005)
    gate, thief = Gate(), uuid4()
    world.embedder.before = gate.before
    async with working(world):
        await world.write("s1", "First.")
        await gate.reached.wait()
        world.write_sync(lambda c: c.execute(update(tasks).where(tasks.c.kind == "embed").values(lease=thief)))
        await gate.left.wait()
    assert world.task("s1", "embed").lease == thief
    assert world.with_vector() == []


async def test_lost_lease_is_not_logged_as_a_failure(world: World, log: pytest.LogCaptureFixture) -> None:
    async def forget() -> None:
        world.embedder.before = failing()
        await world.forget(session_id="s1")

    world.embedder.before = forget
    await world.write("s1", "The code is 4711.")
    await world.settle()
    assert world.rows(passages) == []
    assert [record.message for record in log.records if record.levelno > logging.INFO] == []


async def test_worker_survives_a_restart_of_the_database(
    own_postgres: OwnPostgres, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.02)
    world, gate = build_world(own_postgres.url), Gate()
    world.embedder.before = gate.before
    async with working(world):
        await world.write("s1", "First.")
        await gate.reached.wait()
        own_postgres.server.stop()
        gate.opened.set()
        await until(lambda: "background work waits for the database" in log.messages)
        own_postgres.server.start()
        await until(lambda: answers(world))
        await until(lambda: world.with_vector() == [1])
        await world.write("s2", "Second.")
        await until(lambda: len(world.with_vector()) == 2)
    assert world.task("s1", "embed").attempts == 0
    world.service.database.close()


def answers(world: World) -> bool:
    try:
        world.rows(tasks)
    except Unavailable:
        return False
    return True


async def test_task_that_becomes_due_during_the_last_look_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, database = Worker(world.service), world.service.database
    world.service.wake = idle.wake
    read = database.read

    async def write_after_the_look(*args: Any, **options: Any) -> Any:
        found = await read(*args, **options)
        if args[0] == "system":
            monkeypatch.undo()
            await world.write("s1", "First.")
            world.service.wake()
        return found

    monkeypatch.setattr(database, "read", write_after_the_look)
    await idle.run_until_idle()
    assert world.with_vector() == [1]


async def test_progress_is_reported(world: World) -> None:
    told: list[tuple[int, int]] = []
    await world.write("s1", "First.")
    await world.write("s2", "Second.")
    await run_until_idle(world.service, lambda done, left: told.append((done, left)))
    assert told[0] == (0, 2)
    assert told[-1] == (4, 0)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


async def test_serving_process_works_and_writes_its_read_counts(world: World) -> None:
    saved = await world.save("The boat is blue.")
    [fact] = world.rows(facts)
    async with run_workers(world.service):
        await world.write("s1", "First.")
        await until(lambda: len(world.with_vector()) == 2)
        world.service.reads[fact.owner, fact.fact] += 3
    assert saved.id == fact.fact.hex
    assert world.rows(facts)[0].access_count == 3


async def test_process_without_consolidation_claims_nothing(make_world: Callable[..., World]) -> None:
    world = make_world(consolidate=False)
    await world.save("The boat is blue.")
    [fact] = world.rows(facts)
    async with run_background(world.service):
        world.service.reads[fact.owner, fact.fact] += 1
        await world.write("s1", "First.")
    assert world.rows(facts)[0].access_count == 1
    assert world.with_vector() == []
    assert world.task("s1", "index").lease is None
