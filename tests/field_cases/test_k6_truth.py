"""Field cases K6, contradiction: of statements that exclude each other the one said last holds, and nothing is doubled.

The model's part is scripted: the facts stand in the turns after an arrow, the verdicts in the test.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from fixtures.consolidation import SECOND, START, World
from threefold.contract import ForgetSource, TurnIn, UpdateFactRequest
from threefold_server.consolidation.rebuild import rebuild
from threefold_server.forget import delete_fact
from threefold_server.remember import fact_history, restore_fact, update_fact
from threefold_server.storage.tables import fact_sources, facts
from threefold_server.storage.types import from_micros

pytestmark = pytest.mark.anyio

DAY = 86_400 * SECOND

CONTRADICTIONS = [
    pytest.param("Ana lives in Lisbon.", "Ana moved to Oslo.", id="602 home"),
    pytest.param("Noor is on the project Falcon.", "Noor was moved to the project Heron.", id="606 project"),
    pytest.param("The team deploys with Jenkins.", "The team deploys with Argo now.", id="606 tool"),
    pytest.param("Ana's manager is Boris.", "Ana's manager is Carla.", id="606 manager"),
    pytest.param("The price is 12 EUR.", "The price is 14 EUR.", id="606 price"),
    pytest.param("The version is 2.1.", "The version is now 2.2.", id="606 version"),
    pytest.param("Ana's phone is 555-1234.", "Ana's phone is 555-9876.", id="606 phone"),
    pytest.param("Ana eats meat.", "Ana does not eat meat any more.", id="a habit that ended"),
]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A world whose sessions are large, so that only an end draws facts."""
    return make_world(extracts=True, token_budget=4000, compaction_trigger=0, compaction_target=0)


def said(fact: str, day: float = 0, **fields: Any) -> TurnIn:
    """A turn that states a fact, so many days after the clock began."""
    at = from_micros(START + int(day * DAY))
    return TurnIn.model_validate({"role": "user", "content": f"{fact} -> {fact}", "created_at": at, **fields})


async def tell(world: World, session: str, *turns: TurnIn) -> None:
    await world.write(session, *turns)
    await world.extract(session)


@pytest.mark.parametrize(("old", "new"), CONTRADICTIONS)
async def test_what_was_said_last_holds(world: World, old: str, new: str) -> None:
    """Field cases 602, 606: the new value alone is recalled; history has until when the old one held."""
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts[new, old] = "excludes"
    await tell(world, "s1", said(old, 0))
    await tell(world, "s2", said(new, 30))
    assert (world.facts(), world.facts(current=False)) == ([new], [old])
    recalled = await world.recall(f"{old} {new}")
    assert [fact.text for fact in recalled.facts] == [new]
    assert old not in recalled.block
    versions = (await fact_history(world.service, world.caller, recalled.facts[0].id)).versions
    assert [version.text for version in versions] == [old, new]
    assert versions[0].valid_to == versions[1].valid_from == from_micros(START + 30 * DAY)
    assert versions[0].superseded_by == versions[1].id


@pytest.mark.parametrize(("old", "new"), CONTRADICTIONS)
async def test_older_talk_that_comes_later_does_not_overwrite(world: World, old: str, new: str) -> None:
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts[old, new] = "excludes"
    await tell(world, "s1", said(new, 30))
    await tell(world, "s2", said(old, 0))
    assert (world.facts(), world.facts(current=False)) == ([new], [old])
    [history] = world.rows(facts, text=old)
    assert (history.valid_from, history.valid_to) == (START, START + 30 * DAY)
    assert [fact.text for fact in (await world.recall(f"{old} {new}")).facts] == [new]


async def test_within_one_batch_the_last_word_counts(world: World) -> None:
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon."), said("Ana moved to Oslo."))
    assert world.facts() == ["Ana moved to Oslo."]


async def test_a_date_in_the_future_does_not_win(world: World) -> None:
    """Its turn counts as said when it came: what is said after it holds."""
    world.extractor.verdicts["Ana lives in Lisbon.", "Ana lives in Oslo."] = "excludes"
    await tell(world, "s1", said("Ana lives in Oslo.", day=300))
    world.clock.advance(86_400)
    await tell(world, "s2", said("Ana lives in Lisbon.", day=1))
    assert world.facts() == ["Ana lives in Lisbon."]


