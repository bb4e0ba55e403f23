"""The window: the newest complete groups within a budget.

Users reported that trimming separated a call from its result, that one huge turn broke compaction, and that a limit
returned the oldest items.
"""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from threefold.contract import Turn, TurnKind
from threefold.turn_groups import fit_window, group_turns, newest_user_turn


def turn(seq: int, kind: TurnKind = "message", group: str | None = None, content: str = "one two") -> Turn:
    return Turn(
        id=str(seq),
        seq=seq,
        role="user" if kind == "message" else "tool",
        content=content,
        kind=kind,
        group=group,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        tokens=len(content.split()),
    )


def words(turn: Turn) -> int:
    return len(turn.content.split())


def cut(text: str, budget: int) -> str:
    return " ".join(text.split()[:budget])


def fit(turns: list[Turn], budget: int) -> list[int]:
    return [turn.seq for turn in fit_window(turns, budget, words, cut)]


def test_newest_turns_are_returned_oldest_first() -> None:
    assert fit([turn(seq) for seq in range(1, 11)], 6) == [8, 9, 10]


def test_call_and_results_are_never_split_at_any_budget() -> None:
    calls = [turn(2, "tool_call"), turn(3, "tool_call")]
    talk = [turn(1), *calls, turn(4, "tool_result"), turn(5, "tool_result"), turn(6)]
    whole = {2, 3, 4, 5}
    for budget in range(20):
        seen = set(fit(talk, budget))
        assert not seen & whole or whole <= seen


def test_named_group_includes_the_turns_between_its_members() -> None:
    talk = [turn(1), turn(2, "tool_call", "g"), turn(3), turn(4, "tool_result", "g"), turn(5)]
    assert [[t.seq for t in group] for group in group_turns(talk)] == [[1], [2, 3, 4], [5]]


def test_calls_answered_separately_are_two_groups() -> None:
    talk = [turn(1, "tool_call"), turn(2, "tool_result"), turn(3, "tool_call"), turn(4, "tool_result")]
    assert [[t.seq for t in group] for group in group_turns(talk)] == [[1, 2], [3, 4]]


def test_newest_group_that_is_too_large_is_cut_and_marked() -> None:
    window = fit_window([turn(1), turn(2, content="w " * 50)], 10, words, cut)
    assert [(t.seq, t.cut, words(t)) for t in window] == [(2, True, 10)]


def test_cut_group_keeps_every_member() -> None:
    talk = [turn(1, "tool_call", content="a b"), turn(2, "tool_result", content="w " * 50)]
    window = fit_window(talk, 10, words, cut)
    assert [(t.seq, t.cut) for t in window] == [(1, False), (2, True)]
    assert sum(map(words, window)) <= 10


def test_empty_budget_gives_an_empty_window() -> None:
    assert fit([turn(1)], 0) == []
    assert fit([], 100) == []


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, "g", "h"])), max_size=20),
    st.integers(min_value=0, max_value=200),
)
def test_any_window_is_a_suffix_within_its_budget(sizes: list[tuple[int, str | None]], budget: int) -> None:
    """Of the turns that were read, apart from the newest user turn."""
    talk = [turn(seq, group=group, content="w " * size) for seq, (size, group) in enumerate(sizes, 1)]
    window = fit_window(talk, budget, words, cut)
    assert sum(map(words, window)) <= budget
    asked = newest_user_turn(talk)
    rest = [t.seq for t in window if asked is None or t.seq != asked.seq]
    others = [t.seq for t in talk if asked is None or t.seq != asked.seq]
    assert rest == others[len(others) - len(rest) :]
