"""`MemoryToolset`: the memory tools of a model, with the identity of its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from threefold import AsyncMemorySession, memory_tools
from threefold.tools.definitions import Tool, ToolName, run_tool_async

ToolChoice = Literal["read", "write", "all"]

NAMES: dict[ToolChoice, Sequence[ToolName]] = {
    "read": ("search_memory",),
    "write": ("save_memory",),
    "all": ("search_memory", "save_memory"),
}
_ANY_ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))  # `run_tool_async` checks them


class MemoryToolset(AbstractToolset[Any]):
    """Memory tools on the session of each run, with the levels that its user and agent may read."""

    def __init__(
        self, open_session: Callable[[RunContext[Any]], AsyncMemorySession], choice: ToolChoice, toolset_id: str | None
    ) -> None:
        self._open_session = open_session
        self._choice: ToolChoice = choice
        self._id = toolset_id

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {tool.name: self._offered(tool) for tool in await self._tools(self._open_session(ctx))}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        session = self._open_session(ctx)
        return await run_tool_async(session, name, tool_args, await self._tools(session))

    async def _tools(self, session: AsyncMemorySession) -> list[Tool]:
        return memory_tools(await session.identity(), NAMES[self._choice])

    def _offered(self, tool: Tool) -> ToolsetTool[Any]:
        definition = ToolDefinition(
            name=tool.name, description=tool.description, parameters_json_schema=tool.parameters()
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=_ANY_ARGUMENTS)
