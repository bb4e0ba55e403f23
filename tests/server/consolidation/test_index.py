"""Turns and facts become searchable: by words even while the embedder fails, and by meaning once it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import anyio.from_thread
import pytest
from sqlalchemy import Connection, insert

from fixtures.consolidation import FakeEmbedder, World
from threefold.contract import TurnIn, UpdateFactRequest
from threefold.errors import EmbedderMismatch
from threefold_server.consolidation import index as consolidation
from threefold_server.consolidation.index import embed_passages, index_words
from threefold_server.models.ports import ModelError
from threefold_server.operations.facts import update_fact
from threefold_server.rules.access import SHARED_POOL
from threefold_server.storage.engine.tables import passages, postings
from threefold_server.storage.engine.tables import tasks as task_table
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import index
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import LeaseLost
from threefold_server.text.indexed import Passage, turn_passages
from threefold_server.text.redaction import Redact

pytestmark = pytest.mark.anyio


async def unreachable() -> None:
    raise ModelError("connection refused")


async def test_one_run_stores_words_and_vectors(world: World) -> None:
    await world.write("s1", "The ferry leaves at noon.", "Bring the tickets.")
    await world.settle()
    assert world.found_by_word("ferri") == [1]
    assert world.with_vector() == [1, 2]
    status = await world.status("s1")
    assert (status.indexed_upto, status.state) == (2, "idle")


async def test_passages_have_the_columns_for_filters(world: World) -> None:
    when = TurnIn(role="tool", name="clock", content="It is noon.", kind="tool_result")
    await world.write("s1", when)
    await world.settle()
    [row] = world.rows(passages)
    assert (row.pool, row.owner, row.source) == (world.caller.owner, world.caller.owner, world.key("s1"))
    assert (row.agent, row.session, row.speaker) == ("support", world.key("s1"), "clock")
    assert (row.event_at, row.trust, row.expires_at, row.embedder) == (world.clock.now, 0.3, None, "fake")
    assert row.length == sum(posting.tf for posting in world.rows(postings))


async def test_words_are_found_while_the_embedder_is_down(world: World) -> None:
    world.embedder.before = unreachable
    await world.write("s1", "The ferry leaves at noon.")
    await world.settle()
    await world.write("s1", "No, the ferry leaves at one.")
    await world.settle()
    assert world.found_by_word("ferri") == [1, 2]
    assert world.with_vector() == []
    status = await world.status("s1")
    assert (status.indexed_upto, status.state) == (0, "pending")
    assert status.reason is not None
    assert status.reason.startswith("embed: attempt 2 of 8 follows at 2023-11-14T")


async def test_vectors_follow_once_the_embedder_is_back(world: World) -> None:
    world.embedder.before = unreachable
    await world.write("s1", "The ferry leaves at noon.")
    await world.settle()
    world.embedder = FakeEmbedder()
    world.service.embedder = world.embedder
    world.clock.advance(60)
    await world.settle()
    assert world.with_vector() == [1]
    assert world.task("s1", "embed").attempts == 0


async def test_turns_without_words_are_skipped(world: World) -> None:
    """Users reported that one empty text broke the whole background job."""
    await world.write("s1", "...", TurnIn(role="system", content="Be brief."), "", "All is well.")
    await world.settle()
    assert world.with_vector() == [4]
    assert (await world.status("s1")).indexed_upto == 4
    assert world.embedder.calls == [["user: All is well."]]


async def test_long_session_is_indexed_in_batches(world: World) -> None:
    count = consolidation.WORDS_AT_ONCE + consolidation.VECTORS_AT_ONCE
    await world.write("s1", *(f"Remark {number}." for number in range(count)))
    await index_words(world.service, world.claim("index"))
    await embed_passages(world.service, world.claim("embed"))
    assert world.found_by_word("remark") == list(range(1, count + 1))
    assert world.with_vector() == list(range(1, count + 1))
    full, rest = divmod(count, consolidation.VECTORS_AT_ONCE)
    assert [len(call) for call in world.embedder.calls] == [consolidation.VECTORS_AT_ONCE] * full + [rest]


async def test_count_of_a_repeated_word_is_capped(world: World) -> None:
    await world.write("s1", "ha " * 80_000)
    await index_words(world.service, world.claim("index"))
    assert max(row.tf for row in world.rows(postings, term="ha")) == index.MAX_TF


async def test_turn_written_while_words_are_stored_is_indexed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.write("s1", "First.")

    def write_meanwhile(turn: AnyRow, redact: Redact) -> list[Passage]:
        monkeypatch.undo()
        anyio.from_thread.run(world.write, "s1", "Second.")
        return turn_passages(turn, redact)

    monkeypatch.setattr(consolidation, "turn_passages", write_meanwhile)
    await index_words(world.service, world.claim("index"))
    assert [row.seq for row in world.rows(passages)] == [1, 2]
    assert world.task("s1", "index").due_at is None


async def test_turn_written_while_vectors_are_made_is_indexed(world: World) -> None:
    async def write_meanwhile() -> None:
        if len(world.embedder.calls) == 1:
            await world.write("s1", "Second.")

    world.embedder.before = write_meanwhile
    await world.write("s1", "First.")
    await world.settle()
    assert world.with_vector() == [1, 2]


async def test_moved_watermark_stores_nothing(world: World) -> None:
    await world.write("s1", "First.")
    claim = world.claim("index")
    world.write_sync(lambda c: tasks.advance(c, claim, 1))
    with pytest.raises(LeaseLost):
        await index_words(world.service, claim)
    assert world.rows(passages) == []


async def test_lost_lease_stores_nothing(world: World) -> None:
    await world.write("s1", "First.")
    stale = world.claim("index")
    world.clock.advance(61)
    world.claim("index")
    with pytest.raises(LeaseLost):
        await index_words(world.service, stale)
    assert world.rows(passages) == []


async def test_session_forgotten_while_vectors_are_made_is_not_indexed(world: World) -> None:
    """Users reported that a background job wrote back an outdated copy."""

    async def forget_meanwhile() -> None:
        await world.forget(session_id="s1")

    await world.write("s1", "The code is 4711.")
    await index_words(world.service, world.claim("index"))
    world.embedder.before = forget_meanwhile
    with pytest.raises(LeaseLost):
        await embed_passages(world.service, world.claim("embed"))
    assert world.rows(passages) == []
    assert world.rows(postings) == []


async def test_session_forgotten_while_words_are_split_is_not_indexed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users reported that a background job wrote back an outdated copy."""
    await world.write("s1", "The code is 4711.")

    async def forget() -> None:
        await world.forget(session_id="s1")

    def forget_meanwhile(turn: AnyRow, redact: Redact) -> list[Passage]:
        anyio.from_thread.run(forget)
        return turn_passages(turn, redact)

    monkeypatch.setattr(consolidation, "turn_passages", forget_meanwhile)
    with pytest.raises(LeaseLost):
        await index_words(world.service, world.claim("index"))
    assert world.rows(passages) == []


