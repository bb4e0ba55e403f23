"""Agents that CrewAI copies, as `kickoff_for_each` does, get their memory back.

CrewAI copies an agent by way of a dump, and what comes out of it as memory is CrewAI's own class with our fields. The
number in `storage` tells whose copy that is; being no string, it opens no vector store.
"""

from __future__ import annotations

from secrets import randbits
from typing import Any
from weakref import WeakValueDictionary

from crewai import Memory

from threefold import InvalidRequest

BITS = 53  # what JSON carries exactly
LOST = (
    "an agent has the dump of a ThreefoldMemory in place of one: a dump, as in a checkpoint, holds neither client nor "
    "identity; give the agent its memory again"
)
_ORIGINALS: WeakValueDictionary[int, Memory] = WeakValueDictionary()


def new_mark() -> int:
    """A number that no other memory has."""
    return randbits(BITS)


def know(memory: Memory) -> None:
    """Remember whose mark it is, for as long as the memory is in use."""
    mark: Any = memory.storage
    _ORIGINALS[mark] = memory


def reunite(agent: Any) -> None:
    """Put a memory in the place of its dump."""
    dump: Any = getattr(agent, "memory", None)
    if type(dump) is Memory and isinstance(dump.storage, int):
        original = _ORIGINALS.get(dump.storage)
        if original is None:
            raise InvalidRequest(LOST)
        agent.memory = original
