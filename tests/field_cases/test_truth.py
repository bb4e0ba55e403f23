"""Reports on contradictions: of two statements that exclude each other, the later one is current.

The model is scripted: each turn states its fact after an arrow, and the test sets the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from fixtures.consolidation import SECOND, START, World
from threefold.contract import ForgetSource, TurnIn, UpdateFactRequest
from threefold_server.clock import from_micros
from threefold_server.consolidation.rebuild import rebuild
from threefold_server.operations.facts import fact_history, restore_fact, update_fact
from threefold_server.operations.forget import delete_fact
from threefold_server.storage.engine.tables import fact_sources, facts

pytestmark = pytest.mark.anyio

DAY = 86_400 * SECOND

CONTRADICTIONS = [
    pytest.param("Ana lives in Lisbon.", "Ana moved to Oslo.", id="home"),
    pytest.param("Noor is on the project Falcon.", "Noor was moved to the project Heron.", id="project"),
    pytest.param("The team deploys with Jenkins.", "The team deploys with Argo now.", id="tool"),
    pytest.param("Ana's manager is Boris.", "Ana's manager is Carla.", id="manager"),
    pytest.param("The price is 12 EUR.", "The price is 14 EUR.", id="price"),
    pytest.param("The version is 2.1.", "The version is now 2.2.", id="version"),
    pytest.param("Ana's phone is 555-1234.", "Ana's phone is 555-9876.", id="phone"),
    pytest.param("Ana eats meat.", "Ana does not eat meat any more.", id="a habit that ended"),
]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A world with large sessions, so that facts are extracted only at the end of a session."""
    return make_world(extracts=True, token_budget=4000, compaction_trigger=0, compaction_target=0)


def said(fact: str, day: float = 0, **fields: Any) -> TurnIn:
    """Return a turn that states a fact, the given number of days after the start of the clock."""
    at = from_micros(START + int(day * DAY))
    return TurnIn.model_validate({"role": "user", "content": f"{fact} -> {fact}", "created_at": at, **fields})


async def tell(world: World, session: str, *turns: TurnIn) -> None:
    await world.write(session, *turns)
    await world.extract(session)


@pytest.mark.parametrize(("old", "new"), CONTRADICTIONS)
async def test_later_statement_replaces_the_earlier_one(world: World, old: str, new: str) -> None:
    """Reported: the old and the new value were both returned, or only some kinds of change were noticed.

    The recall returns the new value alone; the history says until when the old one was valid.
    """
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts[new, old] = "excludes"
    await tell(world, "s1", said(old, 0))
    await tell(world, "s2", said(new, 30))
    assert (world.facts(), world.facts(current=False)) == ([new], [old])
    recalled = await world.recall(f"{old} {new}")
    assert [fact.text for fact in recalled.memories] == [new]
    assert old not in recalled.block
    versions = (await fact_history(world.service, world.caller, recalled.memories[0].id)).versions
    assert [version.text for version in versions] == [old, new]
    assert versions[0].valid_to == versions[1].valid_from == from_micros(START + 30 * DAY)
    assert versions[0].superseded_by == versions[1].id


@pytest.mark.parametrize(("old", "new"), CONTRADICTIONS)
async def test_older_turn_written_later_does_not_replace_a_newer_one(world: World, old: str, new: str) -> None:
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts[old, new] = "excludes"
    await tell(world, "s1", said(new, 30))
    await tell(world, "s2", said(old, 0))
    assert (world.facts(), world.facts(current=False)) == ([new], [old])
    [history] = world.rows(facts, text=old)
    assert (history.valid_from, history.valid_to) == (START, START + 30 * DAY)
    assert [fact.text for fact in (await world.recall(f"{old} {new}")).memories] == [new]


async def test_last_statement_of_a_batch_wins(world: World) -> None:
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon."), said("Ana moved to Oslo."))
    assert world.facts() == ["Ana moved to Oslo."]


async def test_statement_dated_in_the_future_does_not_win(world: World) -> None:
    """A future date counts as the time of arrival, so later statements replace it."""
    world.extractor.verdicts["Ana lives in Lisbon.", "Ana lives in Oslo."] = "excludes"
    await tell(world, "s1", said("Ana lives in Oslo.", day=300))
    world.clock.advance(86_400)
    await tell(world, "s2", said("Ana lives in Lisbon.", day=1))
    assert world.facts() == ["Ana lives in Lisbon."]


