"""Runs of real agents in sessions of `ThreefoldSessionService`: what a runner does, and which calls it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent  # pyright: ignore[reportDeprecated]
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.errors import StaleSessionError
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import ToolContext

from conformance.adapter import Script, ToolCall
from conformance.adk_plugin import Scripted, message
from fixtures.line import Line, local_line
from plugins.adk.models import APP, Talk, words
from plugins.adk.sessions import open_sessions
from threefold_adk import ThreefoldPlugin

pytestmark = pytest.mark.anyio


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """A service on SQLite only, as the plugin does not depend on the database."""
    with local_line(sqlite_url, APP) as found:
        yield found


def weather(city: str, tool_context: ToolContext) -> str:
    """The weather in a city."""
    tool_context.state["user:city"] = city
    tool_context.state["temp:draft"] = city
    return f"Sunny in {city}"


async def test_conversation_is_continued_in_another_process(line: Line) -> None:
    first = Talk(
        sessions=open_sessions(line),
        replies=[ToolCall("weather", {"city": "Oslo"}), "Sunny."],
        tools=[weather],
        output_key="answer",
    )
    assert await first.say("What is the weather in Oslo?") == "Sunny."
    second = Talk(sessions=open_sessions(line), tools=[weather])
    assert await second.say("And tomorrow?") == "Noted."
    assert second.script.prompts[-1].splitlines() == [
        "What is the weather in Oslo?",
        'weather({"city": "Oslo"})',
        "Sunny in Oslo",
        "Sunny.",
        "And tomorrow?",
    ]
    assert (await second.session()).state == {"user:city": "Oslo", "answer": "Sunny."}


async def test_run_sends_one_call_per_event_and_records_nothing_twice(line: Line) -> None:
    talk = Talk(ThreefoldPlugin(line.async_client()), sessions=open_sessions(line), replies=["Hello Ana."])
    await talk.say("I am Ana")
    line.asked.clear()
    await talk.say("Who am I?")
    assert line.asked.count("POST /v1/write") == 2
    assert line.asked.count("POST /v1/recall") == 1
    assert words(line) == ["I am Ana", "Hello Ana.", "Who am I?", "Noted."]


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated")
async def test_parallel_branches_append_to_one_session(line: Line) -> None:
    script = Script(reply=lambda _: "Done.")
    branches = [LlmAgent(name=f"branch_{n}", model=Scripted(script=script), output_key=f"b{n}") for n in range(4)]
    both = ParallelAgent(name="both", sub_agents=list(branches))  # pyright: ignore[reportDeprecated]
    service = open_sessions(line)
    runner = Runner(app_name=APP, agent=both, session_service=service, auto_create_session=True)
    events = [event async for event in runner.run_async(user_id="ana", session_id="s", new_message=message("Go"))]
    assert {event.author for event in events} == {f"branch_{n}" for n in range(4)}
    stored = await service.get_session(app_name=APP, user_id="ana", session_id="s")
    assert stored is not None
    assert stored.state == {f"b{n}": "Done." for n in range(4)}
    assert len(stored.events) == 5


async def test_slower_of_two_concurrent_runs_is_stale(line: Line) -> None:
    async def interrupt() -> str:
        """Another run in the same session."""
        await Talk(sessions=open_sessions(line)).say("Meanwhile")
        return "done"

    talk = Talk(sessions=open_sessions(line), tools=[interrupt], replies=[ToolCall("interrupt", {}), "Late."])
    with pytest.raises(StaleSessionError, match="Session s was changed since it was read"):
        await talk.say("Hello")
    assert words(line)[-2:] == ["Meanwhile", "Noted."]
    assert await Talk(sessions=open_sessions(line)).say("Again") == "Noted."


async def test_concurrent_first_runs_succeed(line: Line) -> None:
    """Users reported that the first requests after a deployment failed because tables did not exist."""
    workers = [Talk(sessions=open_sessions(line)) for _ in range(4)]
    running = [worker.say("Hello", f"{n} {m}") for n, worker in enumerate(workers) for m in range(5)]
    assert await asyncio.gather(*running) == ["Noted."] * 20


async def test_run_reads_only_the_requested_events(line: Line) -> None:
    talk = Talk(sessions=open_sessions(line))
    for number in range(3):
        await talk.say(f"Word {number}")
    window = RunConfig(get_session_config=GetSessionConfig(num_recent_events=2))
    await talk.say("Word 3", run_config=window)
    assert talk.script.prompts[-1].splitlines() == ["Word 2", "Noted.", "Word 3"]
    assert len((await talk.session()).events) == 8


def test_sessions_work_in_any_thread_and_loop(line: Line) -> None:
    talk = Talk(sessions=open_sessions(line))
    for number in range(2):
        events = list(talk.runner.run(user_id="ana", session_id="s", new_message=message(f"Word {number}")))
        assert len(events) == 1
    asyncio.run(talk.say("Word 2"))
    assert words(line) == ["Word 0", "Noted.", "Word 1", "Noted.", "Word 2", "Noted."]


def test_closed_runner_leaves_no_connection_open(line: Line) -> None:
    """A warning about an open connection would fail this test."""

    async def run() -> None:
        talk = Talk(sessions=service)
        await talk.say("Hello")
        await talk.runner.close()

    service = open_sessions(line)
    asyncio.run(run())
    asyncio.run(service.close())
    asyncio.run(run())
    assert words(line) == ["Hello", "Noted."] * 2


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL")
async def test_session_is_rewound_and_compacted(line: Line) -> None:
    talk = Talk(sessions=open_sessions(line), replies=["One.", "Two.", "They counted.", "Three."])
    agent = talk.runner.agent
    config: Any = EventsCompactionConfig(compaction_interval=2, overlap_size=0)
    app = App(name=APP, root_agent=agent, events_compaction_config=config)
    talk.runner = Runner(app=app, session_service=talk.sessions, auto_create_session=True)
    await talk.say("Say one")
    await talk.say("Say two")
    stored = await talk.session()
    assert [event.actions.compaction is not None for event in stored.events] == [False] * 4 + [True]
    invocation = stored.events[2].invocation_id
    await talk.runner.rewind_async(user_id="ana", session_id="s", rewind_before_invocation_id=invocation)
    assert (await talk.session()).events[-1].actions.rewind_before_invocation_id == invocation
    assert await talk.say("Say three") == "Three."
    assert "Say two" not in talk.script.prompts[-1]
