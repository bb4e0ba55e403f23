"""The one kind of exception that CrewAI lets through: whatever else a memory raises in a task, it swallows."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from crewai.hooks import HookAborted

from threefold import ThreefoldError


class MemoryAborted(HookAborted, ThreefoldError):
    """Ends the task and the kickoff. It says what the error behind it says, which is its `__cause__`."""


@contextmanager
def aborting() -> Generator[None]:
    """Around what must not go on without memory."""
    try:
        yield
    except MemoryAborted:
        raise
    except ThreefoldError as error:
        raise MemoryAborted(str(error)) from error
