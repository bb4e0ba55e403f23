"""Group turns that belong together and choose those that fit a window, for the service and its clients. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from threefold.contract import Turn

Cost = Callable[[Turn], int]
"""Returns the tokens of a turn in a window, including the head of its line."""

Cut = Callable[[str, int], str]
"""(text, token budget) -> head and tail of the text with a mark between, within the budget; empty if too small."""

SMALLEST_CUT = 24
"""Least tokens for which a shortened text is useful."""

USER_SHARE = 0.5
"""Largest share of a window that is reserved for the newest user turn while newer groups are added."""


def group_turns(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Split turns, oldest first, into groups that must stay whole.

    Turns that share a `group` belong together with all turns between them. Without one, a run of tool calls belongs
    together with the run of results that follows it.
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


def newest_user_turn(turns: Sequence[Turn]) -> Turn | None:
    """Return the last turn that the user said, or None."""
    return next((turn for turn in reversed(turns) if is_user_turn(turn)), None)


def is_user_turn(turn: Turn) -> bool:
    """Return True if the user said the turn, not an assistant, a tool or the program."""
    return turn.role == "user" and turn.kind == "message" and bool(turn.content)


def fit_window(turns: Sequence[Turn], budget: int, cost: Cost, cut: Cut) -> list[Turn]:
    """Return the newest groups within the budget and the newest user turn, oldest first.

    If the newest group or the newest user turn is too large, its head and tail are kept. A group that does not fit
    even then is left out as a whole, so that no call is shown without its result.
    """
    if budget <= 0 or not turns:
        return []
    user_turn = newest_user_turn(turns)
    groups = group_turns(turns)
    window: list[Turn] = []
    left = budget
    for group in reversed(groups):
        needed = sum(map(cost, group))
        if needed > left - _reserved(user_turn, group, budget, cost):
            break
        left -= needed
        window[:0] = group
        user_turn = None if _contains(group, user_turn) else user_turn
    if not window:
        window = _cut_group(groups[-1], left - _reserved(user_turn, groups[-1], budget, cost), cost, cut)
        left -= sum(map(cost, window))
        user_turn = None if window and _contains(groups[-1], user_turn) else user_turn
    return [*_shortened_alone(user_turn, left, cost, cut), *window]


def give_up_oldest(window: Sequence[Turn], excess: int) -> list[Turn]:
    """Remove the oldest groups of a window until `excess` tokens are free.

    The newest group and the newest user turn stay.
    """
    if not window:
        return []
    user_turn = newest_user_turn(window)
    groups = group_turns(window)
    kept: list[Turn] = []
    freed = 0
    for group in groups[:-1]:
        stays = [turn for turn in group if turn is user_turn or freed >= excess]
        freed += sum(turn.tokens for turn in group) - sum(turn.tokens for turn in stays)
        kept += stays
    return [*kept, *groups[-1]]


def _answers(turn: Turn, before: Turn) -> bool:
    if turn.group is not None or before.group is not None:
        return False
    return (turn.kind == "tool_result" and before.kind in ("tool_call", "tool_result")) or (
        turn.kind == "tool_call" and before.kind == "tool_call"
    )


def _reserved(user_turn: Turn | None, group: Sequence[Turn], budget: int, cost: Cost) -> int:
    """Return the tokens to reserve for a user turn that is neither in the window yet nor in the next group."""
    return 0 if user_turn is None or _contains(group, user_turn) else min(cost(user_turn), int(budget * USER_SHARE))


def _contains(group: Sequence[Turn], searched: Turn | None) -> bool:
    return any(turn is searched for turn in group)


def _shortened_alone(turn: Turn | None, room: int, cost: Cost, cut: Cut) -> list[Turn]:
    if turn is None or cost(turn) <= room:
        return [] if turn is None else [turn]
    shorter = _shorten(turn, room, cost, cut)
    return [shorter] if shorter.content else []


def _cut_group(group: list[Turn], budget: int, cost: Cost, cut: Cut) -> list[Turn]:
    """Shorten the largest turns of a group to equal shares of the tokens that the small turns leave."""
    left, open_turns = budget, len(group)
    fitted = list(group)
    for position in sorted(range(len(group)), key=lambda position: cost(group[position])):
        turn, share = group[position], left // open_turns
        fitted[position] = turn if cost(turn) <= share else _shorten(turn, share, cost, cut)
        left -= cost(fitted[position])
        open_turns -= 1
    useful = any(turn.content for turn in fitted) and sum(map(cost, fitted)) <= budget
    return fitted if useful else []


def _shorten(turn: Turn, share: int, cost: Cost, cut: Cut) -> Turn:
    """Return head and tail of a turn at a cost of at most `share`; without content if not even its frame fits."""
    shortened = turn.model_copy(update={"content": "", "cut": True})
    room = share - cost(shortened)
    while room > 0:
        candidate = turn.model_copy(update={"content": cut(turn.content, room), "cut": True})
        excess = cost(candidate) - share
        if excess <= 0:
            return candidate
        room -= excess
    return shortened
