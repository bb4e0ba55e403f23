"""Outages and refusals in a crew: soft continues, strict ends the task with the error of the service."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.adapter import Script, ToolCall
from conformance.crewai_host import Flow, start
from fixtures.fake_service import Clock
from fixtures.line import Line
from plugins.crewai.conftest import client_of, crew_that, inputs, memory_of, replies, spoken, strict
from threefold import CircuitBreaker, Forbidden, Policy, Unreachable
from threefold.tools.answers import UNAVAILABLE
from threefold_crewai import MemoryAborted, acting_as


def test_outage_is_not_tried_again_after_two_failures(line: Line) -> None:
    clock = Clock()
    policy = Policy(breaker=CircuitBreaker(clock=clock))
    crew = crew_that(Script(), memory_of(line, policy=policy))
    line.is_cut = True
    crew.kickoff(inputs("Day 0."))
    tried = len(line.asked)
    for day in range(1, 20):
        crew.kickoff(inputs(f"Day {day}."))
    assert len(line.asked) == tried
    assert policy.stats.spooled >= 40
    line.is_cut = False
    clock.now += 30
    crew.kickoff(inputs("Day 20."))
    assert [said for role, _, said in spoken(line, "ana", "s") if role == "user"] == [f"Day {n}." for n in range(21)]
    assert policy.stats.dropped == 0


def test_waiting_turns_are_sent_at_the_end_of_a_kickoff(line: Line) -> None:
    """Also by a kickoff of another user, each turn under its own identity."""
    clock = Clock()
    crew = crew_that(Script(), memory_of(line, policy=Policy(breaker=CircuitBreaker(clock=clock))))
    line.is_cut = True
    crew.kickoff(inputs("Hello."))
    line.is_cut = False
    clock.now += 30
    crew.kickoff(inputs("Good morning.", "ben"))
    assert len(spoken(line, "ana", "s")) == 2
    assert len(spoken(line, "ben", "s")) == 2


def test_waiting_turns_are_sent_on_drain_writes(line: Line) -> None:
    clock = Clock()
    memory = memory_of(line, policy=Policy(breaker=CircuitBreaker(clock=clock)))
    line.is_cut = True
    crew_that(Script(), memory).kickoff(inputs("Hello."))
    line.is_cut = False
    clock.now += 30
    memory.drain_writes()
    assert len(spoken(line, "ana", "s")) == 2


def test_searching_model_is_told_about_the_outage(line: Line) -> None:
    script = replies()

    def search(sent: list[str]) -> Any:
        line.is_cut = True
        return "Noted." if UNAVAILABLE in sent[-1] else ToolCall("search_memory", {"queries": ["flag"]})

    script.reply = search
    memory = memory_of(line)
    assert crew_that(script, memory).kickoff(inputs("How is the flag?")).raw == "Noted."


def test_flow_continues_without_recalled_memory(line: Line) -> None:
    memory = memory_of(line, user="ana")

    class Talk(Flow[Any]):
        @start()
        def talk(self) -> int:
            return len(self.recall("flag"))

    line.is_cut = True
    flow: Any = Talk(memory=memory)
    assert flow.kickoff() == 0
    assert memory.stats.outages > 0


def test_strict_ends_the_kickoff_before_the_model_is_called(line: Line) -> None:
    script = Script()
    crew = crew_that(script, memory_of(line, policy=strict()))
    line.is_cut = True
    with pytest.raises(MemoryAborted) as raised:
        crew.kickoff(inputs("Hello."))
    assert isinstance(raised.value.__cause__, Unreachable)
    assert str(raised.value) == str(raised.value.__cause__)
    assert script.prompts == []


@pytest.mark.parametrize("view", [False, True])
def test_strict_ends_the_kickoff_if_nothing_can_be_recalled(line: Line, view: bool) -> None:
    """The same holds for a read-only memory, and a refusal is the cause of the error."""
    for options, cause in (({"read_only": True}, Unreachable), ({"level": "store"}, Forbidden)):
        script, memory = Script(), memory_of(line, policy=strict(), **options)
        line.is_cut = cause is Unreachable
        with pytest.raises(MemoryAborted) as raised:
            crew_that(script, memory.scope("/billing") if view else memory).kickoff(inputs("Hello."))
        assert isinstance(raised.value.__cause__, cause)
        assert script.prompts == []


def test_strict_ends_the_kickoff_if_an_answer_cannot_be_stored(line: Line) -> None:
    def cut(_: list[str]) -> str:
        line.is_cut = True
        return "Noted."

    policy = strict()
    with pytest.raises(MemoryAborted):
        crew_that(Script(cut), memory_of(line, policy=policy)).kickoff(inputs("Hello."))
    line.is_cut = False
    policy.breaker.succeeded()
    assert [said for _, _, said in spoken(line, "ana", "s")] == ["Hello."]


@pytest.mark.parametrize("contents", [["The flag is red."], ["The flag is red.", "The door is green."]])
def test_strict_ends_the_kickoff_if_a_model_cannot_save(line: Line, contents: list[str]) -> None:
    def save(_: list[str]) -> Any:
        if line.is_cut:
            line.is_cut = False
            return "Saved."
        line.is_cut = True
        return ToolCall("save_to_memory", {"contents": contents})

    crew = crew_that(Script(save), memory_of(line, policy=strict()))
    with pytest.raises(MemoryAborted):
        crew.kickoff(inputs("Save it."))


@pytest.mark.parametrize("mode", ["soft", "strict"])
def test_invalid_tool_call_does_not_end_the_kickoff(line: Line, mode: Any) -> None:
    script = replies(ToolCall("save_to_memory", {"contents": [" "]}))
    output = crew_that(script, memory_of(line, failure_mode=mode)).kickoff(inputs("Save it."))
    assert output.raw == "Noted."
    assert "must not be blank" in script.prompts[-1]


def test_soft_continues_after_a_refusal_and_counts_it(line: Line) -> None:
    memory = memory_of(line, level="store")  # allowed only for an administrator
    assert crew_that(Script(), memory).kickoff(inputs("Hello.")).raw == "Noted."
    assert memory.stats.refusals == 1
    assert len(spoken(line, "ana", "s")) == 2


def test_store_may_require_strict(line: Line) -> None:
    policy = Policy()
    client = client_of(line)
    policy.remember_store(
        client.origin, client_of(line, "ana").whoami().store.model_copy(update={"failure_mode": "strict"})
    )
    line.is_cut = True
    with pytest.raises(MemoryAborted):
        crew_that(Script(), memory_of(line, policy=policy)).kickoff(inputs("Hello."))


def test_methods_called_by_user_code_raise(line: Line) -> None:
    memory = memory_of(line)
    line.is_cut = True
    with acting_as(user="ana", agent="support"):
        for call in (memory.forget, memory.reset, memory.tree, lambda: memory.remember("The flag is red.")):
            with pytest.raises(Unreachable):
                call()
        assert memory.recall("flag") == []