async def test_value_that_changes_back_is_current_again(world: World) -> None:
    world.clock.advance(40 * 86_400)
    for old, new in (("Lisbon", "Oslo"), ("Oslo", "Lisbon")):
        world.extractor.verdicts[f"Ana lives in {new}.", f"Ana lives in {old}."] = "excludes"
    for day, city in enumerate(["Lisbon", "Oslo", "Lisbon"]):
        await tell(world, f"s{day}", said(f"Ana lives in {city}.", day))
    assert world.facts() == ["Ana lives in Lisbon."]
    assert world.facts(current=False) == ["Ana lives in Lisbon.", "Ana lives in Oslo."]


@pytest.mark.parametrize("days", [(3, 5), (5, 3)])
async def test_repeated_statement_is_dated_by_its_sources(world: World, days: tuple[int, int]) -> None:
    """Reported: merging duplicates lost their dates. The fact is valid from the first statement and as recent as the
    last."""
    world.clock.advance(40 * 86_400)
    for day in days:
        await tell(world, f"s{day}", said("The heron nests in the harbour.", day))
    [fact] = (await world.recall("where does the heron nest?")).memories
    assert (fact.valid_from, fact.event_at) == (from_micros(START + 3 * DAY), from_micros(START + 5 * DAY))
    assert [source.session_id for source in fact.sources] == ["s3", "s5"]


async def test_repeated_statement_is_one_fact_with_all_sources(world: World) -> None:
    """Reported: the same statement was stored several times, or deleted when repeated. Five spellings and
    paraphrases."""
    world.extractor.verdicts["Ana's home is Oslo.", "Ana lives in Oslo."] = "same"
    texts = [
        "Ana lives in Oslo.",
        "Ana lives in Oslo",
        "ana lives in  oslo.",
        "Ana's home is Oslo.",
        "Ana lives in Oslo!",
    ]
    for number, text in enumerate(texts):
        await tell(world, f"s{number}", said(text))
    assert world.facts() == ["Ana lives in Oslo."]
    assert len(world.rows(fact_sources)) == 5
    [fact] = (await world.recall("Ana lives in Oslo")).memories
    assert len(fact.sources) == 5


async def test_recalled_text_and_its_echo_add_no_source(world: World) -> None:
    """Reported: recalled text was stored again, 31 copies of it. Thirty rounds of recall, answer and write."""
    await tell(world, "s0", said("Ana lives in Oslo."))
    for number in range(30):
        recalled = await world.recall("Where does Ana live, in Oslo?", session=f"r{number}")
        question = TurnIn(role="user", content=f"{recalled.block}\nWhere do I live?")
        echo = said("Ana lives in Oslo.", role="assistant")
        await tell(world, f"r{number}", question, echo)
    assert [row.text for row in world.rows(facts)] == ["Ana lives in Oslo."]
    assert len(world.rows(fact_sources)) == 1


async def test_statement_of_the_assistant_replaces_no_fact_of_the_user(world: World) -> None:
    """Reported: a suggestion of the assistant became a preference of the user."""
    world.extractor.verdicts["Ana is vegan.", "Ana eats meat."] = "excludes"
    await tell(world, "s1", said("Ana eats meat."))
    await tell(world, "s2", said("Ana is vegan.", role="assistant"))
    assert [(row.text, row.origin) for row in world.rows(facts) if row.valid_to is None and row.origin == "user"] == [
        ("Ana eats meat.", "user")
    ]
    assert {row.origin for row in world.rows(facts, text="Ana is vegan.")} == {"assistant"}


async def test_user_confirms_a_statement_of_the_assistant(world: World) -> None:
    await tell(world, "s1", said("Ana is vegan.", role="assistant"))
    await tell(world, "s2", said("Ana is vegan."))
    [current] = [row for row in world.rows(facts) if row.valid_to is None]
    assert (current.origin, current.trust) == ("user", 1.0)


async def test_correction_by_id_leaves_one_current_fact(world: World) -> None:
    """Reported: correcting by text added a second fact, while correcting by id replaced it."""
    await tell(world, "s1", said("Ana lives in Lisbon."))
    [fact] = (await world.recall("Ana Lisbon")).memories
    world.clock.advance(60)
    update = UpdateFactRequest(text="Ana lives in Oslo.")
    corrected = await update_fact(world.service, world.caller, fact.id, update)
    assert world.facts() == ["Ana lives in Oslo."]
    assert (await fact_history(world.service, world.caller, corrected.id)).versions[0].superseded_by == corrected.id


async def test_restored_fact_survives_a_rebuild(world: World) -> None:
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 0))
    await tell(world, "s2", said("Ana moved to Oslo.", 30))
    [old] = world.rows(facts, text="Ana lives in Lisbon.")
    await restore_fact(world.service, world.caller, old.fact.hex)
    await rebuild(world.service)
    assert (world.facts(), world.facts(current=False)) == (["Ana lives in Lisbon."], ["Ana moved to Oslo."])


