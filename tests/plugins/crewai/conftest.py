"""A service in-process on either database, and crews on it that a script answers for."""

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
    """A service of the test's own."""
    with local_line(sqlite_url) as found:
        yield found


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def either(request: pytest.FixtureRequest) -> Iterator[Line]:
    """The same on each database."""
    with local_line(request.getfixturevalue(request.param)) as found:
        yield found


def client_of(line: Line, user: str | None = None, agent: str | None = None) -> MemoryClient:
    """A client that names no agent by itself, so that crews are known by their names."""
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
    """A crew of one with one task."""
    return crew_of(task_of(agent_of(script)), memory=memory, **options)


def replies(*texts: Reply) -> Script:
    """A model that says these, one after the other, and then takes note."""
    left = list(texts)
    return Script(lambda _: left.pop(0) if left else "Noted.")


def stored(line: Line, user: str, session: str, agent: str = "support") -> list[Turn]:
    """The turns of a session in the store."""
    return client_of(line, user, agent).turns(session, limit=1_000).turns


def spoken(line: Line, user: str, session: str, agent: str = "support") -> list[tuple[str, str | None, str]]:
    """Who said what in a session."""
    return [(turn.role, turn.name, turn.content) for turn in stored(line, user, session, agent)]


def inputs(text: str, user: str = "ana", session: str = "s") -> dict[str, str]:
    return {"text": text, "user_id": user, "session_id": session}


def strict() -> Policy:
    return Policy(failure_mode="strict")
