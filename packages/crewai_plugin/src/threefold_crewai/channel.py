"""Whether CrewAI's memory tool saves something, or your own code: what a model saves is the assistant's."""

from __future__ import annotations

from contextvars import ContextVar
from functools import wraps
from typing import Any

from crewai.tools.memory_tools import RememberTool

_BY_MODEL: ContextVar[bool] = ContextVar("threefold_crewai_by_model", default=False)
_MARK = "threefold_marks_the_channel"


def is_by_model() -> bool:
    """Tell whether a model saves something through CrewAI's tool "Save to memory"."""
    return _BY_MODEL.get()


def install() -> None:
    """Make CrewAI's tool say that it is at work, once in a process. It calls the same method as your own code, with the
    same arguments, and CrewAI has no hook that tells them apart for an agent without a crew."""
    run = RememberTool._run  # pyright: ignore[reportPrivateUsage]
    if hasattr(run, _MARK):
        return

    @wraps(run)
    def marked(self: RememberTool, *args: Any, **options: Any) -> str:
        token = _BY_MODEL.set(True)
        try:
            return run(self, *args, **options)
        finally:
            _BY_MODEL.reset(token)

    setattr(marked, _MARK, True)
    RememberTool._run = marked  # pyright: ignore[reportPrivateUsage]
