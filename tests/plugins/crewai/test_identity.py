"""Which user, agent and session a kickoff has: from code, from the memory, or from the inputs, never from the last
run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import pytest

from conformance.adapter import Reply, Script, Stall, ToolCall
from conformance.crewai_host import (
    Flow,
    HumanFeedbackPending,
    PendingFeedbackContext,
    SQLiteFlowPersistence,
    crewai,
    human_feedback,
    listen,
    start,
    tool,
)
from fixtures.line import Line
from plugins.crewai.conftest import (
    agent_of,
    client_of,
    crew_of,
    crew_that,
    inputs,
    memory_of,
    replies,
    spoken,
    stored,
    task_of,
)
from threefold import InvalidRequest, NotFound, ThreefoldError
from threefold_crewai import MemoryAborted, ThreefoldMemory, acting_as, runs

ASKED = ("user", None, "Hello.")


def customer(given: Mapping[str, Any]) -> str:
    return given["customer"]["id"]


def whose(line: Line, *users: str, session: str = "s", agent: str = "support") -> list[str]:
    """Return those of the users who have the message in a session."""
    return [user for user in users if _has(line, user, session, agent)]


def _has(line: Line, user: str, session: str, agent: str) -> bool:
    try:
        return spoken(line, user, session, agent)[0] == ASKED
    except NotFound:
        return False


def test_sources_of_a_user_have_a_fixed_order(line: Line) -> None:
    names = ("code", "fixed", "input", "client")
    everyone = ThreefoldMemory(client_of(line, "client"), user="fixed")
    with acting_as(user="code"):
        crew_that(Script(), everyone).kickoff(inputs("Hello.", "input", "1"))
    crew_that(Script(), everyone).kickoff(inputs("Hello.", "input", "2"))
    nobody = ThreefoldMemory(client_of(line, "client"))
    crew_that(Script(), nobody).kickoff(inputs("Hello.", "input", "3"))
    crew_that(Script(), nobody).kickoff({"text": "Hello.", "session_id": "4"})
    assert [whose(line, *names, session=str(number)) for number in (1, 2, 3, 4)] == [[name] for name in names]


def test_names_can_be_functions_of_the_inputs(line: Line) -> None:
    memory = memory_of(line, user=customer, session=itemgetter("ticket"))
    crew_that(Script(), memory).kickoff({"text": "Hello.", "customer": {"id": "ana"}, "ticket": "7"})
    assert whose(line, "ana", session="7") == ["ana"]


@pytest.mark.parametrize("wrong", [itemgetter("missing"), dict[str, str]().get, attrgetter("customer")])
def test_function_that_returns_no_user_stops_the_kickoff(line: Line, wrong: Any) -> None:
    script = Script()
    with pytest.raises(MemoryAborted, match="user: its function"):
        crew_that(script, memory_of(line, user=wrong)).kickoff(inputs("Hello."))
    assert script.prompts == []


def test_number_is_accepted_as_a_name(line: Line) -> None:
    crew_that(Script(), memory_of(line)).kickoff({**inputs("Hello."), "user_id": 7})
    assert whose(line, "7") == ["7"]


def test_value_that_is_no_name_stops_the_kickoff(line: Line) -> None:
    script = Script()
    with pytest.raises(MemoryAborted, match="user_id: must be a string, not list"):
        crew_that(script, memory_of(line)).kickoff({**inputs("Hello."), "user_id": ["ana"]})
    assert script.prompts == []


def test_refusal_by_the_service_is_the_cause_of_the_error(line: Line) -> None:
    with pytest.raises(MemoryAborted) as raised:
        crew_that(Script(), memory_of(line)).kickoff(inputs("Hello.", "*"))
    assert isinstance(raised.value.__cause__, InvalidRequest)


def test_callback_before_the_kickoff_may_name_the_user(line: Line) -> None:
    crew = crew_that(Script(), memory_of(line))
    crew.before_kickoff_callbacks.append(partial(dict[str, str], user_id="ana"))
    crew.kickoff({"text": "Hello.", "session_id": "s"})
    assert whose(line, "ana", "local") == ["ana"]


def test_crew_in_a_flow_may_have_another_user(line: Line) -> None:
    memory = memory_of(line)

    class Talk(Flow[Any]):
        @start()
        def talk(self) -> None:
            crew_that(Script(), memory).kickoff({"text": "Hello."})
            crew_that(Script(), memory).kickoff({"text": "Hello.", "user_id": "ben"})

    Talk(memory=memory).kickoff(inputs={"user_id": "ana", "session_id": "s"})
    assert whose(line, "ana", "ben", "local") == ["ana", "ben"]


def test_crew_in_a_flow_defaults_to_the_user_of_the_flow(line: Line) -> None:
    memory = memory_of(line)

    class Talk(Flow[Any]):
        @start()
        def talk(self) -> None:
            crew_that(Script(), memory).kickoff({"text": "Hello.", "user_id": None, "session_id": None})

    Talk(memory=memory).kickoff(inputs={"user_id": "ana", "session_id": "s"})
    assert whose(line, "ana", "local") == ["ana"]


def test_crew_in_a_flow_uses_the_agent_name_of_the_flow(line: Line) -> None:
    memory = memory_of(line)

    class Talk(Flow[Any]):
        @start()
        def talk(self) -> None:
            crew_of(task_of(agent_of(Script()), "Hello."), memory=memory, name="crew").kickoff({})

    Talk(memory=memory).kickoff(inputs={"user_id": "ana", "session_id": "s"})
    assert whose(line, "ana", agent="Talk") == ["ana"]


def test_agent_of_the_client_replaces_the_name_of_the_crew(line: Line) -> None:
    memory = ThreefoldMemory(client_of(line, agent="mine"))
    crew_that(Script(), memory, name="crew").kickoff(inputs("Hello."))
    crew_that(Script(), memory, name="named").kickoff(inputs("Hello."))
    assert [whose(line, "ana", agent=agent) for agent in ("mine", "named")] == [["ana"]] * 2


@pytest.mark.filterwarnings("ignore:function callbacks:UserWarning")
@pytest.mark.parametrize("entry", ["kickoff", "akickoff"])
def test_callbacks_around_a_kickoff_use_its_identity(line: Line, entry: str) -> None:
    """The same holds for a kickoff inside another, and only while it lasts."""
    memory = memory_of(line)

    def note(given: Any) -> Any:
        memory.remember("The flag is red.")
        return given

    def noting() -> Any:
        return crew_that(
            replies(), memory, name="noting", before_kickoff_callbacks=[note], after_kickoff_callbacks=[note]
        )

    @tool("ask_others")
    def ask_others() -> str:
        """Ask another crew."""
        noting().kickoff(inputs("Hello.", "ben"))
        return "Asked."

    crew_of(task_of(agent_of(replies(ToolCall("ask_others", {})), tools=[ask_others])), memory=memory).kickoff(
        inputs("Hello.", "ana")
    )
    done = getattr(noting(), entry)(inputs("Hello.", "eva"))
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    memory.remember("The door is green.")
    assert [noted(line, user) for user in ("ana", "ben", "eva")] == [
        [],
        ["The flag is red."] * 2,
        ["The flag is red."] * 2,
    ]
    assert noted(line, "local", "local") == ["The door is green."]


def noted(line: Line, user: str, agent: str = "noting") -> list[str]:
    """Return the facts in a memory."""
    return [fact.text for fact in client_of(line, user, agent).iter_memories(kinds=["fact"])]


def test_flow_started_by_a_tool_may_have_another_user(line: Line) -> None:
    memory = memory_of(line)

    class Note(Flow[Any]):
        @start()
        def note(self) -> None:
            self.remember("The flag is red.")

    @tool("take_notes")
    def take_notes() -> str:
        """Take notes."""
        Note(memory=memory).kickoff()
        Note(memory=memory).kickoff(inputs={"user_id": "ben"})
        return "Taken."

    script = replies(ToolCall("take_notes", {}), ToolCall("save_to_memory", {"contents": ["The door is green."]}))
    crew_of(task_of(agent_of(script, tools=[take_notes])), memory=memory).kickoff(inputs("Hello."))
    assert [noted(line, user, "Note") for user in ("ana", "ben")] == [["The flag is red."]] * 2
    assert [noted(line, user, "support") for user in ("ana", "ben")] == [["The door is green."], []]


def test_resumed_flow_must_be_given_its_identity(line: Line, tmp_path: Path) -> None:
    """CrewAI does not expose the stored inputs, so the memory would be written for the user of the client."""
    memory, store = memory_of(line), SQLiteFlowPersistence(str(tmp_path / "flows.db"))

    class Later:
        def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
            raise HumanFeedbackPending(context=context)

    class Talk(Flow[Any]):
        @start()
        @human_feedback(message="Is it good?", provider=Later())
        def draft(self) -> str:
            return "A draft."

        @listen(draft)
        def go_on(self, _: Any) -> str:
            self.memory = memory
            crew_that(Script(), memory).kickoff({"text": "Hello."})
            return self.remember("The flag is red.").content

    def resume() -> str:
        flow = Talk(persistence=store, memory=memory)
        flow.kickoff(inputs={"user_id": "ana", "session_id": "s"})
        return Talk.from_pending(flow.flow_id, store, memory=memory).resume("Yes.")

    with pytest.raises(MemoryAborted, match="resume a flow within"):
        resume()
    with acting_as(user="ana", agent="support", session="s"):
        assert resume() == "The flag is red."
    assert whose(line, "ana", "local") == ["ana"]
    assert noted(line, "ana", "support") == ["The flag is red."]


@pytest.mark.parametrize("fails", [True, False])
def test_identity_ends_with_the_kickoff(line: Line, fails: bool) -> None:
    def reply(_: list[str]) -> Reply:
        if fails:
            raise ValueError("broken")
        return "Noted."

    memory = memory_of(line)
    try:
        crew_that(Script(reply), memory).kickoff(inputs("Hello.", "ana"))
    except ValueError:
        assert fails
    crew_that(Script(), memory).kickoff({"text": "Hello.", "session_id": "s"})
    memory.remember("The door is green.")
    assert whose(line, "ana", "local") == ["ana", "local"]
    assert [fact.text for fact in client_of(line, "local").iter_memories(kinds=["fact"])] == ["The door is green."]


def test_identity_ends_with_a_cancelled_kickoff(line: Line) -> None:
    memory = memory_of(line)

    async def run() -> None:
        reached = asyncio.Event()
        script = Script(lambda _: Stall(), stalled=reached.set)

        async def kickoff_and_go_on() -> None:
            try:
                await crew_that(script, memory).akickoff(inputs("Hello.", "ana"))
            except asyncio.CancelledError:  # as asyncio.timeout does
                await crew_that(Script(), memory).akickoff({"text": "Hello.", "session_id": "s"})

        running = asyncio.create_task(kickoff_and_go_on())
        await reached.wait()
        running.cancel()
        await running

    asyncio.run(run())
    assert whose(line, "ana", "local") == ["ana", "local"]
    assert len(stored(line, "ana", "s")) == 1


def test_identity_of_a_flow_ends_when_it_is_cancelled(line: Line) -> None:
    memory, reached = memory_of(line), asyncio.Event()

    class Talk(Flow[Any]):
        @start()
        async def say(self) -> None:
            if not reached.is_set():
                reached.set()
                await asyncio.Event().wait()
            self.remember("The door is green.")

    async def kickoff_and_go_on(flow: Any) -> None:
        try:
            await flow.kickoff_async({"user_id": "ana", "session_id": "s"})
        except asyncio.CancelledError:  # as asyncio.timeout does
            await flow.kickoff_async({"session_id": "s"})

    async def run() -> None:
        running = asyncio.create_task(kickoff_and_go_on(Talk(memory=memory)))
        await reached.wait()
        running.cancel()
        await running

    asyncio.run(run())
    assert [user for user in ("ana", "local") if list(client_of(line, user, "Talk").iter_memories())] == ["local"]


def test_tool_cannot_name_a_user(line: Line) -> None:
    call = ToolCall("save_to_memory", {"contents": ["The gate code is 4711."], "user_id": "ben", "scope": "/x"})
    crew_that(replies(call), memory_of(line)).kickoff(inputs("Hello."))
    assert list(client_of(line, "ben", "support").iter_memories()) == []
    [fact] = client_of(line, "ana", "support").iter_memories(kinds=["fact"])
    assert (fact.user, fact.session_id) == ("ana", "s")


@pytest.mark.parametrize("entry", ["kickoff", "akickoff"])
def test_tool_may_start_another_crew(line: Line, entry: str) -> None:
    """The other crew has the same user unless it names one, and the first crew continues afterwards."""
    memory, said = memory_of(line), Script()

    @tool("ask_others")
    def ask_others() -> str:
        """Ask another crew."""
        crew_of(task_of(agent_of(said), "Hello."), memory=memory, name="others").kickoff({})
        crew_of(task_of(agent_of(said), "Hello."), memory=memory, name="others").kickoff({"user_id": "ben"})
        return "Asked."

    script = replies(ToolCall("ask_others", {}), ToolCall("search_memory", {"queries": ["Hello"]}), "Done.")
    crew = crew_of(task_of(agent_of(script, tools=[ask_others]), "Ask."), memory=memory)
    done = getattr(crew, entry)(inputs(""))
    assert (asyncio.run(done) if asyncio.iscoroutine(done) else done).raw == "Done."
    assert spoken(line, "ana", "s") == [("user", None, "Ask."), ("assistant", "Helper", "Done.")]
    assert whose(line, "ana", "ben", agent="others") == ["ana", "ben"]


@pytest.mark.filterwarnings("ignore:function callbacks:UserWarning")
def test_callback_after_a_task_uses_its_identity(line: Line) -> None:
    memory = memory_of(line)

    def note(output: Any) -> None:
        memory.remember(f"They said {output.raw}")

    crew_of(task_of(agent_of(Script()), "Hello.", callback=note), memory=memory).kickoff(inputs(""))
    assert len(list(client_of(line, "ana", "support").iter_memories(kinds=["fact"]))) == 1


def test_single_tasks_are_not_nested(line: Line) -> None:
    memory = memory_of(line, user="ana", agent="support")
    for _ in range(3):
        task_of(agent_of(Script(), memory=memory), "Hello.").execute_sync()
    step = runs._TASK.get()  # pyright: ignore[reportPrivateUsage]
    assert step is not None
    assert step.run.outer is None


def test_agent_without_a_crew_may_search(line: Line) -> None:
    memory = memory_of(line, user="ana", agent="support")
    memory.remember("The flag is red.")
    script = replies(ToolCall("search_memory", {"queries": ["flag"]}))
    agent_of(script, memory=memory).kickoff("Which colour?")
    assert "The flag is red." in script.prompts[-1]


def test_memory_without_its_hooks_refuses(line: Line) -> None:
    """Otherwise all memories would be written for the user of the client."""
    from crewai.hooks import clear_all_hooks

    script = Script()
    crew = crew_that(script, memory_of(line))
    clear_all_hooks()
    try:
        with pytest.raises(MemoryAborted, match="hooks"):
            crew.kickoff(inputs("Hello."))
    finally:
        runs.install()
    assert script.prompts == []


def test_replay_has_the_identity_of_its_inputs(line: Line) -> None:
    crew = crew_that(Script(), memory_of(line))
    crew.kickoff(inputs("Hello.", "ana", "1"))
    crew.replay(str(crew.tasks[0].id), inputs("Hello.", "ben", "2"))
    assert whose(line, "ana", "ben", session="2") == ["ben"]


def test_replay_in_a_flow_has_the_identity_of_its_inputs(line: Line) -> None:
    memory = memory_of(line)
    crew = crew_that(Script(), memory)
    crew.kickoff(inputs("Hello.", "eva"))

    class Talk(Flow[Any]):
        @start()
        def talk(self) -> None:
            crew.replay(str(crew.tasks[0].id), inputs("Hello.", "ben", "2"))

    Talk(memory=memory).kickoff(inputs={"user_id": "ana", "session_id": "1"})
    assert whose(line, "ana", "ben", session="2") == ["ben"]


def test_task_in_a_tool_has_the_identity_of_the_kickoff(line: Line) -> None:
    memory = memory_of(line)

    @tool("ask_others")
    def ask_others() -> str:
        """Ask others."""
        return task_of(agent_of(Script(), memory=memory), "Hello.").execute_sync().raw

    crew_of(task_of(agent_of(replies(ToolCall("ask_others", {})), tools=[ask_others]), "Ask.")).kickoff(inputs(""))
    assert whose(line, "ana", "local") == ["ana"]


def test_errors_belong_to_threefold_and_crewai() -> None:
    from crewai.hooks import HookAborted

    assert issubclass(MemoryAborted, HookAborted)
    assert issubclass(MemoryAborted, ThreefoldError)
    assert crewai.Memory in ThreefoldMemory.__mro__