async def test_there_and_back_again(world: World) -> None:
    world.clock.advance(40 * 86_400)
    for old, new in (("Lisbon", "Oslo"), ("Oslo", "Lisbon")):
        world.extractor.verdicts[f"Ana lives in {new}.", f"Ana lives in {old}."] = "excludes"
    for day, city in enumerate(["Lisbon", "Oslo", "Lisbon"]):
        await tell(world, f"s{day}", said(f"Ana lives in {city}.", day))
    assert world.facts() == ["Ana lives in Lisbon."]
    assert world.facts(current=False) == ["Ana lives in Lisbon.", "Ana lives in Oslo."]


@pytest.mark.parametrize("days", [(3, 5), (5, 3)])
async def test_what_is_told_twice_is_dated_by_its_sources(world: World, days: tuple[int, int]) -> None:
    """Field case 406: it holds from the first time on and is as recent as the last, whenever it is merged."""
    world.clock.advance(40 * 86_400)
    for day in days:
        await tell(world, f"s{day}", said("The heron nests in the harbour.", day))
    [fact] = (await world.recall("where does the heron nest?")).facts
    assert (fact.valid_from, fact.event_at) == (from_micros(START + 3 * DAY), from_micros(START + 5 * DAY))
    assert [source.session_id for source in fact.sources] == ["s3", "s5"]


async def test_the_same_statement_is_one_fact_with_its_sources(world: World) -> None:
    """Field cases 602, 604, 611: five sessions, spelled in several ways, and paraphrased."""
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
    [fact] = (await world.recall("Ana lives in Oslo")).facts
    assert len(fact.sources) == 5


async def test_thirty_rounds_of_recall_answer_and_write_leave_one_fact(world: World) -> None:
    """Field case 601: neither the recalled block nor the assistant's echo counts as one more source."""
    await tell(world, "s0", said("Ana lives in Oslo."))
    for number in range(30):
        recalled = await world.recall("Where does Ana live, in Oslo?", session=f"r{number}")
        question = TurnIn(role="user", content=f"{recalled.block}\nWhere do I live?")
        echo = said("Ana lives in Oslo.", role="assistant")
        await tell(world, f"r{number}", question, echo)
    assert [row.text for row in world.rows(facts)] == ["Ana lives in Oslo."]
    assert len(world.rows(fact_sources)) == 1


async def test_what_an_assistant_says_displaces_nothing_of_the_users(world: World) -> None:
    """Field case 702: it is stored as the assistant's, if at all."""
    world.extractor.verdicts["Ana is vegan.", "Ana eats meat."] = "excludes"
    await tell(world, "s1", said("Ana eats meat."))
    await tell(world, "s2", said("Ana is vegan.", role="assistant"))
    assert [(row.text, row.origin) for row in world.rows(facts) if row.valid_to is None and row.origin == "user"] == [
        ("Ana eats meat.", "user")
    ]
    assert {row.origin for row in world.rows(facts, text="Ana is vegan.")} == {"assistant"}


async def test_a_person_confirms_what_an_assistant_said(world: World) -> None:
    await tell(world, "s1", said("Ana is vegan.", role="assistant"))
    await tell(world, "s2", said("Ana is vegan."))
    [current] = [row for row in world.rows(facts) if row.valid_to is None]
    assert (current.origin, current.trust) == ("user", 1.0)


async def test_correcting_by_id_leaves_one_active_item(world: World) -> None:
    """Field case 608."""
    await tell(world, "s1", said("Ana lives in Lisbon."))
    [fact] = (await world.recall("Ana Lisbon")).facts
    world.clock.advance(60)
    update = UpdateFactRequest(text="Ana lives in Oslo.")
    corrected = await update_fact(world.service, world.caller, fact.id, update)
    assert world.facts() == ["Ana lives in Oslo."]
    assert (await fact_history(world.service, world.caller, corrected.id)).versions[0].superseded_by == corrected.id


async def test_a_restored_fact_outlives_a_rebuild(world: World) -> None:
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 0))
    await tell(world, "s2", said("Ana moved to Oslo.", 30))
    [old] = world.rows(facts, text="Ana lives in Lisbon.")
    await restore_fact(world.service, world.caller, old.fact.hex)
    await rebuild(world.service)
    assert (world.facts(), world.facts(current=False)) == (["Ana lives in Lisbon."], ["Ana moved to Oslo."])


