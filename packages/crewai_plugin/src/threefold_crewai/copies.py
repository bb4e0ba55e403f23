"""Whom CrewAI copies, as `kickoff_for_each` does with agents, gets its memory back.

CrewAI copies by way of a dump, and what comes out of it as memory is CrewAI's own class. The number in `storage` tells
whose copy that is; being no string, it opens no vector store.
"""

from __future__ import annotations

from secrets import randbits
from typing import Any
from weakref import WeakValueDictionary

from crewai import Memory

from threefold import InvalidRequest

BITS = 53  # what JSON carries exactly
LOST = (
    "a crew, flow or agent has the dump of a ThreefoldMemory in place of one: a dump, as in a checkpoint, holds "
    "neither client nor identity; give it its memory again"
)
_ORIGINALS: WeakValueDictionary[int, Memory] = WeakValueDictionary()


def new_mark() -> int:
    """A number that no other memory has."""
    return randbits(BITS)


def know(memory: Memory) -> None:
    """Remember whose mark it is, for as long as the memory is in use."""
    mark: Any = memory.storage
    _ORIGINALS[mark] = memory


def reunite(*holders: Any) -> None:
    """Put their memory in the place of its dump."""
    for holder in holders:
        for name in ("memory", "_memory"):
            dump: Any = getattr(holder, name, None)
            if type(dump) is Memory and isinstance(dump.storage, int):
                setattr(holder, name, _original(dump.storage))


def _original(mark: int) -> Memory:
    found = _ORIGINALS.get(mark)
    if found is None:
        raise InvalidRequest(LOST)
    return found
