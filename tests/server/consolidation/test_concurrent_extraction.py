"""Concurrent extraction for one owner: sessions with the same facts, and a forget or a save during a model call.

In every order, the facts, their sources and their history are the same at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from fixtures.consolidation import World, until
from threefold.contract import TurnIn, UpdateFactRequest
from threefold_server.operations.doctor import examine
from threefold_server.operations.facts import update_fact
from threefold_server.operations.sessions import end_session
from threefold_server.storage.engine.tables import fact_sources, facts, tasks

pytestmark = pytest.mark.anyio

LARGE: dict[str, Any] = {"token_budget": 4000, "compaction_trigger": 0, "compaction_target": 0}
OSLO, BERGEN = "Ana lives in Oslo.", "Ana lives in Bergen."

Meddle = Callable[[World], Awaitable[object]]
Rests = list[tuple[str, str]]
"""Facts, each with the session that supports it."""


def meeting(size: int) -> Callable[[], Awaitable[None]]:
    """Return a barrier for this many tasks; once complete, it never waits again."""
    came, complete = 0, anyio.Event()

    async def come() -> None:
        nonlocal came
        came += 1
        if came == size:
            complete.set()
        await complete.wait()

    return come


async def say(world: World, session: str, fact: str, day: int = 1) -> None:
    """Write and end a session that gives one fact, said on this day."""
    said = datetime(2023, 5, day, tzinfo=UTC)
    await world.write(session, TurnIn(role="user", content=f"So it is. {fact} -> {fact}", created_at=said))
    await end_session(world.service, world.caller, session, 0)


def rests(world: World) -> Rests:
    texts = {row.fact: row.text for row in world.rows(facts)}
    names = {world.key(name): name for name in ("s1", "s2")}
    return sorted((texts[row.fact], names[row.session]) for row in world.rows(fact_sources))


@pytest.mark.parametrize(
    ("first", "second", "holds", "history", "sources"),
    [
        (OSLO, OSLO, [OSLO], [], [(OSLO, "s1"), (OSLO, "s2")]),
        (OSLO, BERGEN, [BERGEN], [OSLO], [(BERGEN, "s2"), (OSLO, "s1")]),
        (BERGEN, OSLO, [OSLO], [BERGEN], [(BERGEN, "s1"), (OSLO, "s2")]),
        (OSLO, "Ana drinks tea.", ["Ana drinks tea.", OSLO], [], [("Ana drinks tea.", "s2"), (OSLO, "s1")]),
    ],
    ids=["the same", "an excluding fact", "in reverse", "another fact"],
)
@pytest.mark.parametrize("processes", [1, 2])
async def test_two_sessions_extract_facts_concurrently(
    make_world: Callable[..., World],
    processes: int,
    first: str,
    second: str,
    holds: list[str],
    history: list[str],
    sources: Rests,
) -> None:
    """Both call the model before either stores its facts, in one process and in two on one database."""
    worlds = [make_world(extracts=True, consolidators=2 // processes, **LARGE) for _ in range(processes)]
    await say(worlds[0], "s1", first, day=1)
    await say(worlds[0], "s2", second, day=2)
    both = meeting(2)
    async with anyio.create_task_group() as group:
        for world in worlds:
            world.extractor.before = both
            world.extractor.verdicts = {(OSLO, BERGEN): "excludes", (BERGEN, OSLO): "excludes"}
            group.start_soon(world.settle)
    [world, *_] = worlds
    assert (world.facts(), world.facts(current=False), rests(world)) == (sorted(holds), history, sources)
    assert {session: (await world.status(session)).extracted_upto for session in ("s1", "s2")} == {"s1": 1, "s2": 1}


async def save(world: World) -> None:
    await world.save(OSLO)


async def forget_one(world: World) -> None:
    await world.forget(session_id="s1")


async def forget_all(world: World) -> None:
    await world.forget(level="user")


async def delete(world: World) -> None:
    await world.forget(memory_ids=[row.fact.hex for row in world.rows(facts)])


@pytest.mark.parametrize(
    ("steps", "holds", "sources"),
    [
        ([save], [OSLO], [(OSLO, "s1"), (OSLO, "s2")]),
        ([forget_one], [OSLO], [(OSLO, "s2")]),
        ([save, forget_one], [OSLO], [(OSLO, "s2")]),
        ([forget_one, save], [OSLO], [(OSLO, "s2")]),
        ([save, delete], [OSLO], [(OSLO, "s1"), (OSLO, "s2")]),  # the turns still support the fact
        ([save, forget_all], [], []),
        ([forget_all, save], [OSLO], []),
    ],
)
async def test_forget_and_save_during_a_model_call(
    make_world: Callable[..., World], steps: list[Meddle], holds: list[str], sources: Rests
) -> None:
    world = make_world(extracts=True, **LARGE)
    await say(world, "s1", OSLO)
    await say(world, "s2", OSLO)
    world.extractor.before = meeting(3)
    async with anyio.create_task_group() as group:
        group.start_soon(world.settle)
        await until(lambda: len(world.extractor.read) == 2)
        for step in steps:
            await step(world)
        await world.extractor.before()
    assert (world.facts(), world.facts(current=False), rests(world)) == (holds, [], sources)
    assert {(row.upto, row.due_at, row.parked) for row in world.rows(tasks, kind="extract")} <= {(1, None, None)}


async def test_facts_that_keep_changing_park_the_work_and_the_doctor_says_why(make_world: Callable[..., World]) -> None:
    world = make_world(extracts=True, **LARGE)
    await world.save("Ana likes Oslo.")

    async def change() -> None:
        [known] = world.rows(facts, valid_to=None)
        request = UpdateFactRequest(text=f"Ana likes house {len(world.extractor.compared)} in Oslo.")
        await update_fact(world.service, world.caller, known.fact.hex, request)

    world.extractor.before_verdicts = change
    await say(world, "s1", OSLO)
    await world.settle()
    status = await world.status("s1")
    assert (status.state, len(world.extractor.compared)) == ("pending", 10)
    await world.settle_in_time()
    status = await world.status("s1")
    assert (status.state, len(world.extractor.compared), OSLO in world.facts()) == ("parked", 80, False)
    [found] = [finding for finding in await examine(world.service) if finding.check == "parked work"]
    assert found.detail == "1 extract: this user's facts kept changing while new ones were compared with them"
    assert "threefold consolidate --retry-parked" in found.remedy
