"""Give the copies that CrewAI makes of crews, flows and agents their memory back.

CrewAI copies through a dump, for example in `kickoff_for_each`, and restores a memory as its own class. The number in
`storage` identifies the original. It is not a string, so CrewAI opens no vector store for it.
"""

from __future__ import annotations

from secrets import randbits
from typing import Any
from weakref import WeakValueDictionary

from crewai import Memory

from threefold import InvalidRequest

BITS = 53  # larger integers are not exact in JSON
LOST = (
    "a crew, flow or agent was restored from a dump, such as a checkpoint, which has neither the client nor the "
    "identity of its ThreefoldMemory; set its memory again"
)
_ORIGINALS: WeakValueDictionary[int, Memory] = WeakValueDictionary()


def new_mark() -> int:
    """Return a random number that identifies one memory."""
    return randbits(BITS)


def register(memory: Memory) -> None:
    """Remember the memory of a mark while the memory is in use."""
    mark: Any = memory.storage
    _ORIGINALS[mark] = memory


def restore_memories(*holders: Any) -> None:
    """Replace the dumps of memories in these objects by the memories. Raise InvalidRequest if one is unknown."""
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
