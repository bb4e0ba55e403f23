"""Digests: the oldest turns are folded down to the target in whole groups, and outdated digests are never stored."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import anyio.from_thread
import anyio.lowlevel
import pytest
from sqlalchemy import Connection

from fixtures.consolidation import World
from threefold.contract import Turn, TurnIn
from threefold.render import join_block
from threefold_server.clock import from_micros
from threefold_server.consolidation import fold
from threefold_server.consolidation.fold import digest_turns, fold_session, oldest_groups, portions
from threefold_server.models.ports import DigestTurn, ModelError
from threefold_server.operations.browse import list_digests
from threefold_server.storage.engine.tables import digests, sessions, turns
from threefold_server.storage.sessions import digests as digest_store
from threefold_server.storage.sessions import folding
from threefold_server.storage.sessions import turns as turn_store
from threefold_server.storage.sessions.tasks import LeaseLost
from threefold_server.text.tokens import count_tokens

pytestmark = pytest.mark.anyio


def said(number: int) -> str:
    """Return a turn of about ten tokens with this number."""
    return f"Remark {number} about the harbour and its walls."


def turn(seq: int, tokens: int, **fields: Any) -> Turn:
    content: dict[str, Any] = {"id": str(seq), "role": "user", "content": "", "created_at": from_micros(0), **fields}
    return Turn(seq=seq, tokens=tokens, **content)


def undigested(world: World) -> int:
    [row] = world.rows(sessions)
    return row.tokens - row.digested_tokens


@pytest.mark.parametrize(
    ("tokens", "target", "folded"),
    [
        pytest.param([10, 10, 10, 10], 20, [1, 2], id="down to the target"),
        pytest.param([10, 10, 10, 10], 25, [1, 2], id="below the target if groups do not fit exactly"),
        pytest.param([10, 10], 20, [], id="nothing at the target"),
        pytest.param([10, 90], 20, [1], id="the newest stays even if larger than the target"),
        pytest.param([90], 20, [], id="the only one stays"),
        pytest.param([], 20, [], id="no turns"),
        pytest.param([fold.CALL_TOKENS, 10, 10, 10], 20, [1], id="one version uses about one call"),
    ],
)
def test_oldest_turns_are_chosen(tokens: list[int], target: int, folded: list[int]) -> None:
    outline = [turn(seq, count) for seq, count in enumerate(tokens, 1)]
    assert [chosen.seq for chosen in oldest_groups(outline, sum(tokens), target)] == folded


def test_tool_call_stays_with_its_results() -> None:
    outline = [
        turn(1, 10),
        turn(2, 10, kind="tool_call", role="assistant"),
        turn(3, 10, kind="tool_result", role="tool"),
        turn(4, 10),
    ]
    assert [chosen.seq for chosen in oldest_groups(outline, 40, 25)] == [1, 2, 3]


def test_model_calls_are_limited_and_lose_no_text() -> None:
    long = " ".join(f"word{number}" for number in range(20_000))
    said = [turn(1, 9, content="before"), turn(2, 9, content=long), turn(3, 9, content="after")]
    read = list(digest_turns(said, str))
    calls = list(portions(read))
    assert len(calls) > 2
    assert all(sum(count_tokens(piece.text) for piece in call) <= fold.CALL_TOKENS for call in calls)
    assert "".join(piece.text for call in calls for piece in call) == f"before{long}after"
    assert [piece.seq for call in calls for piece in call] == [1, *[2] * (len(read) - 2), 3]


def test_summarizer_reads_only_what_was_said() -> None:
    block = join_block([], ["- recalled"], [])
    picture = "data:image/png;base64," + "iVBO" * 100
    read = digest_turns(
        [
            turn(1, 9, content="Be brief.", role="system"),
            turn(2, 9, content=f"{block}\nLook at this: {picture}", name="Ana"),
            turn(3, 9, content="42", role="tool", name="calculator", kind="tool_result"),
            turn(4, 9, content=picture),
        ],
        str,
    )
    assert list(read) == [DigestTurn(2, "Ana", "user", "Look at this:"), DigestTurn(3, "calculator", "tool", "42")]


async def test_nothing_is_folded_before_the_trigger(world: World) -> None:
    await world.write("s1", said(1), said(2))
    await world.settle()
    assert world.rows(digests) == []
    assert (await world.status("s1")).digested_upto == 0


async def test_fold_past_the_trigger_leaves_the_target(world: World) -> None:
    await world.write("s1", *map(said, range(1, 13)))
    await world.settle()
    [digest] = world.rows(digests)
    assert undigested(world) <= world.service.settings.target
    assert undigested(world) == sum(row.tokens for row in world.rows(turns) if row.seq > digest.upto_seq)
    assert (digest.version, digest.from_seq, digest.parent, digest.model) == (1, 1, None, "fake-digest")
    assert digest.text == "\n".join(f"[{seq}] {said(seq)}" for seq in range(1, digest.upto_seq + 1))
    assert digest.tokens == count_tokens(digest.text)
    status = await world.status("s1")
    assert (status.digested_upto, status.state) == (digest.upto_seq, "idle")


async def test_versions_form_a_chain_and_old_ones_stay(world: World) -> None:
    """Users reported that an early rule was gone after compaction. Each version names its parent, and older ones
    stay."""
    seen: list[Any] = []
    for start in (1, 13, 25):
        await world.write("s1", *map(said, range(start, start + 12)))
        await world.settle()
        assert [tuple(row) for row in world.rows(digests)[: len(seen)]] == seen
        seen = [tuple(row) for row in world.rows(digests)]
    versions = (await list_digests(world.service, world.caller, "s1", None, 50)).digests
    assert [(digest.version, digest.parent, digest.from_seq) for digest in versions] == [
        (3, 2, 1),
        (2, 1, 1),
        (1, None, 1),
    ]
    assert versions[0].upto_seq > versions[1].upto_seq > versions[2].upto_seq
    covered = [row.tokens for row in world.rows(turns) if row.seq <= versions[0].upto_seq]
    assert world.rows(digests)[-1].covered_tokens == sum(covered)


async def test_groups_are_not_split(world: World) -> None:
    call = TurnIn(role="assistant", kind="tool_call", group="g", content=said(1))
    results = [TurnIn(role="tool", kind="tool_result", group="g", content=said(seq)) for seq in range(2, 11)]
    await world.write("s1", said(0), call, *results, said(8), said(9))
    await world.settle()
    assert world.rows(digests)[-1].upto_seq == 11


async def test_newest_group_stays_even_if_large_and_the_work_ends(world: World) -> None:
    await world.write("s1", said(1), " ".join(map(said, range(40))))
    await world.settle()
    assert world.rows(digests)[-1].upto_seq == 1
    assert undigested(world) > world.service.settings.trigger
    assert (await world.status("s1")).state == "idle"


async def test_huge_turn_is_folded_in_pieces(world: World) -> None:
    huge = " ".join(map(said, range(3_000)))
    await world.write("s1", huge, said(1), said(2))
    await world.settle()
    assert world.rows(digests)[-1].upto_seq == 1
    assert len(world.summarizer.calls) > 2
    assert all(sum(count_tokens(piece.text) for piece in call) <= fold.CALL_TOKENS for call in world.summarizer.calls)


async def test_long_backlog_gives_several_versions(world: World) -> None:
    await world.write("s1", *map(said, range(1_000)))
    await world.settle()
    assert len(world.rows(digests)) > 1
    assert undigested(world) <= world.service.settings.target


async def test_fold_that_lost_its_lease_stores_nothing(world: World) -> None:
    await world.write("s1", *map(said, range(12)))
    stale = world.claim("fold")

    async def lose_lease() -> None:
        world.clock.advance(61)
        world.claim("fold")

    world.summarizer.before = lose_lease
    with pytest.raises(LeaseLost):
        await fold_session(world.service, stale)
    assert world.rows(digests) == []


async def test_turn_forgotten_during_a_fold_is_in_no_digest(world: World) -> None:
    """Users reported that a background job wrote back an outdated copy. The fold starts before the forget."""
    await world.write("s1", TurnIn(role="user", id="t1", content="The code is 4711."), *map(said, range(12)))

    async def forget_meanwhile() -> None:
        if len(world.summarizer.calls) == 1:
            await world.forget(memory_ids=["t1"])

    world.summarizer.before = forget_meanwhile
    await world.settle()
    assert "4711" in world.summarizer.calls[0][0].text
    [digest] = world.rows(digests)
    assert "4711" not in digest.text
    assert said(0) in digest.text


async def test_fact_saved_during_a_fold_remains(world: World) -> None:
    """Users reported that a background job wrote back an outdated copy."""

    async def save_meanwhile() -> None:
        await world.save("The boat is blue.")

    world.summarizer.before = save_meanwhile
    await world.write("s1", *map(said, range(12)))
    await world.settle()
    assert len(world.rows(digests)) == 1
    assert world.found_by_word("boat") == [0]


async def test_digest_stored_during_a_fold_is_not_overwritten(world: World) -> None:
    await world.write("s1", *map(said, range(12)))
    claim = world.claim("fold")
    other = {"version": 1, "text": "theirs", "from_seq": 1, "upto_seq": 3, "covered_tokens": 1, "model": "m"}

    async def fold_meanwhile() -> None:
        values = {**other, "tokens": 1, "created_at": world.clock.now}
        world.write_sync(lambda c: digest_store.add(c, claim.owner, claim.subject, values))

    world.summarizer.before = fold_meanwhile
    with pytest.raises(LeaseLost):
        await fold_session(world.service, claim)
    assert [row.text for row in world.rows(digests)] == ["theirs"]


async def test_turns_written_during_a_fold_are_folded_past_the_trigger(world: World) -> None:
    async def write_meanwhile() -> None:
        if len(world.summarizer.calls) == 1:
            await world.write("s1", *map(said, range(12, 24)))

    world.summarizer.before = write_meanwhile
    await world.write("s1", *map(said, range(12)))
    await fold_session(world.service, world.claim("fold"))
    assert undigested(world) <= world.service.settings.target
    assert world.task("s1", "fold").due_at is None


async def test_turns_written_at_the_end_of_a_fold_schedule_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.write("s1", *map(said, range(12)))
    look, loop = folding.read_input, anyio.lowlevel.current_token()

    def write_after_the_last_look(connection: Connection, owner: UUID, session: UUID) -> folding.FoldInput:
        found = look(connection, owner, session)
        if found.digest is not None:
            monkeypatch.undo()
            anyio.from_thread.run(world.write, "s1", *map(said, range(12, 24)), token=loop)
        return found

    monkeypatch.setattr(folding, "read_input", write_after_the_last_look)
    await fold_session(world.service, world.claim("fold"))
    assert len(world.rows(digests)) == 1
    assert world.task("s1", "fold").due_at == world.clock.now
    await world.settle()
    assert len(world.rows(digests)) == 2


async def test_forget_that_deletes_a_digest_folds_the_rest_again(world: World) -> None:
    await world.write("s1", TurnIn(role="user", id="t1", content="The code is 4711."), *map(said, range(10)))
    await world.settle()
    assert "4711" in world.rows(digests)[-1].text
    await world.forget(memory_ids=["t1"])
    assert world.rows(digests) == []
    await world.settle()
    [digest] = world.rows(digests)
    assert "4711" not in digest.text
    assert digest.version == 2
    assert undigested(world) <= world.service.settings.target


async def test_failed_fold_leaves_the_digest_unchanged(world: World) -> None:
    async def fail() -> None:
        raise ModelError("overloaded")

    await world.write("s1", *map(said, range(12)))
    world.summarizer.before = fail
    with pytest.raises(ModelError):
        await fold_session(world.service, world.claim("fold"))
    assert world.rows(digests) == []


@pytest.mark.parametrize(("tokens", "reads"), [(1, 6), (50, 3), (100_000, 1)])
async def test_contents_of_a_large_group_are_read_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, tokens: int, reads: int
) -> None:
    pages: list[int] = []
    page = turn_store.page

    def noted(connection: Connection, **options: Any) -> list[Turn]:
        found = page(connection, **options)
        pages.append(len(found))
        return found

    monkeypatch.setattr(fold, "SLICE_TOKENS", tokens)
    monkeypatch.setattr(turn_store, "page", noted)
    group = [TurnIn(role="user", content=f"{n} " + "talk " * 19, group="g") for n in range(6)]
    await world.write("s1", *group, "The end. " * 20)
    await world.settle()
    assert (len(pages), sum(pages)) == (reads, 6)
    texts = [turn.text.split()[0] for call in world.summarizer.calls for turn in call]
    assert texts == [str(n) for n in range(6)]
