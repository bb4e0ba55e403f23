"""Find out whether CrewAI's memory tool or your own code saves something: what a model saves has origin `assistant`."""

from __future__ import annotations

from contextvars import ContextVar
from functools import wraps
from typing import Any

from crewai.tools.memory_tools import RememberTool

_BY_MODEL: ContextVar[bool] = ContextVar("threefold_crewai_by_model", default=False)
_MARK = "threefold_marks_the_channel"


def is_by_model() -> bool:
    """Return True while a model saves something through CrewAI's tool "Save to memory"."""
    return _BY_MODEL.get()


def install() -> None:
    """Wrap CrewAI's tool once per process, so that its calls are recognised.

    The tool calls the same method as your own code, with the same arguments, and for an agent without a crew CrewAI has
    no hook that tells them apart.
    """
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
