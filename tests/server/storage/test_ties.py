"""Pages of rows with the same time are ordered by their keys, and complete."""

from __future__ import annotations

import pytest

from fixtures.consolidation import World
from threefold.contract import ListRequest
from threefold_server.operations.browse import list_memories, list_sessions

pytestmark = pytest.mark.anyio


async def test_sessions_of_the_same_time_are_all_listed(world: World) -> None:
    names = {"s1", "s2", "s3"}
    for name in names:
        await world.write(name, "hello")
    seen: list[str] = []
    page = await list_sessions(world.service, world.caller, None, 1)
    while True:
        seen += [session.session_id for session in page.sessions]
        if page.next_cursor is None:
            break
        page = await list_sessions(world.service, world.caller, page.next_cursor, 1)
    assert sorted(seen) == sorted(names)


async def test_memories_of_the_same_time_are_all_listed(world: World) -> None:
    facts = {(await world.save(f"The heron nests in tree {number}.")).id for number in range(3)}
    for name in ("s1", "s2", "s3"):
        await world.write(name, "hello")
    seen: list[str] = []
    request = ListRequest(limit=1)
    while True:
        page = await list_memories(world.service, world.caller, request)
        seen += [memory.id for memory in page.items]
        if page.next_cursor is None:
            break
        request = ListRequest(limit=1, cursor=page.next_cursor)
    assert facts < set(seen)
    assert len(seen) == len(set(seen)) == 6
