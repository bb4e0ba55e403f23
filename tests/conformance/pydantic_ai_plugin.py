"""Pydantic AI in the conformance suite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryImage, ImageUrl, ModelRequestNode, UsageLimits
from pydantic_ai.exceptions import RunTimedOut, UsageLimitExceeded
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import RunContext

from conformance.adapter import Plugin, Reply, Script, Setup, Stall, ToolCall, Who
from threefold_pydantic_ai import ThreefoldMemory

PIXEL = bytes.fromhex("89504e470d0a1a0a")


class Failure(Exception):
    """Raised by a test."""


def sent(messages: list[ModelMessage]) -> list[str]:
    """Return the texts of messages."""
    return [text for message in messages for part in message.parts for text in texts(part)]


def texts(part: Any) -> list[str]:
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        return [item.content if isinstance(item, TextContent) else str(item) for item in part.content]
    if isinstance(part, ToolReturnPart):
        return [part.model_response_str()]
    return [str(getattr(part, "content", ""))]


async def resolve(script: Script, messages: list[ModelMessage]) -> Reply:
    reply = script.answer(sent(messages))
    if isinstance(reply, Stall):
        await asyncio.Event().wait()
    return reply


def model(script: Script) -> FunctionModel:
    """Return the script as a model, with and without streaming."""

    async def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        reply = await resolve(script, messages)
        if isinstance(reply, ToolCall):
            return ModelResponse([ToolCallPart(reply.name, reply.arguments)])
        return ModelResponse([TextPart(str(reply))])

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        reply = await resolve(script, messages)
        if isinstance(reply, ToolCall):
            yield {0: DeltaToolCall(reply.name, json.dumps(reply.arguments))}
        else:
            for word in str(reply).split():
                yield f"{word} "

    return FunctionModel(respond, stream_function=stream)


class Subject:
    """An agent with the user as its deps."""

    def __init__(self, setup: Setup, **options: Any) -> None:
        self.script = setup.script
        self.memory = ThreefoldMemory(setup.line.async_client(), user=user_of, policy=setup.policy, **options)
        self.agent = Agent(model(setup.script), deps_type=str, capabilities=[self.memory])
        self.agent.tool_plain(weather)
        self.agent.tool_plain(broken)

    def run_sync(self, text: str, who: Who) -> str:
        with own_loop():
            return self.agent.run_sync(text, deps=who.user, conversation_id=who.session).output

    async def run(self, text: str, who: Who) -> str:
        return (await self.agent.run(text, deps=who.user, conversation_id=who.session)).output


@contextmanager
def own_loop() -> Generator[None]:
    """Run in a new event loop and close it, because `run_sync` leaves its loop open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def user_of(ctx: RunContext[Any]) -> str:
    return ctx.deps


def weather(town: str) -> str:
    return f"Sunny in {town}."


def broken() -> str:
    raise Failure("the tool is broken")


async def run_stream(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.run_stream(text, deps=who.user, conversation_id=who.session) as result:
        async for _ in result.stream_text():
            pass


async def run_stream_events(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.run_stream_events(text, deps=who.user, conversation_id=who.session) as events:
        async for _ in events:
            pass


async def iterate(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.iter(text, deps=who.user, conversation_id=who.session) as run:
        async for _ in run:
            pass


async def run_twice_in_history(subject: Subject, text: str, who: Who) -> None:
    """Pass the messages of the first run to a second one, which records only its own."""
    result = await subject.agent.run(text, deps=who.user, conversation_id=who.session)
    await subject.agent.run("And now?", deps=who.user, message_history=result.all_messages())


async def run_overridden(subject: Subject, text: str, who: Who) -> None:
    with subject.agent.override(model=model(subject.script), instructions="Other instructions."):
        await subject.run(text, who)


async def leave_stream(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.run_stream(text, deps=who.user, conversation_id=who.session) as result:
        async for _ in result.stream_text():
            break


async def never_read_stream(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.run_stream(text, deps=who.user, conversation_id=who.session):
        pass


async def leave_events(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.run_stream_events(text, deps=who.user, conversation_id=who.session) as events:
        async for event in events:
            if type(event).__name__ == "PartStartEvent":
                break


async def leave_iteration(subject: Subject, text: str, who: Who) -> None:
    async with subject.agent.iter(text, deps=who.user, conversation_id=who.session) as run:
        async for node in run:
            if isinstance(node, ModelRequestNode):
                break


async def cancel(subject: Subject, text: str, who: Who) -> None:
    began = asyncio.Event()
    subject.script.reply, subject.script.stalled = (lambda _: Stall()), began.set
    running = asyncio.create_task(subject.run(text, who))
    await began.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def time_out(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = lambda _: Stall()
    with pytest.raises(RunTimedOut):
        await subject.agent.run(text, deps=who.user, conversation_id=who.session, timeout=0.05)


async def fail_in_model(subject: Subject, text: str, who: Who) -> None:
    def fail(_: list[str]) -> Reply:
        raise Failure("the model is broken")

    subject.script.reply = fail
    with pytest.raises(Failure):
        await subject.run(text, who)


async def fail_in_tool(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = lambda _: ToolCall("broken", {})
    with pytest.raises(Failure):
        await subject.run(text, who)


async def pass_the_limit(subject: Subject, text: str, who: Who) -> None:
    subject.script.reply = lambda _: ToolCall("weather", {"town": "Oslo"})
    limits = UsageLimits(request_limit=2)
    with pytest.raises(UsageLimitExceeded):
        await subject.agent.run(text, deps=who.user, conversation_id=who.session, usage_limits=limits)


async def replay(setup: Setup, who: Who) -> tuple[Any, Any]:
    """Return the messages of two runs, and those with which a third run starts."""
    subject = Subject(setup, replay=True)
    calls: list[Reply] = [ToolCall("weather", {"town": "Oslo"}), "Sunny.", "A pixel."]
    setup.script.reply = lambda _: calls.pop(0)
    first = await subject.agent.run("What is the weather in Oslo?", deps=who.user, conversation_id=who.session)
    picture = ["And this?", BinaryImage(PIXEL, media_type="image/png"), ImageUrl("https://example.org/a.png")]
    second = await subject.agent.run(picture, deps=who.user, conversation_id=who.session)

    setup.script.reply = lambda _: "Yes."
    other = Subject(setup, replay=True, recall=False)
    third = await other.agent.run("Is that all?", deps=who.user, conversation_id=who.session)
    said = [*first.new_messages(), *second.new_messages()]
    return said, third.all_messages()[: len(said)]


PLUGIN = Plugin(
    module="threefold_pydantic_ai",
    framework="pydantic_ai",
    agent=Subject,
    completing={
        "run_stream": run_stream,
        "run_stream_events": run_stream_events,
        "iter": iterate,
        "run_overridden": run_overridden,
    },
    breaking={
        "leave_stream": leave_stream,
        "never_read_stream": never_read_stream,
        "leave_events": leave_events,
        "leave_iteration": leave_iteration,
        "cancel": cancel,
        "time_out": time_out,
        "fail_in_model": fail_in_model,
        "fail_in_tool": fail_in_tool,
        "pass_the_limit": pass_the_limit,
        "run_twice_in_history": run_twice_in_history,
    },
    replay=replay,
)
