"""The memory tools for a model, in both worlds. Identity and session are the run's; the model cannot name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool

from threefold import WhoAmI
from threefold.tools import definitions as tools
from threefold.tools.definitions import DEFAULT_TOOLS, Tool, ToolName
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.run_memory import RunMemory


def memory_tools(
    connection: ThreefoldConnection, names: Sequence[ToolName] = DEFAULT_TOOLS, *, whoami: WhoAmI | None = None
) -> list[StructuredTool]:
    """Tools for `create_agent` or a `ToolNode`. With `whoami` they offer the levels that this identity may read, and
    up to `agent` else; the service checks again."""
    memory = RunMemory(connection)
    return [_structured(memory, tool) for tool in tools.memory_tools(whoami, names)]


def _structured(memory: RunMemory, tool: Tool) -> StructuredTool:
    def run(config: RunnableConfig, **arguments: Any) -> str:
        return tools.run_tool(memory.session(config), tool.name, arguments, [tool])

    async def arun(config: RunnableConfig, **arguments: Any) -> str:
        return await tools.run_tool_async(memory.async_session(config), tool.name, arguments, [tool])

    # The schema as it is, so that wrong arguments are answered in our words, as everywhere.
    return StructuredTool(
        name=tool.name, description=tool.description, args_schema=tool.parameters(), func=run, coroutine=arun
    )
