"""The standing of beliefs: which are supported by others. Pure.

A belief is supported if it is a premise (it names no support) or if all members of one of its support sets hold. A
member holds if it exists, is supported, and is not falsified. Beliefs that support each other in a circle, which no
write can create, are not supported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

Support = Sequence[Collection[K]]
"""The support sets of a belief: each is sufficient. Empty for a premise."""


def supported(support: Mapping[K, Support[K]], falsified: Collection[K], holding: Collection[K] = ()) -> set[K]:
    """Return the supported beliefs of `support`. Each support set is visited once per member.

    Args:
        support: The support sets of every belief whose standing is wanted.
        falsified: The falsified ones among them.
        holding: Other beliefs that hold. A member that is in neither does not exist.
    """
    missing: dict[tuple[K, int], int] = {}
    member_of: dict[K, list[tuple[K, int]]] = defaultdict(list)
    for belief, sets in support.items():
        for number, members in enumerate(sets):
            missing[belief, number] = len(set(members))
            for member in set(members):
                member_of[member].append((belief, number))
    found = {belief for belief, sets in support.items() if not sets}
    news = [*holding, *(belief for belief in found if belief not in falsified)]
    while news:
        for belief, number in member_of[news.pop()]:
            missing[belief, number] -= 1
            if missing[belief, number] == 0 and belief not in found:
                found.add(belief)
                if belief not in falsified:
                    news.append(belief)
    return found