async def test_rebuild_extracts_the_same_facts_again(world: World) -> None:
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 0), said("Ana likes tea.", 1))
    await tell(world, "s2", said("Ana moved to Oslo.", 30))
    await world.save("The boat is blue.")
    before = world.facts(), world.facts(current=False), len(world.rows(fact_sources))
    await rebuild(world.service)
    assert (world.facts(), world.facts(current=False), len(world.rows(fact_sources))) == before
    assert (await world.status("s1")).extracted_upto == 2


async def test_rebuild_does_not_bring_a_deleted_fact_back(world: World) -> None:
    await tell(world, "s1", said("Ana lives in Oslo."), TurnIn(role="user", content="Tea. -> Ana drinks tea."))
    [fact] = world.rows(facts, text="Ana lives in Oslo.")
    await delete_fact(world.service, world.caller, fact.fact.hex, sources=False, in_session=None)
    await rebuild(world.service)
    assert world.facts() == ["Ana drinks tea."]
    await tell(world, "s2", said("Ana lives in Oslo."))
    assert world.facts() == ["Ana drinks tea.", "Ana lives in Oslo."]


async def test_forgetting_a_version_makes_the_earlier_one_current(world: World) -> None:
    """Reported: a session was deleted, but the conclusions drawn from it remained."""
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 0))
    await tell(world, "s2", said("Ana moved to Oslo.", 30))
    await world.forget(session_id="s2")
    assert (world.facts(), world.facts(current=False)) == (["Ana lives in Lisbon."], [])
    assert [fact.text for fact in (await world.recall("Ana Lisbon")).memories] == ["Ana lives in Lisbon."]


@pytest.mark.parametrize("since", [None, from_micros(START - DAY)])
async def test_forgetting_a_session_as_a_source_keeps_facts_with_other_support(
    world: World, since: datetime | None
) -> None:
    """Reported: a bad memory could not be rolled back. Selected by source, with and without a date."""
    await tell(world, "s1", said("Ana lives in Oslo."), said("Ana likes tea."))
    await tell(world, "s2", said("Ana lives in Oslo."))
    await world.save("The boat is blue.", session_id="s1")
    await world.forget(source=ForgetSource(kind="session", name="s1"), since=since)
    assert world.facts() == ["Ana lives in Oslo."]
    await rebuild(world.service)
    assert world.facts() == ["Ana lives in Oslo."]
    assert [row.session for row in world.rows(fact_sources)] == [world.key("s2")]


async def test_similar_facts_of_one_project_stay_separate(world: World) -> None:
    """Reported: compaction merged similar memories into one giant memory."""
    texts = [f"The harbour project has pier {number} painted by crew {number}." for number in range(30)]
    await tell(world, "s1", *map(said, texts))
    for _ in range(2):
        await rebuild(world.service)
    assert world.facts() == sorted(texts)


async def test_recall_as_of_an_earlier_moment_returns_what_was_valid_then(world: World) -> None:
    """Reported: "yesterday" included today, and as of yesterday excluded yesterday."""
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 1))
    await tell(world, "s2", said("Ana moved to Oslo.", 30), said("Ana likes tea.", 31))

    async def at(micros: int) -> set[str]:
        recalled = await world.recall("Ana Lisbon Oslo tea", as_of=from_micros(micros))
        assert recalled.window == []
        return {fact.text for fact in recalled.memories}

    assert await at(START) == set()
    assert await at(START + DAY) == await at(START + 30 * DAY - 1) == {"Ana lives in Lisbon."}
    assert await at(START + 30 * DAY) == {"Ana moved to Oslo."}
    assert await at(START + 31 * DAY) == {"Ana moved to Oslo.", "Ana likes tea."}


async def test_turn_is_left_out_when_its_facts_answer_the_recall(world: World) -> None:
    """A turn is left out if a returned fact cites it or if all its facts are history. It stays if one is still
    current."""
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    both = TurnIn(
        role="user",
        content="I live in Lisbon and I like tea. -> Ana lives in Lisbon.; Ana likes tea.",
        created_at=from_micros(START),
    )
    await tell(world, "s1", said("Ana lives in Lisbon.", 0))
    await tell(world, "s2", both)
    await tell(world, "s3", said("Ana moved to Oslo.", 30))
    recalled = await world.recall("Ana lives in Lisbon")
    places = {(source.session_id, fact.kind) for fact in recalled.memories for source in fact.sources}
    assert ("s1", "turn") not in places
    assert ("s2", "fact") in places
    without = await world.recall("Lisbon", exclude_ids=[fact.id for fact in recalled.memories if fact.kind == "fact"])
    assert [(fact.kind, fact.session_id) for fact in without.memories] == [("turn", "s2")]
