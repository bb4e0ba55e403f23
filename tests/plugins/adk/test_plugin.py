"""The plugin in real runs on a real service. The conformance tests cover what all plugins share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from conformance.adapter import Reply, ToolCall
from conformance.adk_plugin import message, weather
from fixtures.line import Line, local_line
from plugins.adk.models import APP, Talk, turns, words
from threefold import Policy
from threefold.render import FENCE_OPEN
from threefold_adk import ThreefoldMemoryService, ThreefoldPlugin, ThreefoldSessionService
from threefold_adk.events import words_of

pytestmark = pytest.mark.anyio

FORECAST = ToolCall("weather", {"town": "Oslo"})


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """A service on SQLite only, as the plugin does not depend on the database."""
    with local_line(sqlite_url, APP) as found:
        yield found


def plugin(line: Line, **options: Any) -> ThreefoldPlugin:
    return ThreefoldPlugin(line.async_client(), **options)


def recalls(line: Line) -> int:
    return line.asked.count("POST /v1/recall")


def writes(line: Line) -> int:
    return line.asked.count("POST /v1/write")


async def told(line: Line, what: str = "The gate code is 4711.") -> None:
    await Talk(plugin(line)).say(what, "earlier")
    line.asked.clear()


async def test_run_sends_one_recall_and_one_write(line: Line) -> None:
    await told(line)
    knowing = plugin(
        line, policy=Policy(failure_mode="soft")
    )  # the explicit mode saves the request for the policy of the store
    talk = Talk(knowing, replies=[FORECAST, FORECAST, "4711."], tools=[weather])
    await talk.say("What is the gate code?")
    assert (recalls(line), writes(line)) == (1, 1)
    assert [prompt.count("4711") for prompt in talk.script.prompts] == [1, 1, 1]


async def test_block_precedes_the_message_in_each_request(line: Line) -> None:
    await told(line)
    talk = Talk(plugin(line), replies=[FORECAST, "4711."], tools=[weather])
    await talk.say("What is the gate code?")
    for request in talk.model.requests:
        sent = [words_of(content) for content in request.contents]
        assert sent[0].startswith(FENCE_OPEN)
        assert sent[1] == "What is the gate code?"


async def test_block_is_in_no_session_and_not_in_the_run_config(line: Line) -> None:
    await told(line)
    talk = Talk(plugin(line))
    mine = RunConfig(model_input_context=[types.Content(role="user", parts=[types.Part(text="It is Monday.")])])
    await talk.say("What is the gate code?", run_config=mine)
    assert "It is Monday." in talk.script.prompts[0]
    assert "4711" in talk.script.prompts[0]
    assert "4711" not in (await talk.session()).model_dump_json()
    assert len(mine.model_input_context or []) == 1


async def test_turns_shown_to_the_model_are_not_recalled(line: Line) -> None:
    talk = Talk(plugin(line))
    await talk.say("The gate code is 4711.")
    await talk.say("What is the gate code?")
    assert talk.script.prompts[1].count("4711") == 1


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL")
async def test_turns_compacted_by_adk_are_recalled(line: Line) -> None:
    talk = Talk()
    config: Any = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
    app = App(name=APP, root_agent=talk.runner.agent, plugins=[plugin(line)], events_compaction_config=config)
    talk.runner = Runner(app=app, session_service=talk.sessions, auto_create_session=True)
    await talk.say("The gate code is 4711.")
    await talk.say("What is the gate code?")
    assert talk.script.prompts[-2].count("4711") == 1


async def test_session_lost_by_adk_is_shown_as_a_window(line: Line) -> None:
    await Talk(plugin(line)).say("Hello, I am in a hurry.")
    talk = Talk(plugin(line))
    await talk.say("Quick!")
    assert "I am in a hurry." in talk.script.prompts[0]


async def test_transfer_between_agents_shares_one_recall_and_one_record(line: Line) -> None:
    await told(line)
    replies: list[Reply] = [ToolCall("transfer_to_agent", {"agent_name": "keys"}), "It is 4711."]
    keys = LlmAgent(name="keys", description="Knows keys.")
    talk = Talk(plugin(line), replies=replies, sub_agents=[keys])
    keys.model = talk.model
    await talk.say("What is the gate code?")
    assert recalls(line) == 1
    assert ["4711" in prompt for prompt in talk.script.prompts] == [True, True]
    assert [(turn.name, turn.content) for turn in turns(line)] == [
        (None, "What is the gate code?"),
        ("keys", "It is 4711."),
    ]


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")  # raised by AgentTool
@pytest.mark.parametrize("is_called_by_a_function", [False, True])
async def test_agent_in_a_tool_is_part_of_the_run_of_its_caller(line: Line, is_called_by_a_function: bool) -> None:
    async def ask(request: str, tool_context: ToolContext) -> str:
        """Ask an expert."""
        return await expert.run_async(args={"request": request}, tool_context=tool_context)

    await told(line)
    agent = LlmAgent(name="expert", description="An expert.", tools=[weather])
    expert = AgentTool(agent)
    tool, name = (ask, "ask") if is_called_by_a_function else (expert, "expert")
    replies: list[Reply] = [ToolCall(name, {"request": "Find it."}), FORECAST, "An expert's answer.", "Here it is."]
    talk = Talk(plugin(line), replies=replies, tools=[tool])
    agent.model = talk.model
    await talk.say("What is the gate code?")
    assert recalls(line) == 1
    assert ["4711" in prompt for prompt in talk.script.prompts] == [True, True, True, True]
    with line.client("ana") as memory:
        assert {each.session_id for each in memory.sessions().sessions} == {"earlier", "s"}
    assert words(line) == [
        "What is the gate code?",
        f'{name}({{"request": "Find it."}})',
        "An expert's answer.",
        "Here it is.",
    ]


@pytest.mark.parametrize(("user", "has_its_own_sessions"), [("ana", False), ("bob", True)])
async def test_run_started_by_a_tool_is_a_separate_run(line: Line, user: str, has_its_own_sessions: bool) -> None:
    async def remind() -> str:
        """Remind somebody."""
        return await reminder.say("Do not forget the milk.", "another", user)

    knowing = plugin(line)
    talk = Talk(knowing, replies=[ToolCall("remind", {})], tools=[remind])
    reminder = Talk(knowing, sessions=None if has_its_own_sessions else talk.sessions)
    await talk.say("Remind them.")
    assert words(line, "another", user) == ["Do not forget the milk.", "Noted."]
    assert words(line) == ["Remind them.", "remind({})", "Noted.", "Noted."]


async def test_turns_of_a_killed_process_are_recorded_by_the_next_run(line: Line) -> None:
    sessions = InMemorySessionService()
    await Talk(sessions=sessions).say("Day 1.")  # without the plugin
    await Talk(plugin(line), sessions=sessions).say("Day 2.")
    assert words(line) == ["Day 1.", "Noted.", "Day 2.", "Noted."]


async def test_new_process_repeats_only_the_last_run(line: Line) -> None:
    sessions = InMemorySessionService()
    for day in range(3):
        await Talk(sessions=sessions).say(f"Day {day}.")  # before the plugin was added
    for day in range(3, 5):
        await Talk(plugin(line), sessions=sessions).say(f"Day {day}.")
    assert [text for text in words(line) if text != "Noted."] == ["Day 2.", "Day 3.", "Day 4."]
    with line.client("ana") as memory:
        assert memory.status("s").last_seq == 6


async def test_partly_loaded_session_is_recorded_completely(line: Line) -> None:
    talk = Talk(plugin(line))
    window = RunConfig(get_session_config=GetSessionConfig(num_recent_events=1))
    for day in range(3):
        await talk.say(f"Day {day}.", run_config=window)
    assert [text for text in words(line) if text != "Noted."] == ["Day 0.", "Day 1.", "Day 2."]


async def test_tool_may_return_any_object(line: Line) -> None:
    async def look() -> object:
        """Look."""
        return object()

    knowing = plugin(line, policy=Policy(failure_mode="strict"))
    talk = Talk(knowing, replies=[ToolCall("look", {}), "I looked."], tools=[look])
    assert await talk.say("Look there.") == "I looked."
    assert [words(line)[place] for place in (0, -1)] == ["Look there.", "I looked."]


async def test_run_left_early_records_the_turns_until_then(line: Line) -> None:
    talk = Talk(plugin(line), replies=[FORECAST], tools=[weather])
    running = talk.runner.run_async(user_id="ana", session_id="s", new_message=message("The weather?"))
    async with aclosing(running) as events:
        async for _ in events:
            break
    assert words(line)[:2] == ["The weather?", 'weather({"town": "Oslo"})']


async def test_threefold_sessions_and_plugin_write_no_turn_twice(line: Line) -> None:
    sessions, memory = ThreefoldSessionService(line.async_client()), ThreefoldMemoryService(line.async_client())
    talk = Talk(plugin(line), sessions=sessions, memory=memory)
    await talk.say("The gate code is 4711.")
    session = await talk.session()
    assert [event.id for event in session.events] == [turn.id for turn in turns(line)]
    assert writes(line) == 3  # create the session and append two events; the plugin adds none
    await memory.add_session_to_memory(session)
    assert [event.id for event in session.events] == [turn.id for turn in turns(line)]
    assert (await talk.session()).events == session.events


async def test_threefold_sessions_do_not_recall_the_current_message(line: Line) -> None:
    await told(line)
    few = plugin(line, options={"top_k": 1})
    talk = Talk(few, sessions=ThreefoldSessionService(line.async_client()))
    await talk.say("Hello.")
    await talk.say("What is the gate code?")
    assert talk.script.prompts[1].count("4711") == 1
    assert talk.script.prompts[1].count("What is the gate code?") == 1


async def test_message_without_words_is_not_recalled(line: Line) -> None:
    await Talk(plugin(line)).say(" ")
    assert recalls(line) == 0


@pytest.mark.parametrize(("off", "left"), [("recall", "POST /v1/write"), ("record", "POST /v1/recall")])
async def test_recall_and_record_can_be_turned_off(line: Line, off: str, left: str) -> None:
    options: dict[str, Any] = {off: False}
    await Talk(plugin(line, policy=Policy(failure_mode="soft"), **options)).say("Hello.")
    assert line.asked == [left]


async def test_options_are_sent_with_the_recall(line: Line) -> None:
    await told(line)
    talk = Talk(plugin(line, options={"top_k": 0}))
    await talk.say("What is the gate code?")
    assert "4711" not in talk.script.prompts[0]


async def test_visibility_is_set_on_the_turns(line: Line) -> None:
    await Talk(plugin(line, visibility="session")).say("Hello.")
    assert {turn.visibility for turn in turns(line)} == {"session"}


async def test_failed_run_raises_its_own_error_if_recording_fails(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    strict = plugin(line, policy=Policy(failure_mode="strict"))

    def fail(_: list[str]) -> Reply:
        line.is_cut = True
        raise ValueError("the model is broken")

    talk = Talk(strict)
    talk.script.reply = fail
    with pytest.raises(ValueError, match="the model is broken"):
        await talk.say("Hello.")
    assert "a failed run was not recorded" in caplog.text
    assert strict.stats.outages > 0


async def test_failed_run_does_not_wait_for_a_hanging_service(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    def fail(_: list[str]) -> Reply:
        monkeypatch.setattr("threefold.AsyncMemoryClient.send", hang)
        raise ValueError("the model is broken")

    monkeypatch.setattr("threefold_adk.plugin.FLUSH_SECONDS", 0.0)
    talk = Talk(plugin(line))
    talk.script.reply = fail
    with pytest.raises(ValueError, match="the model is broken"):
        await talk.say("Hello.")
    monkeypatch.undo()
    talk.script.reply = lambda _: "Noted."
    await talk.say("Bye.", "other")  # the next run sends the waiting turns
    assert words(line) == ["Hello."]


async def test_runner_closes_the_client_made_by_the_plugin(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []

    async def close(self: object) -> None:
        closed.append(self)

    monkeypatch.setattr("threefold.AsyncMemoryClient.close", close)
    await Talk(plugin(line)).runner.close()
    assert closed == []
    await Talk(ThreefoldPlugin()).runner.close()
    assert len(closed) == 1


def test_plugin_can_be_made_by_its_class_name() -> None:
    """As with `--extra_plugins` of the commands of ADK."""
    assert ThreefoldPlugin(name="threefold_adk.ThreefoldPlugin").name == "threefold_adk.ThreefoldPlugin"
