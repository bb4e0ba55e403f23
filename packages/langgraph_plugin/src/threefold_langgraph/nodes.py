"""Nodes for plain graphs that recall and record, and the hook of `create_react_agent`."""

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
    """Return a node that puts the block for the latest user message into a field of the state.

    Declare the field as `Annotated[str, UntrackedValue]`; otherwise checkpoints keep recalled text after a forget.

    Args:
        connection: The connection of the process.
        messages: The field of the state with the messages.
        into: The field that gets the block; an empty string without one.
        options: Options of each recall, as for `MemoryClient.recall`.

    Returns:
        The node, for synchronous and asynchronous graphs.
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
    """Return a node that records, for the end of a graph or as the `post_model_hook` of `create_react_agent`.

    In the failure mode `strict` the node raises ThreefoldError if the messages could not be recorded.

    Args:
        connection: The connection of the process.
        messages: The field of the state with the messages.
        visibility: Widest level at which the turns may be recalled (default `user`).

    Returns:
        The node, for synchronous and asynchronous graphs.
    """
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
    """Return the `pre_model_hook` of `create_react_agent`, which shows the block to the model.

    The messages in the state do not change.

    Args:
        connection: The connection of the process.
        messages: The field of the state with the messages.
        options: Options of each recall, as for `MemoryClient.recall`.

    Returns:
        The hook, for synchronous and asynchronous agents.
    """
    memory = RunMemory(connection, options)

    def prepare(state: State, config: RunnableConfig) -> dict[str, Any]:
        current = state[messages]
        return {"llm_input_messages": with_block(current, memory.recall(config, current))}

    async def aprepare(state: State, config: RunnableConfig) -> dict[str, Any]:
        current = state[messages]
        return {"llm_input_messages": with_block(current, await memory.arecall(config, current))}

    return RunnableLambda(prepare, aprepare, name="pre_model_hook")


def _calls_tools(messages: Sequence[BaseMessage]) -> bool:
    return bool(messages) and bool(getattr(messages[-1], "tool_calls", None))