async def test_facts_get_vectors_in_their_own_and_in_the_shared_pool(world: World) -> None:
    await world.save("The boat is blue.")
    await world.save("The office closes at six.", shared=True)
    assert all(row.embedder is None for row in world.rows(passages))
    await world.settle()
    assert {(row.pool, row.embedder) for row in world.rows(passages)} == {
        (world.caller.owner, "fake"),
        (SHARED_POOL, "fake"),
    }
    assert sorted(text for call in world.embedder.calls for text in call) == [
        "The boat is blue.",
        "The office closes at six.",
    ]


async def test_update_without_a_new_text_calls_no_embedder(world: World) -> None:
    saved = await world.save("Tea, not coffee.", expires_in_days=1)
    await world.settle()
    [before] = world.rows(passages)
    world.embedder.calls.clear()
    change = UpdateFactRequest(pinned=True, metadata={"from": "form"}, expires_in_days=2)
    await update_fact(world.service, world.caller, saved.id, change)
    await world.settle()
    [after] = world.rows(passages)
    assert (world.embedder.calls, after.embedder, after.part) == ([], before.embedder, before.part)
    assert (before.expires_at is None, after.expires_at) == (False, None)
    assert world.found_by_word("tea") == [0]


async def test_vectors_of_two_embedders_are_never_mixed(world: World, make_world: Callable[..., World]) -> None:
    """Users reported crashes and meaningless results after a change of the embedding model."""
    await world.write("s1", "First.")
    await world.settle()
    other = make_world()
    other.embedder.name = "another"
    await other.write("s1", "Second.")
    await index_words(other.service, other.claim("index"))
    with pytest.raises(EmbedderMismatch, match="threefold reembed"):
        await embed_passages(other.service, other.claim("embed"))
    assert world.with_vector() == [1]


