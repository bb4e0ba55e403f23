"""`MemoryAborted`: an exception that ends a task. CrewAI ignores every other exception of a memory in a task."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from crewai.hooks import HookAborted

from threefold import ThreefoldError


class MemoryAborted(HookAborted, ThreefoldError):
    """Ends the task and the kickoff. It has the message of the error that is its `__cause__`."""


@contextmanager
def aborting() -> Generator[None]:
    """Convert errors of memory that must end the task and the kickoff."""
    try:
        yield
    except MemoryAborted:
        raise
    except ThreefoldError as error:
        raise MemoryAborted(str(error)) from error
