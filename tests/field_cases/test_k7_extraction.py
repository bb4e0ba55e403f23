"""Field cases K7, extraction: a fact is about whom it was said of, and nothing is kept that nobody stated.

What a model proposes is scripted; what is made of it is ours.
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


def test_an_assistants_suggestion_is_never_the_users() -> None:
    """Field case 702: even where a model puts it down to the user's "maybe"."""
    said = turns(("assistant", "You could go vegan."), ("user", "Hm, maybe."))
    assert [fact.origin for fact in accepted("User is vegan.", said, 1)] == ["assistant"]
    assert [fact.origin for fact in accepted("User is vegan.", said, 2)] == ["assistant"]
    assert [fact.origin for fact in accepted("User is vegan.", said, 1, 2)] == ["assistant"]


def test_an_answer_rests_on_its_question_too() -> None:
    said = turns(("assistant", "You have two cats named Tom and Kit."), ("user", "Yes, that is so."))
    [fact] = accepted("User has two cats named Tom and Kit.", said, 2)
    assert (fact.seqs, fact.origin) == ((1, 2), "assistant")


def test_what_the_user_states_is_the_users() -> None:
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
def test_questions_orders_and_conditions_state_nothing(said: str, fact: str) -> None:
    """Field case 709."""
    assert accepted(fact, turns(("user", said)), 1) == []


def test_what_is_stated_beside_a_question_is_kept() -> None:
    said = turns(("user", "My daughter Sara loves painting. Where can I find a class for kids?"))
    assert accepted("User has a daughter named Sara who loves painting.", said, 1)


def test_the_prompts_own_examples_are_no_facts() -> None:
    """Field case 704: fifty turns of small talk, and a weak model that repeats what it was shown."""
    talk: list[tuple[Role, str]] = [("user", f"Hello there, what a nice day it is, {number}.") for number in range(50)]
    said = turns(*talk)
    examples = [line for line in mem0_prompts().ADDITIVE_EXTRACTION_PROMPT.splitlines() if '"text": "' in line]
    candidates = [
        Candidate(line.split('"text": "')[1].split('"')[0], (number % 50 + 1,), "user")
        for number, line in enumerate(examples)
    ]
    assert len(candidates) > 20
    assert accept(candidates, said, None) == ([], len(candidates))


def test_a_flood_of_facts_is_cut() -> None:
    """Each is compared with all the others: 600 held a thread and a connection for nine seconds."""
    said = turns(("user", "I like tea."))
    found, dropped = accept([Candidate(f"Likes tea {number}", (1,), "user") for number in range(600)], said, None)
    assert (len(found), dropped) == (100, 500)


@pytest.mark.parametrize("seqs", [(), (9,), (0,), (-1,)])
def test_a_fact_without_a_turn_that_was_sent_is_dropped(seqs: tuple[int, ...]) -> None:
    assert accepted("User likes tea.", turns(("user", "I like tea.")), *seqs) == []


@pytest.mark.parametrize("text", ["", " ", "...", "-", "tea " * 400])
def test_a_fact_is_one_statement(text: str) -> None:
    """Field cases 407, 904."""
    assert accepted(text, turns(("user", "I like tea.")), 1) == []


def test_a_broken_character_costs_no_other_fact() -> None:
    """Field case 902."""
    said = turns(("user", "I like tea."), ("user", "I like jazz."))
    found, dropped = accept(
        [Candidate("Likes tea \ud83d", (1,), "user"), Candidate("Likes jazz", (2,), "user")], said, None
    )
    assert ([fact.text for fact in found], dropped) == (["Likes tea �", "Likes jazz"], 0)


def test_a_fact_keeps_the_language_of_its_turn() -> None:
    """Field case 707: one in another language shares no words with it."""
    said = turns(("user", "Meine Schwester wohnt in Köln und spielt Geige."))
    assert accepted("Die Schwester wohnt in Köln und spielt Geige.", said, 1)
    assert accepted("The sister plays the violin.", said, 1) == []


def test_facts_come_in_the_order_in_which_they_were_said() -> None:
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
def test_relative_dates_are_counted_from_the_day_of_the_turn(text: str, grounded: str) -> None:
    """Field case 801."""
    [fact] = accepted(text, turns(("user", text)), 1)
    assert fact.text == grounded
