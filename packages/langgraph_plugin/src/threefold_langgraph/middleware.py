"""`ThreefoldMiddleware`: memory for `create_agent`. It needs the extra `middleware`; no other module imports it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from langchain.agents.middleware.types import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.runtime import Runtime

from threefold import tools_hint
from threefold.calls import RecallOptions
from threefold.contract import Visibility
from threefold.policy import FLUSH_SECONDS
from threefold.tools.definitions import DEFAULT_TOOLS, ToolName
from threefold.tools.definitions import memory_tools as offered
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.conversation import with_block
from threefold_langgraph.identity import current_config
from threefold_langgraph.run_memory import RunMemory
from threefold_langgraph.tools import memory_tools

Request = ModelRequest[Any]
Response = ModelResponse[Any]


class ThreefoldMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware that recalls before each model call and records after each answer, however the run ends.

    One object serves all users, threads and event loops.

    Args:
        connection: The connection of the process.
        recall: Recall for the latest user message and show the block to the model (default true).
        record: Record the messages of the run (default true).
        tools: Tools for the model (default: `search_memory` and `save_memory`; empty for none).
        options: Options of each recall, as for `MemoryClient.recall`.
        visibility: Widest level at which the turns may be recalled (default `user`).
        name: Name of the middleware; two of one agent need different names.

    Raises:
        InvalidRequest: There is no tool with one of the names.
    """

    def __init__(
        self,
        connection: ThreefoldConnection,
        *,
        recall: bool = True,
        record: bool = True,
        tools: Sequence[ToolName] = DEFAULT_TOOLS,
        options: RecallOptions | None = None,
        visibility: Visibility | None = None,
        name: str = "threefold",
    ) -> None:
        super().__init__()
        self.tools = memory_tools(connection, tools)
        self._memory = RunMemory(connection, options, visibility)
        self._recalls = recall
        self._records = record
        self._hint = tools_hint(offered(names=tools)) if tools else ""
        self._name = name

    @property
    def name(self) -> str:
        """The name of the middleware."""
        return self._name

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Recall before a model call and record after it."""
        config, messages = current_config(), request.state["messages"]
        block = self._memory.recall(config, messages) if self._recalls else ""
        try:
            response = handler(self._prepared(request, block))
        except Exception:
            if self._records:
                self._memory.try_record(config, messages)
            raise
        if self._records:
            self._memory.try_record(config, [*messages, *response.result], run_end=_is_last(response))
        return response

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        """Recall before a model call and record after it."""
        config, messages = current_config(), request.state["messages"]
        block = await self._memory.arecall(config, messages) if self._recalls else ""
        try:
            response = await handler(self._prepared(request, block))
        except (Exception, asyncio.CancelledError):
            if self._records:
                with anyio.move_on_after(FLUSH_SECONDS, shield=True):
                    await self._memory.atry_record(config, messages)
            raise
        if self._records:
            await self._memory.atry_record(config, [*messages, *response.result], run_end=_is_last(response))
        return response

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Record messages after the last answer of the model.

        Raises:
            ThreefoldError: In the failure mode `strict`, if messages of the run could not be recorded.
        """
        if self._records:
            self._memory.record(current_config(), state["messages"], run_end=True)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Record messages after the last answer of the model.

        Raises:
            ThreefoldError: In the failure mode `strict`, if messages of the run could not be recorded.
        """
        if self._records:
            await self._memory.arecord(current_config(), state["messages"], run_end=True)

    def _prepared(self, request: Request, block: str) -> Request:
        """Return the request with the recalled block and the sentence about the tools; no state keeps them."""
        messages: Any = with_block(request.messages, block)
        return request.override(messages=messages, system_message=_with_hint(request.system_message, self._hint))


def _with_hint(system: SystemMessage | None, hint: str) -> SystemMessage | None:
    if not hint:
        return system
    if system is None:
        return SystemMessage(hint)
    content: Any = system.content
    if isinstance(content, str):
        return SystemMessage(f"{content}\n\n{hint}")
    return SystemMessage([*content, {"type": "text", "text": hint}])


def _is_last(response: Response) -> bool:
    """Return True if the answer calls no tool, which usually ends the run."""
    messages: Sequence[BaseMessage] = response.result
    return not any(isinstance(message, AIMessage) and message.tool_calls for message in messages)
