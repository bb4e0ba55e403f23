"""`ThreefoldMiddleware`: memory for `create_agent`. It needs the extra `middleware`, so nothing else imports it."""

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
    """Recalls before the model is asked and records after each of its answers, so that nothing is lost however a run
    ends. One object serves all users, threads and event loops.
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
        return self._name

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        config, said = current_config(), request.state["messages"]
        block = self._memory.recall(config, said) if self._recalls else ""
        try:
            response = handler(self._prepared(request, block))
        except Exception:
            if self._records:
                self._memory.try_record(config, said)
            raise
        if self._records:
            self._memory.try_record(config, [*said, *response.result], run_end=_is_last(response))
        return response

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        config, said = current_config(), request.state["messages"]
        block = await self._memory.arecall(config, said) if self._recalls else ""
        try:
            response = await handler(self._prepared(request, block))
        except (Exception, asyncio.CancelledError):
            if self._records:
                with anyio.move_on_after(FLUSH_SECONDS, shield=True):
                    await self._memory.atry_record(config, said)
            raise
        if self._records:
            await self._memory.atry_record(config, [*said, *response.result], run_end=_is_last(response))
        return response

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Record what no answer of the model came after; and, if strict, fail for what is not recorded by now."""
        if self._records:
            self._memory.record(current_config(), state["messages"], run_end=True)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """`after_agent`, awaited."""
        if self._records:
            await self._memory.arecord(current_config(), state["messages"], run_end=True)

    def _prepared(self, request: Request, block: str) -> Request:
        """The request with what was recalled, which no state keeps."""
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
    """Without calls of tools an answer ends the run, as far as one can tell here."""
    messages: Sequence[BaseMessage] = response.result
    return not any(isinstance(message, AIMessage) and message.tool_calls for message in messages)
