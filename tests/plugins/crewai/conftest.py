"""Fixtures of the CrewAI tests: an in-process service on each database, and crews with a scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conformance.adapter import Reply, Script
from conformance.crewai_host import Model, crewai
from fixtures.line import Line, local_line
from threefold import MemoryClient, Policy
from threefold.contract import Turn
from threefold_crewai import ThreefoldMemory


@pytest.fixture
def line(sqlite_url: str) -> Iterator[Line]:
    """A link to a service of this test alone."""
    with local_line(sqlite_url) as found:
        yield found


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def either(request: pytest.FixtureRequest) -> Iterator[Line]:
    """A link to a service on each database."""
    with local_line(request.getfixturevalue(request.param)) as found:
        yield found


def client_of(line: Line, user: str | None = None, agent: str | None = None) -> MemoryClient:
    """Return a client without a default agent, so that crews are known by their names."""
    return line.client(user).acting_as(user=user, agent=agent)


def memory_of(line: Line, **options: Any) -> ThreefoldMemory:
    return ThreefoldMemory(client_of(line), **options)


def agent_of(script: Script, role: str = "Helper", **options: Any) -> Any:
    return crewai.Agent(role=role, goal="Help.", backstory="You help.", llm=Model(script), **options)


def task_of(agent: Any, description: str = "{text}", **options: Any) -> Any:
    return crewai.Task(description=description, expected_output="An answer.", agent=agent, **options)


def crew_of(*tasks: Any, memory: Any = None, name: str = "support", **options: Any) -> Any:
    agents = list({id(task.agent): task.agent for task in tasks}.values())
    return crewai.Crew(name=name, agents=agents, tasks=list(tasks), memory=memory, **options)


def crew_that(script: Script, memory: Any, **options: Any) -> Any:
    """Return a crew with one agent and one task."""
    return crew_of(task_of(agent_of(script)), memory=memory, **options)


def replies(*texts: Reply) -> Script:
    """Return a model with these replies in order, followed by "Noted."."""
    left = list(texts)
    return Script(lambda _: left.pop(0) if left else "Noted.")


def stored(line: Line, user: str, session: str, agent: str = "support") -> list[Turn]:
    """Return the stored turns of a session."""
    return client_of(line, user, agent).turns(session, limit=1_000).turns


def spoken(line: Line, user: str, session: str, agent: str = "support") -> list[tuple[str, str | None, str]]:
    """Return role, name and text of the turns of a session."""
    return [(turn.role, turn.name, turn.content) for turn in stored(line, user, session, agent)]


def inputs(text: str, user: str = "ana", session: str = "s") -> dict[str, str]:
    return {"text": text, "user_id": user, "session_id": session}


def strict() -> Policy:
    return Policy(failure_mode="strict")
