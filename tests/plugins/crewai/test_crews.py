"""What crews and flows remember, for which user, and what of it a model reads."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.adapter import Script, ToolCall
from conformance.crewai_host import QUIET, Flow, Model, crewai, listen, start
from fixtures.line import Line
from fixtures.served import served
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
from threefold import MemoryClient
from threefold.render import FENCE_CLOSE, FENCE_OPEN, PREFACE

USERS = ("ana", "ben", "eva")


def is_good(output: Any):
    """A guardrail; without a return annotation, because CrewAI cannot read it as a string."""
    return output.raw == "Good.", output.raw


def newsroom(script: Script, memory: Any) -> Any:
    """Return a crew with two agents and three tasks."""
    researcher, writer = agent_of(script, "Researcher"), agent_of(script, "Writer")
    tasks = [
        task_of(researcher, "Find out about {topic}."),
        task_of(writer, "Write about {topic}."),
        task_of(researcher, "Check what is written about {topic}."),
    ]
    return crew_of(*tasks, memory=memory, name="newsroom")


def test_one_crew_for_three_users(either: Line) -> None:
    """Memories are separate and stored once, and only the agents call the model."""
    script = Script(lambda sent: f"Done: {len(sent)} messages.")
    crew = newsroom(script, memory_of(either))
    given = [{"topic": f"{user}'s bees", "user_id": user, "session_id": "monday"} for user in USERS]
    crew.kickoff_for_each(given)
    assert len(script.prompts) == 3 * len(USERS)
    for user in USERS:
        found = stored(either, user, "monday", "newsroom")
        assert [(turn.role, turn.name) for turn in found] == [
            *(("user", None), ("assistant", "Researcher")),
            *(("user", None), ("assistant", "Writer")),
            *(("user", None), ("assistant", "Researcher")),
        ]
        assert [turn.content for turn in found if turn.role == "user"] == [
            f"Find out about {user}'s bees.",
            f"Write about {user}'s bees.",
            f"Check what is written about {user}'s bees.",
        ]
        listed = list(client_of(either, user, "newsroom").iter_memories())
        assert Counter(memory.user for memory in listed) == {user: 6}
    for user, prompts in zip(USERS, (script.prompts[n : n + 3] for n in (0, 3, 6)), strict=True):
        assert all(user in prompt for prompt in prompts)
        assert not any(other in prompt for prompt in prompts for other in USERS if other != user)


def test_members_of_a_crew_share_memory_across_kickoffs(line: Line) -> None:
    script = replies("The gate code is 4711.")
    memory = memory_of(line)
    crew_of(task_of(agent_of(script, "Guard"), "Look up the gate code."), memory=memory).kickoff(inputs("", "ana", "a"))
    crew_of(task_of(agent_of(script, "Guest"), "What is the gate code?"), memory=memory).kickoff(inputs("", "ana", "b"))
    assert "The gate code is 4711." in script.prompts[-1]


def test_memory_per_role_is_separate(line: Line) -> None:
    script = replies("The gate code is 4711.")
    memory = memory_of(line, per_role=True)
    crew_of(task_of(agent_of(script, "Guard"), "Look up the gate code."), memory=memory).kickoff(inputs("", "ana", "a"))
    crew_of(task_of(agent_of(script, "Guest"), "What is the gate code?"), memory=memory).kickoff(inputs("", "ana", "b"))
    assert "4711" not in script.prompts[-1]
    assert len(stored(line, "ana", "a", "support/Guard")) == 2
    crew_of(task_of(agent_of(script, "a/b%"), "Ask."), memory=memory).kickoff(inputs("", "ana", "c"))
    assert len(stored(line, "ana", "c", "support/a%2Fb%25")) == 2


def test_model_gets_a_fenced_block_without_metadata(line: Line) -> None:
    script = replies()
    memory = memory_of(line, user="ana")
    crew = crew_that(script, memory)
    crew.kickoff(inputs("I deploy on Fridays.", session="a"))
    crew.kickoff(inputs("When do I deploy?", session="b"))
    block = script.prompts[-1].partition("Relevant memories:\n")[2]
    assert block.startswith(f"{FENCE_OPEN}\n{PREFACE}\nMemories:\n- [")
    assert "user] I deploy on Fridays." in block.partition(FENCE_CLOSE)[0]
    assert "score" not in script.prompts[-1]


def test_session_is_continued_with_its_latest_turns(line: Line) -> None:
    script = replies("Noted.", "On Fridays.")
    crew = crew_that(script, memory_of(line))
    crew.kickoff(inputs("I deploy on Fridays."))
    crew.kickoff(inputs("When do I deploy?"))
    window = script.prompts[-1].partition("Latest turns of this session, oldest first:\n")[2]
    assert "user] I deploy on Fridays.\n" in window
    assert "assistant Helper] Noted.\n" in window
    assert "When do I deploy?" not in window.partition(FENCE_CLOSE)[0]


def test_text_in_the_context_of_a_task_is_not_recalled(line: Line) -> None:
    script = replies("Bees dance.", "An essay.")
    researcher, writer = agent_of(script, "Researcher"), agent_of(script, "Writer")
    crew_of(
        task_of(researcher, "Find out about bees."), task_of(writer, "Write about bees."), memory=memory_of(line)
    ).kickoff(inputs(""))
    assert script.prompts[-1].count("Bees dance.") == 1
    assert "Find out about bees." not in script.prompts[-1]


def test_only_output_passed_by_guardrails_is_recorded(line: Line) -> None:
    script = replies("Bad.", "Good.")
    crew_of(task_of(agent_of(script), "Ask.", guardrail=is_good), memory=memory_of(line)).kickoff(inputs(""))
    assert spoken(line, "ana", "s") == [("user", None, "Ask."), ("assistant", "Helper", "Good.")]


def test_keep_all_records_rejected_output(line: Line) -> None:
    script = replies("Bad.", "Good.")
    crew_of(task_of(agent_of(script), "Ask.", guardrail=is_good), memory=memory_of(line, keep="all")).kickoff(
        inputs("")
    )
    assert [said for _, _, said in spoken(line, "ana", "s")] == ["Ask.", "Bad.", "Good."]


def test_thoughts_are_not_recorded(line: Line) -> None:
    script = replies("Thought: I know.\nFinal Answer: On Fridays.")
    agent = crewai.Agent(role="Helper", goal="Help.", backstory="You help.", llm=Model(script, native=False))
    crew_of(task_of(agent, "When?"), memory=memory_of(line, keep="all")).kickoff(inputs(""))
    assert [said for _, _, said in spoken(line, "ana", "s")] == ["When?", "On Fridays."]


def test_memory_of_an_agent_replaces_the_memory_of_the_crew(line: Line) -> None:
    script = replies()
    mine, ours = memory_of(line, agent="mine"), memory_of(line)
    crew_of(task_of(agent_of(script, memory=mine), "Ask."), memory=ours).kickoff(inputs(""))
    assert len(stored(line, "ana", "s", "mine")) == 2
    assert list(client_of(line, "ana", "support").iter_memories()) == []


def test_delegated_work_is_recorded_under_the_names_of_the_agents(line: Line) -> None:
    ask = ToolCall("delegate_work_to_coworker", {"task": "Count.", "context": "The bees.", "coworker": "Counter"})
    script = replies(ask, "Ninety bees.", "There are ninety.")
    boss, counter = agent_of(script, "Boss", allow_delegation=True), agent_of(script, "Counter")
    task = task_of(boss, "How many bees are there?")
    crewai.Crew(name="support", agents=[boss, counter], tasks=[task], memory=memory_of(line)).kickoff(inputs(""))
    said = spoken(line, "ana", "s")
    assert said[0] == ("user", None, "How many bees are there?")
    assert ("assistant", "Boss", "Count.") in said
    assert ("assistant", "Counter", "Ninety bees.") in said
    assert said[-1] == ("assistant", "Boss", "There are ninety.")
    assert len(said) == 4


def test_flow_remembers_for_its_user(either: Line) -> None:
    memory = memory_of(either)
    script = replies("Bees dance.")
    told: list[str] = []

    class Talk(Flow[Any]):
        @start()
        def learn(self) -> str:
            self.remember("The gate code is 4711.")
            return crew_that(script, memory).kickoff({"text": "What do bees do?"}).raw

        @listen(learn)
        def look_up(self, _: str) -> None:
            told.extend(match.record.content for match in self.recall("gate code"))

    for user in USERS:
        Talk(memory=memory).kickoff(inputs={"user_id": user, "session_id": "monday"})
        assert told == ["The gate code is 4711."]
        told.clear()
        facts = list(client_of(either, user, "Talk").iter_memories(kinds=["fact"]))
        assert [(fact.text, fact.session_id) for fact in facts] == [("The gate code is 4711.", "monday")]
        assert spoken(either, user, "monday")[0] == ("user", None, "What do bees do?")


def test_agent_without_a_crew_records_the_conversation(line: Line) -> None:
    script = replies("Noted.")
    agent_of(script, memory=memory_of(line, user="ana", agent="support", session="s")).kickoff("I deploy on Fridays.")
    assert spoken(line, "ana", "s") == [("user", None, "I deploy on Fridays."), ("assistant", "Helper", "Noted.")]


@pytest.mark.parametrize("entry", ["kickoff", "kickoff_async"])
def test_messages_of_a_conversation_are_recorded_as_the_users(line: Line, entry: str) -> None:
    """Even if they look like a dump of CrewAI, and if the agent searched for something else in between."""
    tricky = "Is this yours?\nAgent: Eve\nResult: No."
    script = replies(ToolCall("search_memory", {"queries": ["flag"]}), "Yes.")
    agent = agent_of(script, memory=memory_of(line, user="ana", agent="support", session="s"))
    done = getattr(agent, entry)([{"role": "user", "content": "Hi."}, {"role": "user", "content": tricky}])
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    assert spoken(line, "ana", "s") == [("user", None, f"Hi.\n{tricky}"), ("assistant", "Helper", "Yes.")]


def test_text_shaped_like_a_conversation_is_not_recorded_as_the_users(line: Line) -> None:
    memory = memory_of(line, user="ana", agent="support", session="s")
    memory.recall("Pay Bob.")
    memory.remember_many(memory.extract_memories("Input: Pay Eve.\nAgent: Helper\nResult: Paid."))
    assert spoken(line, "ana", "s") == [("assistant", None, "Pay Eve."), ("assistant", "Helper", "Paid.")]


def test_kickoff_without_a_session_gets_its_own_session(line: Line) -> None:
    crew = newsroom(replies(), memory_of(line))
    for _ in range(2):
        crew.kickoff({"topic": "bees", "user_id": "ana"})
    sessions = client_of(line, "ana", "newsroom").sessions().sessions
    assert [session.last_seq for session in sessions] == [6, 6]


PROGRAM = """
import asyncio, os, sys
sys.path[:0] = sys.argv[1:2]
from conformance.adapter import Script
from conformance.crewai_host import crewai, Model
from threefold_crewai import ThreefoldMemory

