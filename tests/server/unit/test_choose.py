"""Which of the ranked memories are given: distinct ones, a fact before the turn that says the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from threefold.contract import RecalledMemory, ScoreParts
from threefold_server.recall import _choose  # pyright: ignore[reportPrivateUsage]


def memory(name: str, text: str, kind: Literal["fact", "episode"]) -> RecalledMemory:
    return RecalledMemory(
        id=name,
        kind=kind,
        text=text,
        agent="a",
        visibility="user",
        origin="user",
        trust=1.0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        score=1.0,
        score_parts=ScoreParts(),
    )


RANKED = [
    memory("turn", "Tea, please.", "episode"),
    memory("other", "Coffee.", "episode"),
    memory("fact", "tea,  please.", "fact"),
]


def test_a_fact_stands_in_for_a_better_ranked_turn_that_says_the_same() -> None:
    assert [found.id for found in _choose(RANKED, set(), set(), limit=3)] == ["fact", "other"]
    assert [found.id for found in _choose(RANKED, set(), set(), limit=1)] == ["fact"]


def test_an_excluded_fact_hides_nothing() -> None:
    assert [found.id for found in _choose(RANKED, {"fact"}, set(), limit=3)] == ["turn", "other"]
