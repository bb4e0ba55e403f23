"""The block of a recall: the tiers fitted into a token budget."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from threefold.contract import RecalledMemory, ScoreParts, Turn
from threefold_server.rules.assemble import assemble
from threefold_server.text.tokens import count_tokens

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def memory(number: int, words: int) -> RecalledMemory:
    return RecalledMemory(
        id=f"m{number}",
        kind="fact",
        text="word " * words,
        agent="support",
        visibility="user",
        origin="user",
        trust=1.0,
        created_at=DAY,
        score=1.0,
        score_parts=ScoreParts(),
    )


def turn(seq: int, words: int) -> Turn:
    return Turn(id=str(seq), seq=seq, role="user", content="said " * words, created_at=DAY, tokens=words)


def cut(text: str, budget: int) -> str:
    return " ".join(text.split()[: max(0, budget)])


@pytest.mark.parametrize("turns", [[], [turn(1, 30)], [turn(seq, 5) for seq in range(1, 20)]])
@pytest.mark.parametrize("words", [1, 8, 20, 200])
def test_memories_fit_every_budget_with_and_without_turns(turns: list[Turn], words: int) -> None:
    """A memory within its share and the fence exceed a small budget, and no turn is left that could be given up."""
    for budget in range(120):
        found = assemble(None, [memory(number, words) for number in range(3)], turns, budget, count_tokens, cut)
        assert count_tokens(found.block) == found.tokens.used <= budget
