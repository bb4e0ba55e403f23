"""CrewAI for tests: telemetry off, files in a temporary directory. Always imported from here first."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import tempfile
import warnings
from typing import Any

HOME = tempfile.mkdtemp(prefix="crewai-")
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_STORAGE_DIR": f"{HOME}/storage",
    "CREWAI_TESTING": "true",
    "CREWAI_TRACING_ENABLED": "false",
}
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ.update(QUIET)

home, os.environ["HOME"] = os.environ.get("HOME", ""), HOME  # CrewAI writes to HOME on import
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import crewai as framework
    from crewai.flow.async_feedback.types import HumanFeedbackPending, PendingFeedbackContext
    from crewai.flow.flow import Flow, listen, start
    from crewai.flow.human_feedback import human_feedback
    from crewai.flow.persistence import SQLiteFlowPersistence
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import tool
os.environ["HOME"] = home

from pydantic import PrivateAttr  # noqa: E402

from conformance.adapter import Reply, Script, Stall, ToolCall  # noqa: E402

crewai: Any = framework
"""Untyped, as CrewAI has few types."""

__all__ = [
    "QUIET",
    "BaseLLM",
    "Flow",
    "HumanFeedbackPending",
    "Model",
    "PendingFeedbackContext",
    "SQLiteFlowPersistence",
    "crewai",
    "human_feedback",
    "listen",
    "start",
    "tool",
]


class Model(BaseLLM):
    """The script as a language model that calls tools natively or in the text format of CrewAI."""

    _script: Script = PrivateAttr()
    _native: bool = PrivateAttr()

    def __init__(self, script: Script, *, native: bool = True) -> None:
        super().__init__(model="scripted")
        self._script = script
        self._native = native

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        return said(self.ask(messages))

    async def acall(self, messages: Any, *_: Any, **__: Any) -> Any:
        reply = self.ask(messages)
        if isinstance(reply, Stall):
            await asyncio.Event().wait()
        return said(reply)

    def ask(self, messages: Any) -> Reply:
        texts = [messages] if isinstance(messages, str) else [str(message.get("content") or "") for message in messages]
        return self._script.answer(texts)

    def supports_function_calling(self) -> bool:
        return self._native

    def supports_stop_words(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000


def said(reply: Reply) -> Any:
    """Return a reply in the form that CrewAI gets from a provider."""
    if isinstance(reply, ToolCall):
        function = {"name": reply.name, "arguments": json.dumps(reply.arguments)}
        return [{"id": "call", "type": "function", "function": function}]
    return str(reply)
