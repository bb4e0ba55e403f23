"""CrewAI in the conformance suite: a crew with memory, copied for each run, as CrewAI does for several inputs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from conformance.adapter import Plugin, Script, Setup, Stall, ToolCall, Who
from conformance.crewai_host import Flow, Model, crewai, start, tool
from threefold_crewai import ThreefoldMemory, acting_as


class Failure(Exception):
    """Raised by a test."""


@tool("broken")
def broken() -> str:
    """A tool that fails."""
    raise Failure("the tool is broken")


class Subject:
    """A crew; the inputs of each kickoff name user and session."""

    def __init__(self, setup: Setup) -> None:
        self.script = setup.script
        self.memory = ThreefoldMemory(setup.line.client(), policy=setup.policy)
        self.agent = helper(setup.script)
        self.crew = crew_of(self.agent, memory=self.memory)

    def run_sync(self, text: str, who: Who) -> str:
        return self.crew.copy().kickoff(inputs=of(text, who)).raw

    async def run(self, text: str, who: Who) -> str:
        return (await self.crew.copy().akickoff(inputs=of(text, who))).raw


def helper(script: Script, **options: Any) -> Any:
    return crewai.Agent(
        role="Helper", goal="Help.", backstory="You help.", llm=Model(script), tools=[broken], **options
    )


def crew_of(agent: Any, *, guardrail: Any = None, **options: Any) -> Any:
    task = crewai.Task(
        description="{text}", expected_output="An answer.", agent=agent, guardrail=guardrail, guardrail_max_retries=1
    )
    return crewai.Crew(agents=[agent], tasks=[task], **options)


def of(text: str, who: Who) -> dict[str, str]:
    return {"text": text, "user_id": who.user, "session_id": who.session}


async def kickoff_async(subject: Subject, text: str, who: Who) -> None:
    await subject.crew.kickoff_async(inputs=of(text, who))


async def for_each(subject: Subject, text: str, who: Who) -> None:
    await asyncio.to_thread(subject.crew.kickoff_for_each, [of(text, who)])


async def for_each_async(subject: Subject, text: str, who: Who) -> None:
    await subject.crew.kickoff_for_each_async([of(text, who)])


async def for_each_native(subject: Subject, text: str, who: Who) -> None:
    await subject.crew.akickoff_for_each([of(text, who)])


async def stream(subject: Subject, text: str, who: Who) -> None:
    subject.crew.stream = True
    async for _ in await subject.crew.akickoff(inputs=of(text, who)):
        pass


async def stream_sync(subject: Subject, text: str, who: Who) -> None:
    subject.crew.stream = True
    await asyncio.to_thread(lambda: list(subject.crew.kickoff(inputs=of(text, who))))


async def with_agents_memory(subject: Subject, text: str, who: Who) -> None:
    """Use the memory of the agent, which CrewAI would copy with the agent."""
    crew = crew_of(helper(subject.script, memory=subject.memory))
    await asyncio.to_thread(crew.kickoff_for_each, [of(text, who)])


async def in_flow(subject: Subject, text: str, who: Who) -> None:
    """Run the crew in a flow, whose user it has."""

    class Talk(Flow[Any]):
        @start()
        def talk(self) -> str:
            return subject.crew.copy().kickoff(inputs={"text": text}).raw

    flow: Any = Talk(memory=subject.memory, name="support")
    await flow.kickoff_async(inputs=of(text, who))


async def async_task(subject: Subject, text: str, who: Who) -> None:
    """Run the task in a separate thread."""
    crew = subject.crew.copy()
    crew.tasks[0].async_execution = True
    await crew.akickoff(inputs=of(text, who))


async def hierarchical(subject: Subject, text: str, who: Who) -> None:
    agent = helper(subject.script)
    crew = crew_of(agent, memory=subject.memory, process="hierarchical", manager_llm=Model(subject.script))
    await asyncio.to_thread(crew.kickoff, inputs=of(text, who))


async def agent_alone(subject: Subject, text: str, who: Who) -> None:
    agent = helper(subject.script, memory=subject.memory)
    with acting_as(user=who.user, session=who.session):
        await asyncio.to_thread(agent.kickoff, text)


async def task_alone(subject: Subject, text: str, who: Who) -> None:
    agent = helper(subject.script, memory=subject.memory)
    task = crewai.Task(description=text, expected_output="An answer.", agent=agent)
    with acting_as(user=who.user, session=who.session):
        await asyncio.to_thread(task.execute_sync)


async def cancel(subject: Subject, text: str, who: Who) -> None:
    reached = asyncio.Event()
    subject.script.reply = lambda _: Stall()
    subject.script.stalled = reached.set
    running = asyncio.create_task(subject.run(text, who))
    await reached.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def fail_in_model(subject: Subject, text: str, who: Who) -> None:
    def fail(_: list[str]) -> str:
        raise Failure("the model is broken")

    subject.script.reply = fail
    with suppress(Failure):
        await subject.run(text, who)


async def fail_in_tool(subject: Subject, text: str, who: Who) -> None:
    replies = [ToolCall("broken", {}), "It is broken."]
    subject.script.reply = lambda _: replies.pop(0)
    await subject.run(text, who)


async def fail_at_guardrail(subject: Subject, text: str, who: Who) -> None:
    def never(_: Any):
        return False, "not good enough"

    crew = crew_of(helper(subject.script), guardrail=never, memory=subject.memory)
    with suppress(Exception):
        await crew.akickoff(inputs=of(text, who))


async def leave_stream(subject: Subject, text: str, who: Who) -> None:
    subject.crew.stream = True
    async for _ in await subject.crew.akickoff(inputs=of(text, who)):
        break


PLUGIN = Plugin(
    module="threefold_crewai",
    framework="crewai",
    agent=Subject,
    save=lambda text: ToolCall("save_to_memory", {"contents": [text]}),
    completing={
        "kickoff_async": kickoff_async,
        "for_each": for_each,
        "for_each_async": for_each_async,
        "for_each_native": for_each_native,
        "stream": stream,
        "stream_sync": stream_sync,
        "with_agents_memory": with_agents_memory,
        "in_flow": in_flow,
        "async_task": async_task,
        "hierarchical": hierarchical,
        "agent_alone": agent_alone,
        "task_alone": task_alone,
    },
    breaking={
        "cancel": cancel,
        "fail_in_model": fail_in_model,
        "fail_in_tool": fail_in_tool,
        "fail_at_guardrail": fail_at_guardrail,
        "leave_stream": leave_stream,
    },
)
