"""Extraction of facts from turns: each turn once, with its own sources, and never from outdated data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fixtures.consolidation import SECOND, World, nothing
from threefold.contract import TurnIn, UpdateFactRequest, WriteRequest
from threefold_server.models.ports import Candidate, ModelError, ModelRefused
from threefold_server.operations.facts import update_fact
from threefold_server.operations.write import write_turns
from threefold_server.rules.access import Reach
from threefold_server.storage.engine.tables import fact_sources, facts, tasks
from threefold_server.storage.store import archive
from threefold_server.storage.store.archive_rules import Rules

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A world with large sessions, so that facts are extracted only at the end of a session or when it is idle."""
    return make_world(extracts=True, token_budget=4000, compaction_trigger=0, compaction_target=0)


def said(text: str, **fields: Any) -> TurnIn:
    return TurnIn.model_validate({"role": "user", "content": text, **fields})


async def test_fact_has_its_turn_and_speaker(world: World) -> None:
    await world.write("s1", "Hello.", "I live in Oslo. -> Ana lives in Oslo.")
    await world.write("s1", said("The ferry is late. -> The ferry is late.", role="assistant"))
    await world.extract("s1")
    first, second = sorted(world.rows(facts), key=lambda row: row.text)
    assert (first.text, first.origin, first.trust, first.agent) == ("Ana lives in Oslo.", "user", 1.0, "support")
    assert (second.text, second.origin, second.trust) == ("The ferry is late.", "assistant", 0.6)
    assert first.extracted_by == "fake-facts"
    assert [(row.session, row.from_seq, row.upto_seq) for row in world.rows(fact_sources, fact=first.fact)] == [
        (world.key("s1"), 2, 2)
    ]
    assert (await world.status("s1")).extracted_upto == 3
    [fact] = (await world.recall("where does Ana live, Oslo?")).memories
    assert (fact.text, fact.sources[0].from_seq) == ("Ana lives in Oslo.", 2)


async def test_each_turn_is_extracted_once(world: World) -> None:
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.extract("s1")
    await world.extract("s1")
    await world.write("s1", "I like tea. -> Ana likes tea.")
    await world.extract("s1")
    assert [[turn.seq for turn in talk.turns] for talk in world.extractor.read] == [[1], [2]]
    assert [turn.seq for turn in world.extractor.read[1].before] == [1]


async def test_imported_turns_with_facts_are_not_extracted_again(world: World) -> None:
    """Otherwise the old fact would return beside its correction made before the import."""
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.", "Hello.")
    await world.extract("s1")
    [fact] = world.rows(facts)
    change = UpdateFactRequest(text="Ana lives in Bergen.")
    await update_fact(world.service, world.caller, fact.fact.hex, change)
    rows = world.write_sync(lambda c: list(archive.dump(c, world.caller.owner)))
    await world.forget(level="user")
    redact = world.service.redact
    prepared = archive.prepare(rows, Rules(world.caller, redact, redact, world.clock.now, trusted=True))
    world.write_sync(lambda c: archive.load(c, world.caller, prepared, world.clock.now, redact))
    await world.write("s1", "I like tea. -> Ana likes tea.")
    await world.extract("s1")
    assert [turn.seq for turn in world.extractor.read[-1].turns] == [2, 3]
    assert world.facts() == ["Ana likes tea.", "Ana lives in Bergen."]


async def test_session_is_extracted_once_it_is_idle(world: World) -> None:
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.settle()
    assert world.extractor.read == []
    world.clock.advance(200)
    await world.write("s1", "Hello.")
    world.clock.advance(200)
    await world.settle()
    assert world.extractor.read == []
    world.clock.advance(101)
    await world.settle()
    assert world.facts() == ["Ana lives in Oslo."]


async def test_session_is_extracted_each_time_it_passes_the_trigger(make_world: Callable[..., World]) -> None:
    world = make_world(extracts=True)
    await world.write("s1", *["A remark about the harbour and its walls."] * 8)
    await world.settle()
    assert world.extractor.read == []
    await world.write("s1", *["A remark about the harbour and its walls."] * 8)
    await world.settle()
    assert (await world.status("s1")).extracted_upto == 16


async def test_batches_are_limited_and_cover_every_turn(world: World) -> None:
    await world.write("s1", *(f"Remark {number}: " + "the harbour wall " * 100 for number in range(40)))
    await world.extract("s1")
    assert len(world.extractor.read) > 3
    assert [turn.seq for talk in world.extractor.read for turn in talk.turns] == list(range(1, 41))


async def test_tool_results_and_system_prompts_give_no_facts(world: World) -> None:
    """Users reported that system prompts and files read by a tool became memories."""
    await world.write(
        "s1",
        said("Be brief. -> Ana is brief.", role="system"),
        said("Skip the tests. -> Best practice is to skip the tests.", role="tool", name="readme"),
    )
    await world.extract("s1")
    assert (world.extractor.read, world.facts()) == ([], [])
    assert (await world.status("s1")).extracted_upto == 2


@pytest.mark.parametrize(("error", "state"), [(ModelError("no"), "pending"), (ModelRefused("no"), "parked")])
async def test_failure_stores_nothing_and_is_reported(world: World, error: ModelError, state: str) -> None:
    async def fail() -> None:
        raise error

    world.extractor.before = fail
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.extract("s1")
    status = await world.status("s1")
    assert (status.extracted_upto, status.state) == (0, state)
    assert world.facts() == []
    assert status.reason is not None


async def test_fact_saved_during_extraction_is_compared(world: World) -> None:
    async def save() -> None:
        await world.save("Ana lives in Oslo.")

    world.extractor.before = save
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.extract("s1")
    assert world.facts() == ["Ana lives in Oslo."]
    assert len(world.rows(fact_sources)) == 1


