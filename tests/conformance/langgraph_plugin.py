"""LangGraph in the conformance suite: `create_agent` with the middleware, and a thread per session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, suppress
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph  # pyright: ignore[reportMissingTypeStubs]

from conformance.adapter import Plugin, Reply, Script, Setup, Stall, ToolCall, Who
from threefold_langgraph import ThreefoldConnection, ThreefoldSaver
from threefold_langgraph.middleware import ThreefoldMiddleware
from threefold_langgraph.tools import memory_tools


class Failure(Exception):
    """Raised by a test."""


class Scripted(BaseChatModel):
    """The script as a chat model, with and without streaming."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=said(self.ask(messages)))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        reply = self.ask(messages)
        if isinstance(reply, Stall):
            await asyncio.Event().wait()
        return ChatResult(generations=[ChatGeneration(message=said(reply))])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield from pieces(self.ask(messages))

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        reply = self.ask(messages)
        if isinstance(reply, Stall):
            await asyncio.Event().wait()
        for piece in pieces(reply):
            yield piece

    def ask(self, messages: list[BaseMessage]) -> Reply:
        script: Script = self.script
        return script.answer([str(message.text) for message in messages])


def said(reply: Reply) -> AIMessage:
    if isinstance(reply, ToolCall):
        call = {"name": reply.name, "args": reply.arguments, "id": "call", "type": "tool_call"}
        return AIMessage("", tool_calls=[call])  # pyright: ignore[reportArgumentType]
    return AIMessage(str(reply))


def pieces(reply: Reply) -> Iterator[ChatGenerationChunk]:
    if isinstance(reply, ToolCall):
        call = {"name": reply.name, "args": json.dumps(reply.arguments), "id": "call", "index": 0}
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))  # pyright: ignore[reportArgumentType]
    else:
        for word in str(reply).split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


class Subject:
    """An agent; the config of each run names user and thread."""

    def __init__(self, setup: Setup, *, keeps_threads: bool = False) -> None:
        self.script = setup.script
        self.connection = ThreefoldConnection(setup.line.client(), setup.line.async_client(), policy=setup.policy)
        middleware: Any = ThreefoldMiddleware(self.connection)
        saver: Any = ThreefoldSaver(self.connection) if keeps_threads else None
        model = Scripted(script=setup.script)
        self.agent: Any = create_agent(
            model, [weather, broken, *memory_tools(self.connection)], middleware=[middleware], checkpointer=saver
        )

    def run_sync(self, text: str, who: Who) -> str:
        return self.agent.invoke({"messages": text}, of(who))["messages"][-1].text

    async def run(self, text: str, who: Who) -> str:
        return (await self.agent.ainvoke({"messages": text}, of(who)))["messages"][-1].text


def of(who: Who) -> RunnableConfig:
    return {"configurable": {"thread_id": who.session, "user_id": who.user}}


def weather(town: str) -> str:
    """The weather in a town."""
    return f"Sunny in {town}."


def broken() -> str:
    """A tool that fails."""
    raise Failure("the tool is broken")


async def stream_sync(subject: Subject, text: str, who: Who) -> None:
    def drive() -> None:
        for _ in subject.agent.stream({"messages": text}, of(who), stream_mode="messages"):
            pass

    await asyncio.to_thread(drive)


async def stream(subject: Subject, text: str, who: Who) -> None:
    async for _ in subject.agent.astream({"messages": text}, of(who), stream_mode=["updates", "messages"]):
        pass


async def stream_events(subject: Subject, text: str, who: Who) -> None:
    async for _ in subject.agent.astream_events({"messages": text}, of(who), version="v2"):
        pass


async def as_subgraph(subject: Subject, text: str, who: Who) -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("agent", subject.agent).add_edge(START, "agent")
    await builder.compile().ainvoke({"messages": text}, of(who))


async def in_batch(subject: Subject, text: str, who: Who) -> None:
    await subject.agent.abatch([{"messages": text}], [of(who)])


async def leave_stream(subject: Subject, text: str, who: Who) -> None:
    async with aclosing(subject.agent.astream({"messages": text}, of(who), stream_mode="messages")) as chunks:
        async for _ in chunks:
            break


async def leave_stream_sync(subject: Subject, text: str, who: Who) -> None:
    def drive() -> None:
        with closing(subject.agent.stream({"messages": text}, of(who), stream_mode="messages")) as chunks:
            next(chunks)

    await asyncio.to_thread(drive)


async def cancel(subject: Subject, text: str, who: Who) -> None:
    began = asyncio.Event()
    subject.script.reply, subject.script.stalled = (lambda _: Stall()), began.set
    run = asyncio.create_task(subject.run(text, who))
    await began.wait()
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


def failing(_: list[str]) -> Reply:
    raise Failure("the model is broken")


async def fail_in_model(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = failing
    with pytest.raises(Failure):
        await subject.run(text, who)


async def fail_in_model_sync(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = failing
    with pytest.raises(Failure):
        await asyncio.to_thread(subject.run_sync, text, who)


async def fail_in_tool(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = lambda _: ToolCall("broken", {})
    with pytest.raises(Failure):
        await subject.run(text, who)


async def pass_the_limit(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = lambda _: ToolCall("weather", {"town": "Bern"})
    with pytest.raises(GraphRecursionError):
        await subject.agent.ainvoke({"messages": text}, {**of(who), "recursion_limit": 5})


async def run_twice_in_history(subject: Subject, text: str, who: Who) -> None:
    """Pass the history of the application again without message ids."""
    await subject.run(text, who)
    history = [HumanMessage(text), AIMessage("Noted."), HumanMessage("And now?")]
    await subject.agent.ainvoke({"messages": history}, of(who))


async def replay(setup: Setup, who: Who) -> tuple[Any, Any]:
    """Return a conversation with a tool call and an image, and the same loaded by another agent with
    `ThreefoldSaver`."""
    subject, other = Subject(setup, keeps_threads=True), Subject(setup, keeps_threads=True)
    replies = iter([ToolCall("weather", {"town": "Bern"}), "It is sunny.", "A pixel."])
    setup.script.reply = lambda _: next(replies)
    await subject.run("What is the weather in Bern?", who)
    picture = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    shown = HumanMessage([{"type": "text", "text": "What is this?"}, picture])  # pyright: ignore[reportArgumentType]
    state = await subject.agent.ainvoke({"messages": [shown]}, of(who))
    loaded = await other.agent.aget_state(of(who))
    await subject.connection.aclose()
    await other.connection.aclose()
    return state["messages"], loaded.values["messages"]


PLUGIN = Plugin(
    module="threefold_langgraph",
    framework="langgraph.graph",
    agent=Subject,
    completing={
        "stream_sync": stream_sync,
        "stream": stream,
        "stream_events": stream_events,
        "as_subgraph": as_subgraph,
        "in_batch": in_batch,
    },
    breaking={
        "leave_stream": leave_stream,
        "leave_stream_sync": leave_stream_sync,
        "cancel": cancel,
        "fail_in_model": fail_in_model,
        "fail_in_model_sync": fail_in_model_sync,
        "fail_in_tool": fail_in_tool,
        "pass_the_limit": pass_the_limit,
        "run_twice_in_history": run_twice_in_history,
    },
    replay=replay,
)