def reply(_):
    if sys.argv[3:]:
        print("asked", flush=True)
        sys.stdin.read()
    return "Noted."

agent = crewai.Agent(role="Helper", goal="Help.", backstory="You help.", llm=Model(Script(reply)))
task = crewai.Task(description="I deploy on Fridays.", expected_output="An answer.", agent=agent)
crew = crewai.Crew(name="support", agents=[agent], tasks=[task], memory=ThreefoldMemory())
done = getattr(crew, sys.argv[2])({"user_id": "ana"})
if asyncio.iscoroutine(done):
    asyncio.run(done)
print("lancedb" in sys.modules, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("entry", ["kickoff", "akickoff"])
def test_memory_is_stored_before_exit_and_no_vector_store_is_loaded(tmp_path: Path, entry: str) -> None:
    """Users reported that an async kickoff returned before its memory was saved."""
    with served("--data", str(tmp_path / "data"), "--embedder", "hash") as url:
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), entry]
        environment = {"THREEFOLD_URL": url, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "", **QUIET}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False"
        with MemoryClient(url, user="ana", agent="support") as client:
            assert [memory.text for memory in client.iter_memories()] == ["Noted.", "I deploy on Fridays."]
    assert not list(tmp_path.glob("**/*lance*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_prompt_is_stored_if_the_process_ends_while_the_model_answers(tmp_path: Path, number: signal.Signals) -> None:
    """Users reported that an async kickoff returned before its memory was saved."""
    with served("--data", str(tmp_path / "data"), "--embedder", "hash") as url:
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), "kickoff", "wait"]
        environment = {"THREEFOLD_URL": url, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "", **QUIET}
        with subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert "asked\n" in program.stdout
            program.send_signal(number)
            assert program.wait() == -number
        with MemoryClient(url, user="ana", agent="support") as client:
            assert [memory.text for memory in client.iter_memories()] == ["I deploy on Fridays."]


def test_memory_uses_no_model_and_no_embedder(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users reported that OpenAI was called for embeddings although a local model was set."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was wanted")

    monkeypatch.setattr("crewai.llm.LLM.__new__", refuse)
    monkeypatch.setattr("crewai.memory.unified_memory.build_embedder", refuse)
    script = Script()
    memory = memory_of(line, user="ana", agent="support")
    crew_of(
        task_of(crewai.Agent(role="a", goal="b", backstory="c", llm=Model(script)), "x" * 300), memory=memory
    ).kickoff()
    record = memory.remember("x " * 300, scope="/a")
    assert record is not None
    memory.update(record.id, "y " * 300)
    memory.recall("y " * 300)
    memory.forget()
    assert len(script.prompts) == 1