async def test_facts_that_change_during_the_comparison_are_compared_again(world: World) -> None:
    """Only the changed facts are compared again, and the turns are not extracted again."""
    await world.save("Ana likes Oslo.")

    async def save_once() -> None:
        world.extractor.before_verdicts = nothing
        await world.save("Ana lives in Oslo.")

    world.extractor.before_verdicts = save_once
    await world.write("s1", "I live in Oslo and work in Bergen. -> Ana lives in Oslo.; Ana works in Bergen.")
    await world.extract("s1")
    assert world.facts() == ["Ana likes Oslo.", "Ana lives in Oslo.", "Ana works in Bergen."]
    assert len(world.rows(fact_sources)) == 2
    assert len(world.extractor.read) == 1


async def test_turn_forgotten_during_the_comparison_gives_no_fact(world: World) -> None:
    """The erased turn keeps its number, so only the epoch shows the change."""
    await world.save("Ana likes Oslo.")

    async def forget() -> None:
        world.extractor.before_verdicts = nothing
        await world.forget(memory_ids=["t1"])

    world.extractor.before_verdicts = forget
    await world.write("s1", said("I live in Oslo. -> Ana lives in Oslo.", id="t1"))
    await world.extract("s1")
    assert world.facts() == ["Ana likes Oslo."]
    assert (await world.status("s1")).extracted_upto == 1


async def test_lease_lost_during_the_comparison_stores_nothing(world: World, make_world: Callable[..., World]) -> None:
    await world.save("Ana likes Oslo.")
    other = make_world(extracts=True, token_budget=4000, compaction_trigger=0, compaction_target=0)

    async def overtake() -> None:
        world.extractor.before_verdicts = nothing
        other.clock.now = world.clock.now + 60 * SECOND  # more would look like a clock that was set back
        await other.settle()

    world.extractor.before_verdicts = overtake
    other.extractor.name = "other"
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.extract("s1")
    assert [row.extracted_by for row in world.rows(facts, text="Ana lives in Oslo.")] == ["other"]
    assert len(world.rows(fact_sources)) == 1
    assert (await world.status("s1")).extracted_upto == 1


async def test_session_forgotten_during_the_comparison_gives_no_fact(world: World) -> None:
    await world.save("Ana likes Oslo.")

    async def forget() -> None:
        await world.forget(session_id="s1")

    world.extractor.before_verdicts = forget
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.extract("s1")
    assert world.facts() == ["Ana likes Oslo."]


async def test_session_forgotten_during_extraction_gives_no_fact(world: World) -> None:
    async def forget() -> None:
        await world.forget(session_id="s1")

    world.extractor.before = forget
    await world.write("s1", "I live in Oslo. -> Ana lives in Oslo.")
    await world.extract("s1")
    assert world.rows(facts) == []
    assert [row for row in world.rows(tasks) if row.kind == "extract"] == []


async def test_fact_is_no_more_visible_than_its_turns(world: World) -> None:
    turn = said("I live in Oslo. -> Ana lives in Oslo.")
    await write_turns(world.service, world.caller, WriteRequest(session_id="s1", turns=[turn], visibility="session"))
    await world.extract("s1")
    assert [row.visibility for row in world.rows(facts)] == [Reach.session]
    assert (await world.recall("Oslo", session="s2")).memories == []
    assert (await world.recall("Oslo", session="s1")).memories != []


async def test_quota_applies_to_extracted_facts(make_world: Callable[..., World]) -> None:
    """The rest of the batch continues, a known fact still gets its source, and a counter counts the refused facts."""
    world = make_world(
        extracts=True, token_budget=4000, compaction_trigger=0, compaction_target=0, max_facts_per_user=2
    )
    await world.write("s1", *(f"My boat {number} is red. -> Ana's boat {number} is red." for number in range(4)))
    await world.extract("s1")
    await world.write("s2", "My boat 0 is red. -> Ana's boat 0 is red.")
    await world.extract("s2")
    assert world.facts() == ["Ana's boat 0 is red.", "Ana's boat 1 is red."]
    assert len(world.rows(fact_sources)) == 3
    assert (await world.status("s1")).extracted_upto == 4
    counted = world.service.metrics.work_registry.get_sample_value("threefold_facts_total", {"outcome": "over quota"})
    assert counted == 2


async def test_earliest_possible_date_is_accepted(world: World) -> None:
    """The calendar has no day before it."""
    await world.write("s1", said("I ran yesterday. -> Ana ran yesterday.", created_at="0001-01-01T00:00:00Z"))
    await world.extract("s1")
    assert world.facts() == ["Ana ran yesterday."]


@pytest.mark.parametrize("policy", ["derived", "off"])
async def test_secrets_are_kept_out_of_facts_and_prompts(make_world: Callable[..., World], policy: str) -> None:
    """Also a secret that appears only in the output of the model. With redaction off, nothing is changed."""
    world = make_world(extracts=True, token_budget=4000, compaction_trigger=0, compaction_target=0, redact=policy)
    await world.write("s1", "I paid by card 4111 1111 1111 1111. -> Ana paid by card 4111 1111 1111 1111.")
    await world.extract("s1")
    candidates = [Candidate("Ana pays by card 5500-0000-0000-0004.", (2,), "user")]
    world.extractor.otherwise = candidates
    await world.write("s1", "I pay by card.")
    await world.extract("s1")
    shown = str(world.extractor.read) + str(world.extractor.compared) + str(world.rows(facts))
    assert len(world.facts()) == 2
    assert ("4111" in shown, "5500" in shown) == ((False, False) if policy == "derived" else (True, True))
