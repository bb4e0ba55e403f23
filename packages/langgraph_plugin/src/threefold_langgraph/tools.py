"""`memory_tools`: the memory tools of a model. User, agent and session are those of the run, never arguments."""

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
    """Return tools for `create_agent` or a `ToolNode`, for synchronous and asynchronous code.

    Args:
        connection: The connection of the process.
        names: Names of the tools (default: `search_memory` and `save_memory`).
        whoami: The identity whose levels are offered (default: the levels up to `agent`). The service checks each call.

    Returns:
        The tools in the order of `names`.

    Raises:
        InvalidRequest: There is no tool with one of the names.
    """
    memory = RunMemory(connection)
    return [_structured(memory, tool) for tool in tools.memory_tools(whoami, names)]


def _structured(memory: RunMemory, tool: Tool) -> StructuredTool:
    def run(config: RunnableConfig, **arguments: Any) -> str:
        return tools.run_tool(memory.session(config), tool.name, arguments, [tool])

    async def arun(config: RunnableConfig, **arguments: Any) -> str:
        return await tools.run_tool_async(memory.async_session(config), tool.name, arguments, [tool])

    # The schema itself, so that Threefold answers wrong arguments, with the same text in every framework.
    return StructuredTool(
        name=tool.name, description=tool.description, args_schema=tool.parameters(), func=run, coroutine=arun
    )