async def test_pending_passage_without_its_text_is_dropped(world: World) -> None:
    await world.write("s1", "First.")
    await index_words(world.service, world.claim("index"))
    [known] = world.rows(passages)
    extra = {column.name: getattr(known, column.name) for column in passages.c if column.name != "vector"}
    world.write_sync(lambda c: c.execute(insert(passages).values({**extra, "part": 7})))
    await world.settle()
    assert [(row.part, row.embedder) for row in world.rows(passages)] == [(0, "fake")]


async def test_sources_are_removed_from_the_index_completely_or_by_turn(world: World) -> None:
    await world.write("s1", "The ferry.", "The harbour.")
    fact = await world.save("The office.", shared=True)
    await world.settle()
    owner, session = world.caller.owner, world.key("s1")
    assert world.write_sync(lambda c: index.remove(c, owner, [session], [2])) == 1
    assert world.found_by_word("ferri") == [1]
    assert world.found_by_word("harbour") == []
    key = world.rows(passages, pool=SHARED_POOL)[0].source
    assert fact.id == key.hex
    assert world.write_sync(lambda c: index.remove(c, owner, [session, key])) == 2
    assert world.rows(postings) == []


async def test_task_without_a_session_ends(world: World) -> None:
    """A worker must not repeat work for a session that no longer exists."""
    await world.write("s1", "First.")
    await world.settle()
    lost = SimpleNamespace(owner=world.caller.owner, session=world.key("gone"))
    for kind in ("index", "embed", "fold"):
        world.write_sync(lambda c, kind=kind: tasks.schedule(c, lost.owner, lost.session, kind, world.clock.now))
    await world.settle()
    assert [row for row in world.rows(task_table) if row.due_at is not None] == []


@pytest.mark.parametrize(("tokens", "largest"), [(1, 1), (30, 3), (10_000, 9)])
async def test_words_are_stored_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, tokens: int, largest: int
) -> None:
    slices: list[int] = []
    add_turns = index.add_turns

    def noted(connection: Connection, agent: str, entries: Sequence[tuple[AnyRow, Sequence[Passage]]]) -> None:
        slices.append(len(entries))
        add_turns(connection, agent, entries)

    monkeypatch.setattr(index, "SLICE_TOKENS", tokens)
    monkeypatch.setattr(index, "add_turns", noted)
    await world.write("s1", *["one two three four five six seven eight nine ten"] * 9)
    await world.settle()
    assert sum(slices) == 9
    assert max(slices) == largest
    assert world.found_by_word("seven") == list(range(1, 10))


async def test_words_outside_of_the_passages_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threefold_server.text.indexed.MAX_UNSEEN", 50)
    many = " ".join(f"word{number}" for number in range(6_000))
    await world.write("s1", f"zebra zebra {many} zebra zebra")
    await world.settle()
    rows = world.rows(postings)
    assert set(world.found_by_word("zebra")) == {1}
    last = [row for row in rows if row.part == max(row.part for row in rows)]
    assert len(last) < 50 + 500


async def test_words_are_stored_in_short_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consolidation, "TERMS_PER_COMMIT", 10)
    sizes = [4, 4, 4, 25, 1, 9, 1]
    found = [SimpleNamespace(tf=dict.fromkeys(range(size), 1)) for size in sizes]
    entries: Any = [(None, [passage]) for passage in found]
    slices = [[len(passages[0].tf) for _, passages in part] for part in consolidation.slices(entries)]
    assert slices == [[4, 4], [4], [25], [1, 9], [1]]
    assert [list(part) for part in consolidation.slices([])] == [[]], "a task without turns is completed, too"
