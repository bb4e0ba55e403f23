"""Reports on extraction: a fact is about the person who stated it, and only stated facts are kept.

The proposals of the model are scripted; the tests check what the service accepts of them.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from threefold.contract import Role
from threefold_server.consolidation.candidates import NewFact, Source, accept
from threefold_server.models.mem0 import mem0_prompts
from threefold_server.models.ports import Candidate

SAID = datetime(2023, 5, 24, 12, 0, tzinfo=UTC)


def turns(*said: tuple[Role, str]) -> list[Source]:
    return [Source(seq, role, role, text, SAID, seq, visibility=2) for seq, (role, text) in enumerate(said, start=1)]


def accepted(text: str, said: list[Source], *seqs: int, by: str = "user") -> list[NewFact]:
    candidate = Candidate(text, seqs, "assistant" if by == "assistant" else "user")
    return accept([candidate], said, None)[0]


def test_suggestion_of_the_assistant_never_becomes_a_fact_of_the_user() -> None:
    """Reported: a suggestion of the assistant became a preference of the user. Here the model even cites the user's
    "maybe"."""
    said = turns(("assistant", "You could go vegan."), ("user", "Hm, maybe."))
    assert [fact.origin for fact in accepted("User is vegan.", said, 1)] == ["assistant"]
    assert [fact.origin for fact in accepted("User is vegan.", said, 2)] == ["assistant"]
    assert [fact.origin for fact in accepted("User is vegan.", said, 1, 2)] == ["assistant"]


def test_answer_cites_its_question_as_well() -> None:
    said = turns(("assistant", "You have two cats named Tom and Kit."), ("user", "Yes, that is so."))
    [fact] = accepted("User has two cats named Tom and Kit.", said, 2)
    assert (fact.seqs, fact.origin) == ((1, 2), "assistant")


def test_statement_of_the_user_is_a_fact_of_the_user() -> None:
    said = turns(("assistant", "Do you eat meat?"), ("user", "I do not eat meat, only fish."))
    assert [fact.origin for fact in accepted("User eats fish, no meat.", said, 2)] == ["user"]
    assert [fact.origin for fact in accepted("User eats fish, no meat.", said, 2, by="assistant")] == ["assistant"]


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("Can you pretend I'm a pilot?", "User is a pilot."),
        ("Please pretend that I'm a pilot.", "User is a pilot."),
        ("If I moved to Rome, I would need a flat.", "User moved to Rome and needs a flat."),
        ("Imagine I was the king of Spain!", "User is the king of Spain."),
        ("Should I buy a boat?", "User bought a boat."),
    ],
)
def test_questions_requests_and_conditions_give_no_facts(said: str, fact: str) -> None:
    """Reported: requests, jokes and questions were kept as facts."""
    assert accepted(fact, turns(("user", said)), 1) == []


def test_statement_beside_a_question_is_kept() -> None:
    said = turns(("user", "My daughter Sara loves painting. Where can I find a class for kids?"))
    assert accepted("User has a daughter named Sara who loves painting.", said, 1)


def test_examples_of_the_prompt_give_no_facts() -> None:
    """Reported: sentences of the prompt or of its examples were stored. A weak model repeats them among small talk."""
    talk: list[tuple[Role, str]] = [("user", f"Hello there, what a nice day it is, {number}.") for number in range(50)]
    said = turns(*talk)
    examples = [line for line in mem0_prompts().ADDITIVE_EXTRACTION_PROMPT.splitlines() if '"text": "' in line]
    candidates = [
        Candidate(line.split('"text": "')[1].split('"')[0], (number % 50 + 1,), "user")
        for number, line in enumerate(examples)
    ]
    assert len(candidates) > 20
    assert accept(candidates, said, None) == ([], len(candidates))


def test_too_many_facts_of_one_batch_are_cut() -> None:
    """Each fact is compared with all the others: 600 facts held a thread and a connection for nine seconds."""
    said = turns(("user", "I like tea."))
    found, dropped = accept([Candidate(f"Likes tea {number}", (1,), "user") for number in range(600)], said, None)
    assert (len(found), dropped) == (100, 500)


@pytest.mark.parametrize("seqs", [(), (9,), (0,), (-1,)])
def test_fact_citing_no_turn_of_the_batch_is_dropped(seqs: tuple[int, ...]) -> None:
    assert accepted("User likes tea.", turns(("user", "I like tea.")), *seqs) == []


@pytest.mark.parametrize("text", ["", " ", "...", "-", "tea " * 400])
def test_fact_that_is_empty_or_too_long_is_dropped(text: str) -> None:
    """Reported: one empty fact broke the whole background job, and compaction built one giant memory."""
    assert accepted(text, turns(("user", "I like tea.")), 1) == []


def test_invalid_character_loses_no_other_fact() -> None:
    """Reported: one lone surrogate lost the whole batch of facts."""
    said = turns(("user", "I like tea."), ("user", "I like jazz."))
    found, dropped = accept(
        [Candidate("Likes tea \ud83d", (1,), "user"), Candidate("Likes jazz", (2,), "user")], said, None
    )
    assert ([fact.text for fact in found], dropped) == (["Likes tea �", "Likes jazz"], 0)


def test_fact_in_another_language_than_its_turn_is_dropped() -> None:
    """Reported: facts were translated to English. A translated fact shares no words with its turn."""
    said = turns(("user", "Meine Schwester wohnt in Köln und spielt Geige."))
    assert accepted("Die Schwester wohnt in Köln und spielt Geige.", said, 1)
    assert accepted("The sister plays the violin.", said, 1) == []


def test_facts_are_in_the_order_of_their_turns() -> None:
    said = turns(("user", "I live in Lisbon."), ("user", "I moved to Oslo."))
    candidates = [Candidate("User moved to Oslo.", (2,), "user"), Candidate("User lives in Lisbon.", (1,), "user")]
    assert [fact.seqs for fact in accept(candidates, said, None)[0]] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("text", "grounded"),
    [
        ("was in Paris last week", "was in Paris last week (15 May 2023 to 21 May 2023)"),
        ("met her last Friday", "met her last Friday (19 May 2023)"),
        ("leaves next Friday", "leaves next Friday (26 May 2023)"),
        ("leaves this Friday", "leaves this Friday (26 May 2023)"),
        ("started today", "started today (24 May 2023)"),
        ("ran yesterday", "ran yesterday (23 May 2023)"),
        ("ran the day before yesterday", "ran the day before yesterday (22 May 2023)"),
        ("flies tomorrow", "flies tomorrow (25 May 2023)"),
        ("moved two months ago", "moved two months ago (March 2023)"),
        ("moved 10 years ago", "moved 10 years ago (2013)"),
        ("married last year", "married last year (2022)"),
        ("was ill last month", "was ill last month (April 2023)"),
        ("left a week ago", "left a week ago (17 May 2023)"),
        ("married on 7 May 2022, as she said yesterday", "married on 7 May 2022, as she said yesterday"),
        ("meets Tom every Friday", "meets Tom every Friday"),
    ],
)
def test_relative_dates_are_resolved_from_the_day_of_the_turn(text: str, grounded: str) -> None:
    """Reported: "last week" was resolved against the day of the import."""
    [fact] = accepted(text, turns(("user", text)), 1)
    assert fact.text == grounded
