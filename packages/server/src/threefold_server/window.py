"""The verbatim window: the newest whole turn groups within a token budget. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from threefold.contract import Turn

Cut = Callable[[str, int], str]
"""(text, token budget) -> head and tail of the text with a mark between, within the budget."""


def group_turns(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Split turns, oldest first, into groups that must stay whole.

    Turns that share a `group` belong together with all between them; without one, a run of tool calls does with the
    results that follow it.
    """
    last_of_group = {turn.group: position for position, turn in enumerate(turns) if turn.group is not None}
    groups: list[list[Turn]] = []
    open_until = -1
    for position, turn in enumerate(turns):
        continues = position > 0 and (position <= open_until or _answers(turn, turns[position - 1]))
        if continues:
            groups[-1].append(turn)
        else:
            groups.append([turn])
        if turn.group is not None:
            open_until = max(open_until, last_of_group[turn.group])
    return groups


def fit_window(turns: Sequence[Turn], budget: int, cost: Callable[[Turn], int], cut: Cut) -> list[Turn]:
    """The newest groups within the budget, oldest first; of a newest group that is too large, head and tail."""
    if budget <= 0 or not turns:
        return []
    window: list[Turn] = []
    left = budget
    for group in reversed(group_turns(turns)):
        needed = sum(map(cost, group))
        if needed > left:
            return window or _cut_group(group, budget, cost, cut)
        left -= needed
        window[:0] = group
    return window


def _answers(turn: Turn, before: Turn) -> bool:
    if turn.group is not None or before.group is not None:
        return False
    return (turn.kind == "tool_result" and before.kind in ("tool_call", "tool_result")) or (
        turn.kind == "tool_call" and before.kind == "tool_call"
    )


def _cut_group(group: list[Turn], budget: int, cost: Callable[[Turn], int], cut: Cut) -> list[Turn]:
    """Shorten the largest turns of a group to an equal share of what the small ones leave."""
    left, open_turns = budget, len(group)
    shortened: dict[int, Turn] = {}
    for turn in sorted(group, key=cost):
        share = left // open_turns
        shortened[turn.seq] = turn if cost(turn) <= share else _shorten(turn, share, cost, cut)
        left -= cost(shortened[turn.seq])
        open_turns -= 1
    fitted = [shortened[turn.seq] for turn in group]
    useful = any(turn.content for turn in fitted) and sum(map(cost, fitted)) <= budget
    return fitted if useful else []


def _shorten(turn: Turn, share: int, cost: Callable[[Turn], int], cut: Cut) -> Turn:
    """Head and tail of a turn at a cost of at most `share`; no content where not even its frame fits."""
    shortened = turn.model_copy(update={"content": "", "cut": True})
    room = share - cost(shortened)
    while room > 0:
        candidate = turn.model_copy(update={"content": cut(turn.content, room), "cut": True})
        excess = cost(candidate) - share
        if excess <= 0:
            return candidate
        room -= excess
    return shortened
