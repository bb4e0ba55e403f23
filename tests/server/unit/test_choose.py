"""Which ranked memories are returned: distinct ones, and a fact instead of a turn with the same text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from threefold.contract import RecalledMemory, ScoreParts
from threefold_server.operations.recall import _choose  # pyright: ignore[reportPrivateUsage]


def memory(name: str, text: str, kind: Literal["fact", "turn"]) -> RecalledMemory:
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
    memory("turn", "Tea, please.", "turn"),
    memory("other", "Coffee.", "turn"),
    memory("fact", "tea,  please.", "fact"),
]


def test_fact_replaces_a_turn_with_the_same_text() -> None:
    assert [found.id for found in _choose(RANKED, set(), set(), limit=3)] == ["fact", "other"]
    assert [found.id for found in _choose(RANKED, set(), set(), limit=1)] == ["fact"]


def test_excluded_fact_replaces_no_turn() -> None:
    assert [found.id for found in _choose(RANKED, {"fact"}, set(), limit=3)] == ["turn", "other"]
