"""The doctor names each problem of a store and the command that fixes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.consolidation import SECOND, World
from threefold_server.clock import now_micros
from threefold_server.models.ports import ModelError, ModelRefused
from threefold_server.operations.doctor import LATE_SECONDS, Finding, examine

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def now(world: World) -> None:
    """Use the real time, as the doctor compares the clocks of service and database."""
    world.clock.now = now_micros()


async def finding(world: World, check: str) -> Finding:
    [found] = [finding for finding in await examine(world.service) if finding.check == check]
    return found


async def test_healthy_store_has_no_findings(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.settle()
    assert [found for found in await examine(world.service) if found.remedy] == []


async def test_parked_work_is_found(world: World) -> None:
    async def refuse() -> None:
        raise ModelRefused("the account is closed")

    world.embedder.before = refuse
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.settle()
    found = await finding(world, "parked work")
    assert found.detail.startswith("1 embed: ")
    assert "threefold consolidate --retry-parked" in found.remedy


async def test_stale_lease_of_a_dead_worker_is_found(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    world.claim("index")
    world.clock.advance(60 + LATE_SECONDS)
    assert not (await finding(world, "stale leases")).remedy
    world.clock.advance(1)
    assert "threefold worker" in (await finding(world, "stale leases")).remedy


async def test_overdue_work_is_found(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    assert not (await finding(world, "background work")).remedy
    world.clock.advance(LATE_SECONDS)
    assert "threefold worker" in (await finding(world, "background work")).remedy


async def test_vectors_of_another_embedder_are_found(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.settle()
    world.embedder.name = "other"
    found = await finding(world, "vectors")
    assert found.detail == "1 made by another embedder; the store's is fake, the configured one other"
    assert "threefold reembed" in found.remedy


DEAD = [
    ("embedder", "before", "embedder"),
    ("summarizer", "before", "digest model"),
    ("extractor", "before_verdicts", "fact model"),
]


@pytest.mark.parametrize(("double", "hook", "check"), DEAD)
async def test_failing_model_is_found(make_world: Callable[..., World], double: str, hook: str, check: str) -> None:
    async def fail() -> None:
        raise ModelError("no answer")

    world = make_world(extracts=True)
    assert not (await finding(world, check)).remedy
    setattr(getattr(world, double), hook, fail)
    found = await finding(world, check)
    assert found.detail == "no usable answer: no answer"
    assert "THREEFOLD_MODEL_BASE_URL" in found.remedy


async def test_clock_that_was_set_back_is_found(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    assert not (await finding(world, "clocks")).remedy
    world.clock.advance(-90)
    found = await finding(world, "clocks")
    assert int(found.detail.removeprefix("differ by ").removesuffix(" s")) >= 90  # real time passes as well
    assert "timedatectl set-ntp true" in found.remedy


async def test_clock_different_from_the_database_is_found(world: World) -> None:
    world.clock.now += 3_600 * SECOND
    differs = not world.service.database.is_sqlite  # SQLite has no clock of its own
    assert bool((await finding(world, "clocks")).remedy) == differs


async def test_due_purge_is_found(world: World) -> None:
    await world.write("s1", "The heron nests behind the boathouse.")
    await world.forget(session_id="s1")
    due = not world.service.database.is_sqlite  # SQLite purges its file on forget
    assert ((await finding(world, "purge")).remedy == "run: threefold purge") == due