async def test_a_rebuild_draws_the_same_facts_again(world: World) -> None:
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 0), said("Ana likes tea.", 1))
    await tell(world, "s2", said("Ana moved to Oslo.", 30))
    await world.save("The boat is blue.")
    before = world.facts(), world.facts(current=False), len(world.rows(fact_sources))
    await rebuild(world.service)
    assert (world.facts(), world.facts(current=False), len(world.rows(fact_sources))) == before
    assert (await world.status("s1")).extracted_upto == 2


async def test_a_deleted_fact_does_not_come_back(world: World) -> None:
    await tell(world, "s1", said("Ana lives in Oslo."), TurnIn(role="user", content="Tea. -> Ana drinks tea."))
    [fact] = world.rows(facts, text="Ana lives in Oslo.")
    await delete_fact(world.service, world.caller, fact.fact.hex, sources=False, in_session=None)
    await rebuild(world.service)
    assert world.facts() == ["Ana drinks tea."]
    await tell(world, "s2", said("Ana lives in Oslo."))
    assert world.facts() == ["Ana drinks tea.", "Ana lives in Oslo."]


async def test_where_a_version_is_forgotten_the_other_holds_again(world: World) -> None:
    """Field case 206: facts go with their own turns only."""
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 0))
    await tell(world, "s2", said("Ana moved to Oslo.", 30))
    await world.forget(session_id="s2")
    assert (world.facts(), world.facts(current=False)) == (["Ana lives in Lisbon."], [])
    assert [fact.text for fact in (await world.recall("Ana Lisbon")).facts] == ["Ana lives in Lisbon."]


@pytest.mark.parametrize("since", [None, from_micros(START - DAY)])
async def test_who_takes_a_session_back_takes_only_what_it_alone_supports(world: World, since: datetime | None) -> None:
    """Field cases 206 and 1208: by source as by session, with or without a date; and what it alone says goes."""
    await tell(world, "s1", said("Ana lives in Oslo."), said("Ana likes tea."))
    await tell(world, "s2", said("Ana lives in Oslo."))
    await world.save("The boat is blue.", session_id="s1")
    await world.forget(source=ForgetSource(kind="session", name="s1"), since=since)
    assert world.facts() == ["Ana lives in Oslo."]
    await rebuild(world.service)
    assert world.facts() == ["Ana lives in Oslo."]
    assert [row.session for row in world.rows(fact_sources)] == [world.key("s2")]


async def test_thirty_facts_of_one_project_stay_thirty(world: World) -> None:
    """Field case 407: nothing is merged into a giant, and each is recallable."""
    texts = [f"The harbour project has pier {number} painted by crew {number}." for number in range(30)]
    await tell(world, "s1", *map(said, texts))
    for _ in range(2):
        await rebuild(world.service)
    assert world.facts() == sorted(texts)


async def test_an_earlier_moment_is_answered_by_what_held_then(world: World) -> None:
    """Field case 806: until the last microsecond before the new value, and of nothing that was said later."""
    world.clock.advance(40 * 86_400)
    world.extractor.verdicts["Ana moved to Oslo.", "Ana lives in Lisbon."] = "excludes"
    await tell(world, "s1", said("Ana lives in Lisbon.", 1))
    await tell(world, "s2", said("Ana moved to Oslo.", 30), said("Ana likes tea.", 31))

    async def at(micros: int) -> set[str]:
        recalled = await world.recall("Ana Lisbon Oslo tea", as_of=from_micros(micros))
        assert recalled.window == []
        return {fact.text for fact in recalled.facts}

    assert await at(START) == set()
    assert await at(START + DAY) == await at(START + 30 * DAY - 1) == {"Ana lives in Lisbon."}
    assert await at(START + 30 * DAY) == {"Ana moved to Oslo."}
    assert await at(START + 31 * DAY) == {"Ana moved to Oslo.", "Ana likes tea."}


async def test_an_episode_hides_behind_its_facts(world: World) -> None:
    """Cited by a fact of the answer, or all of its facts are history: left out. If one still holds, it stays."""
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
    places = {(source.session_id, fact.kind) for fact in recalled.facts for source in fact.sources}
    assert ("s1", "episode") not in places
    assert ("s2", "fact") in places
    without = await world.recall("Lisbon", exclude_ids=[fact.id for fact in recalled.facts if fact.kind == "fact"])
    assert [(fact.kind, fact.session_id) for fact in without.facts] == [("episode", "s2")]
