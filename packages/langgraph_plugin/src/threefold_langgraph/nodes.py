"""Memory in plain graphs: nodes that recall and record, and the hook of `create_react_agent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from threefold.calls import RecallOptions
from threefold.contract import Visibility
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.conversation import with_block
from threefold_langgraph.run_memory import RunMemory

State = Mapping[str, Any]
Node = RunnableLambda[Any, dict[str, Any]]


def recall_node(
    connection: ThreefoldConnection,
    *,
    messages: str = "messages",
    into: str = "memory",
    options: RecallOptions | None = None,
) -> Node:
    """A node that puts what memory holds on the user's latest message into a field of the state.

    Declare it as `Annotated[str, UntrackedValue]`: a checkpoint would keep what a later forget has to reach.
    """
    memory = RunMemory(connection, options)

    def recall(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {into: memory.recall(config, state[messages])}

    async def arecall(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {into: await memory.arecall(config, state[messages])}

    return RunnableLambda(recall, arecall, name="recall")


def flush_node(
    connection: ThreefoldConnection, *, messages: str = "messages", visibility: Visibility | None = None
) -> Node:
    """A node that records the exchange: at the end of a graph, or as the `post_model_hook` of `create_react_agent`."""
    memory = RunMemory(connection, visibility=visibility)

    def flush(state: State, config: RunnableConfig) -> dict[str, Any]:
        memory.record(config, state[messages], run_end=not _calls_tools(state[messages]))
        return {}

    async def aflush(state: State, config: RunnableConfig) -> dict[str, Any]:
        await memory.arecord(config, state[messages], run_end=not _calls_tools(state[messages]))
        return {}

    return RunnableLambda(flush, aflush, name="flush")


def pre_model_hook(
    connection: ThreefoldConnection, *, messages: str = "messages", options: RecallOptions | None = None
) -> Node:
    """The hook of `create_react_agent`: the model gets what memory holds, and the messages stay as they are."""
    memory = RunMemory(connection, options)

    def prepare(state: State, config: RunnableConfig) -> dict[str, Any]:
        said = state[messages]
        return {"llm_input_messages": with_block(said, memory.recall(config, said))}

    async def aprepare(state: State, config: RunnableConfig) -> dict[str, Any]:
        said = state[messages]
        return {"llm_input_messages": with_block(said, await memory.arecall(config, said))}

    return RunnableLambda(prepare, aprepare, name="pre_model_hook")


def _calls_tools(messages: Sequence[BaseMessage]) -> bool:
    return bool(messages) and bool(getattr(messages[-1], "tool_calls", None))
