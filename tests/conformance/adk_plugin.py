"""Google ADK in the conformance suite: a runner with the plugin, and sessions of ADK in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext, LlmCallsLimitExceededError
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import ListSessionsResponse
from google.genai import types
from pydantic import Field

from conformance.adapter import Plugin, Reply, Script, Setup, Stall, ToolCall, Who
from threefold import ThreefoldError
from threefold_adk import ThreefoldPlugin, ThreefoldSessionService, ThreefoldToolset
from threefold_adk.events import words_of

PIXEL = bytes.fromhex("89504e470d0a1a0a")
STREAMING = RunConfig.model_validate({"streaming_mode": "sse"})


class Failure(Exception):
    """Raised by a test."""


class Scripted(BaseLlm):
    """The script as a model, with and without streaming."""

    model: str = "scripted"
    script: Any
    requests: list[LlmRequest] = Field(default_factory=list[LlmRequest])

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:  # pyright: ignore[reportIncompatibleMethodOverride]
        script: Script = self.script
        self.requests.append(llm_request)
        reply = script.answer([words_of(content) for content in llm_request.contents])
        if isinstance(reply, Stall):
            await asyncio.Event().wait()
        if stream and isinstance(reply, str):
            for word in reply.split():
                yield LlmResponse(content=said(f"{word} "), partial=True)
        yield LlmResponse(content=said(reply))


def said(reply: Reply) -> types.Content:
    if isinstance(reply, ToolCall):
        part = types.Part(function_call=types.FunctionCall(name=reply.name, args=reply.arguments))
    else:
        part = types.Part(text=str(reply))
    return types.Content(role="model", parts=[part])


class Sessions(BaseSessionService):
    """Sessions in memory with unchanged ids; the service of ADK trims ids."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, str, str], Session] = {}

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        session = Session(id=session_id or "", app_name=app_name, user_id=user_id, state=state or {})
        return self.sessions.setdefault((app_name, user_id, session.id), session)

    async def get_session(self, *, app_name: str, user_id: str, session_id: str, config: Any = None) -> Session | None:
        return self.sessions.get((app_name, user_id, session_id))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        raise NotImplementedError

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        raise NotImplementedError


class Subject:
    """An app with one agent; each run names its user and session."""

    def __init__(self, setup: Setup, sessions: BaseSessionService | None = None) -> None:
        self.script = setup.script
        client = setup.line.async_client()
        self.plugin = ThreefoldPlugin(client, policy=setup.policy)
        self.model = Scripted(script=setup.script)
        tools: list[Any] = [weather, broken, ThreefoldToolset(client, policy=setup.policy)]
        self.agent_name = client.agent or ""
        self.sessions = sessions or Sessions()
        self.runner = self.runner_of(LlmAgent(name="helper", model=self.model, tools=tools))

    def runner_of(self, agent: BaseAgent) -> Runner:
        app = App.model_construct(name=self.agent_name, root_agent=agent, plugins=[self.plugin])
        return Runner(app=app, session_service=self.sessions, auto_create_session=True)

    def run_sync(self, text: str, who: Who) -> str:
        with unwrapped():
            events = self.runner.run(user_id=who.user, session_id=who.session, new_message=message(text))
            return words_of(list(events)[-1].content)

    async def run(self, text: str, who: Who) -> str:
        with unwrapped():
            return words_of([event async for event in self.events(text, who)][-1].content)

    def events(self, text: str, who: Who, **options: Any) -> Any:
        return self.runner.run_async(user_id=who.user, session_id=who.session, new_message=message(text), **options)


def message(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


@contextmanager
def unwrapped() -> Generator[None]:
    """Raise the error of the plugin, which ADK wraps."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, ThreefoldError):
            raise error.__cause__ from None
        raise


def weather(town: str) -> str:
    """The weather in a town."""
    return f"Sunny in {town}."


def broken() -> str:
    """A tool that fails."""
    raise Failure("the tool is broken")


async def stream(subject: Subject, text: str, who: Who) -> None:
    async for _ in subject.events(text, who, run_config=STREAMING):
        pass


async def run_debug(subject: Subject, text: str, who: Who) -> None:
    await subject.runner.run_debug(text, user_id=who.user, session_id=who.session, quiet=True)


class Steps(BaseAgent):
    """An agent without a model of its own."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for step in self.sub_agents:
            async for event in step.run_async(ctx):
                yield event


async def in_steps(subject: Subject, text: str, who: Who) -> None:
    step = LlmAgent(name="step", model=subject.model)
    subject.runner = subject.runner_of(Steps(name="steps", sub_agents=[step]))
    await subject.run(text, who)


async def leave_early(subject: Subject, text: str, who: Who) -> None:
    async with aclosing(subject.events(text, who)) as events:
        async for _ in events:
            break


async def leave_early_sync(subject: Subject, text: str, who: Who) -> None:
    def drive() -> None:
        events = subject.runner.run(user_id=who.user, session_id=who.session, new_message=message(text))
        next(events)
        events.close()

    await asyncio.to_thread(drive)


async def leave_stream(subject: Subject, text: str, who: Who) -> None:
    async with aclosing(subject.events(text, who, run_config=STREAMING)) as events:
        async for _ in events:
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
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            subject.script.stalled = lambda: limit.reschedule(0)
            await subject.run(text, who)


async def abort(subject: Subject, text: str, who: Who) -> None:
    signal = asyncio.Event()
    subject.script.reply, subject.script.stalled = (lambda _: Stall()), signal.set
    async for _ in subject.events(text, who, abort_signal=signal):
        pass


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
    with pytest.raises(LlmCallsLimitExceededError):
        async for _ in subject.events(text, who, run_config=RunConfig(max_llm_calls=2)):
            pass


async def replay(setup: Setup, who: Who) -> tuple[Any, Any]:
    """Return the events of two runs, and the events that another runner loads."""
    replies: list[Reply] = [ToolCall("weather", {"town": "Oslo"}), "Sunny.", "A pixel."]
    setup.script.reply = lambda _: replies.pop(0)
    subject = Subject(setup, ThreefoldSessionService(setup.line.async_client()))
    picture = types.Part(inline_data=types.Blob(mime_type="image/png", data=PIXEL))
    page = types.Part(file_data=types.FileData(mime_type="text/html", file_uri="https://example.org/a"))
    contents = [message("What is the weather in Oslo?"), types.Content(role="user", parts=[picture, page])]
    told: list[Event] = []
    for content in contents:
        running = subject.runner.run_async(
            user_id=who.user, session_id=who.session, new_message=content, yield_user_message=True
        )
        told += [event async for event in running]
    other = ThreefoldSessionService(setup.line.async_client())
    found = await other.get_session(app_name=subject.agent_name, user_id=who.user, session_id=who.session)
    return told, found and found.events


PLUGIN = Plugin(
    module="threefold_adk",
    framework="google.adk.runners",
    agent=Subject,
    completing={"stream": stream, "run_debug": run_debug, "in_steps": in_steps},
    breaking={
        "leave_early": leave_early,
        "leave_early_sync": leave_early_sync,
        "leave_stream": leave_stream,
        "cancel": cancel,
        "time_out": time_out,
        "abort": abort,
        "fail_in_model": fail_in_model,
        "fail_in_tool": fail_in_tool,
        "pass_the_limit": pass_the_limit,
    },
    replay=replay,
)
