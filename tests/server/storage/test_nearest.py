"""A new fact is compared with facts of the same agent, visibility and, for visibility `session`, the same session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fixtures.consolidation import ANA, World
from threefold_server.rules.access import Reach, session_key
from threefold_server.storage.memories import nearest
from threefold_server.storage.memories.nearest import MergeGroup

pytestmark = pytest.mark.anyio

TEXT = "Ana likes tea."
PLACES = [
    ("support", "user", "s1"),
    ("support", "agent", "s1"),
    ("support", "session", "s1"),
    ("support", "session", "s2"),
    ("sales", "user", "s1"),
]
OTHERS = [("ben", "support", "user", "s1")]


def kind(agent: str, visibility: str, session: str) -> MergeGroup:
    key = session_key(ANA.owner, agent, session)
    return nearest.merge_group(ANA.owner, agent, int(Reach[visibility]), key)


@pytest.fixture
async def said(world: World) -> dict[tuple[str, str, str], str]:
    """The same statement in every place and by another user; returns the ids of Ana's facts."""
    found: dict[tuple[str, str, str], str] = {}
    for agent, visibility, session in PLACES:
        found[agent, visibility, session] = await save(world, "ana", agent, visibility, session)
    for place in OTHERS:
        await save(world, *place)
    await world.settle()
    return found


async def save(world: World, user: str, agent: str, visibility: str, session: str) -> str:
    world.caller = replace(ANA, user=user, agent=agent)
    options: dict[str, Any] = {"visibility": visibility, "session_id": session}
    return (await world.save(TEXT, **options)).id


@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_comparison_finds_only_facts_of_the_same_kind(
    world: World, said: dict[tuple[str, str, str], str], place: tuple[str, str, str]
) -> None:
    now = world.clock.now
    vectors = await world.embedder.embed([TEXT])
    database, name = world.service.database, world.embedder.name
    by_words = database.read_sync(ANA.owner, lambda c: nearest.by_words(c, kind(*place), ["ana", "like", "tea"], now))
    [by_meaning] = database.read_sync(ANA.owner, lambda c: nearest.by_meaning(c, kind(*place), vectors, name, now))
    assert [row.fact.hex for row in by_words] == [said[place]]
    assert [row.fact.hex for row in by_meaning] == [said[place]]
