"""Rebuilding restores the same memory, without anything that was removed from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Table

from fixtures.consolidation import FakeEmbedder, World
from threefold.contract import RecallRequest, TurnIn, UpdateFactRequest
from threefold_server.consolidation.fold import fold_session
from threefold_server.consolidation.index import embed_passages, index_words
from threefold_server.consolidation.rebuild import rebuild, reembed, retry_parked
from threefold_server.models.ports import ModelError, ModelRefused, Vectors
from threefold_server.operations.facts import update_fact
from threefold_server.operations.recall import recall
from threefold_server.rules.access import Principal
from threefold_server.storage.engine.tables import digests, facts, passages, postings, sessions, store
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import LeaseLost

pytestmark = pytest.mark.anyio

LONG = [f"Remark {number} about the harbour and its walls." for number in range(12)]


def derived(world: World) -> list[list[tuple[Any, ...]]]:
    """Return the facts and everything that is derived from turns and facts, without revisions."""
    return [
        [without_revision(table, row) for row in world.rows(table)]
        for table in (passages, postings, digests, sessions, facts)
    ]


def without_revision(table: Table, row: AnyRow) -> tuple[Any, ...]:
    names = (column.name for column in table.c if column.name != "vector")  # `rows` leaves vectors out
    return tuple(value for name, value in zip(names, row, strict=True) if name != "rev")


async def test_rebuild_restores_the_same_rows(world: World) -> None:
    await world.write("s1", *LONG)
    await world.write("s2", "The ferry leaves at noon.", "...", TurnIn(role="system", content="Be brief."))
    await world.save("The boat is blue.", pinned=True)
    await world.save("The office closes at six.", shared=True)
    world.caller = Principal("ben", "support", world.caller.ceiling)
    await world.write("s1", "Nothing of mine is yours.")
    await world.settle()
    before = derived(world)
    await rebuild(world.service)
    assert derived(world) == before
    assert all(row.embedder == "fake" for row in world.rows(passages))


async def test_superseded_forgotten_and_expired_content_does_not_return(world: World) -> None:
    await world.write("s1", TurnIn(role="user", id="t1", content="The code is 4711."), *LONG)
    old = await world.save("The boat is blue.")
    gone = await world.save("The key is under the mat.")
    await world.save("The parcel comes today.", expires_in_days=1)
    await world.settle()
    await update_fact(world.service, world.caller, old.id, UpdateFactRequest(text="The boat is red."))
    await world.forget(memory_ids=["t1"])
    await world.forget(memory_ids=[gone.id])
    world.clock.advance(2 * 86_400)
    await rebuild(world.service)
    for word in ("4711", "mat", "parcel", "blue"):
        assert world.found_by_word(word) == []
    assert world.found_by_word("red") == [0]
    assert "4711" not in world.rows(digests)[-1].text
    assert {row.text for row in world.rows(facts)} >= {"The boat is blue.", "The boat is red."}


async def test_rebuild_restarts_parked_and_waiting_work(world: World) -> None:
    async def fail() -> None:
        raise ModelRefused("no")

    world.embedder.before = fail
    await world.write("s1", "First.")
    await world.settle()
    world.service.embedder = FakeEmbedder()
    await rebuild(world.service)
    assert world.with_vector() == [1]
    assert (await world.status("s1")).state == "idle"


async def test_work_in_progress_is_void_after_a_rebuild(world: World) -> None:
    await world.write("s1", *LONG)
    claim = world.claim("fold")

    async def rebuild_meanwhile() -> None:
        if len(world.summarizer.calls) == 1:
            await rebuild(world.service)

    world.summarizer.before = rebuild_meanwhile
    with pytest.raises(LeaseLost):
        await fold_session(world.service, claim)
    assert [row.version for row in world.rows(digests)] == [1]


async def test_rebuild_makes_no_digest_if_digests_are_off(world: World, make_world: Callable[..., World]) -> None:
    await world.write("s1", *LONG)
    await world.settle()
    await rebuild(make_world(rolling_summary=False).service)
    assert world.rows(digests) == []


async def test_progress_is_reported(world: World) -> None:
    told: list[tuple[int, int]] = []
    await world.write("s1", "First.")
    await rebuild(world.service, lambda done, left: told.append((done, left)))
    assert told[0][1] > 0
    assert told[-1] == (2, 0)


async def test_reembed_replaces_all_vectors(world: World, make_world: Callable[..., World]) -> None:
    """Users reported crashes and meaningless results after a change of the embedding model."""
    await world.write("s1", "First.", "Second.")
    await world.save("The boat is blue.")
    await world.settle()
    other = make_world()
    other.embedder.name = "another"
    await reembed(other.service)
    assert {row.embedder for row in world.rows(passages)} == {"another"}
    assert [text for call in other.embedder.calls for text in call].count("user: First.") == 1
    [stamp] = [row.value for row in world.rows(store) if row.name == "embedder"]
    assert stamp == "another"
    assert world.found_by_word("boat") == [0]


class ThreeDimensions(FakeEmbedder):
    """Returns vectors of another length."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 3), np.float32) / np.float32(3**0.5)


async def test_process_with_the_old_embedder_finds_by_words(world: World, make_world: Callable[..., World]) -> None:
    """The vector of its query can be compared with no stored vector."""
    await world.write("s1", "The ferry leaves at noon.")
    await world.settle()
    other = make_world()
    other.service.embedder = ThreeDimensions(name="another")
    await reembed(other.service)
    [found] = (await recall(world.service, world.caller, RecallRequest(query="ferry"))).memories
    assert (found.text, found.score_parts.cosine) == ("The ferry leaves at noon.", None)


async def test_vectors_of_the_same_embedder_are_kept(world: World) -> None:
    await world.write("s1", "First.")
    await world.settle()
    await reembed(world.service)
    assert len(world.embedder.calls) == 1


async def test_vectors_in_progress_of_the_old_embedder_are_void(world: World, make_world: Callable[..., World]) -> None:
    await world.write("s1", "First.")
    await world.settle()
    await world.write("s1", "Second.")
    other = make_world()
    other.embedder.name = "another"

    async def take_over() -> None:
        await reembed(other.service)

    await index_words(world.service, world.claim("index"))
    world.embedder.before = take_over
    with pytest.raises(LeaseLost):
        await embed_passages(world.service, world.claim("embed"))
    assert {row.embedder for row in world.rows(passages)} == {"another"}


async def test_interrupted_reembed_continues(world: World, make_world: Callable[..., World]) -> None:
    async def fail() -> None:
        raise ModelError("not yet")

    await world.write("s1", "First.")
    await world.settle()
    other = make_world()
    other.embedder.name, other.embedder.before = "another", fail
    await reembed(other.service)
    assert world.with_vector() == []
    assert world.found_by_word("first") == [1]
    other.service.embedder = FakeEmbedder(name="another")
    await reembed(other.service)
    assert [row.embedder for row in world.rows(passages)] == ["another"]


async def test_only_parked_work_is_retried(world: World) -> None:
    async def fail() -> None:
        raise ModelRefused("no")

    world.embedder.before = fail
    await world.write("s1", "First.")
    await world.settle()
    await world.write("s2", "Second.")
    assert await retry_parked(world.service) == 1
    assert await retry_parked(world.service) == 0
    assert world.task("s1", "embed").due_at == world.clock.now
    assert tasks.MAX_ATTEMPTS > world.task("s1", "embed").attempts == 0
