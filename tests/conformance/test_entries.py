"""Each turn is recorded once, however a run is started and however it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from conformance.adapter import Plugin, Setup, Way, Who
from conformance.conftest import Run, said, turns
from conformance.plugins import PLUGINS
from fixtures.line import Line

ANA = Who("ana", "s")
HELLO = "Hello, this is Ana."


def ways(kind: str) -> list[Any]:
    """Return each way of each plugin."""
    return [
        pytest.param(plugin, way, id=f"{plugin.module}-{name}")
        for plugin in PLUGINS
        for name, way in getattr(plugin, kind).items()
    ]


def test_plain_run_is_recorded_once(plugin: Plugin, line: Line, run: Run) -> None:
    assert run(plugin.agent(Setup(line)), HELLO, ANA) == "Noted."
    assert said(line.client("ana"), "s") == [HELLO, "Noted."]


@pytest.mark.parametrize(("plugin", "way"), ways("completing"))
def test_completed_run_is_recorded_once(plugin: Plugin, way: Way, line: Line) -> None:
    asyncio.run(drive(way, plugin.agent(Setup(line))))
    assert [text.strip() for text in said(line.client("ana"), "s")] == [HELLO, "Noted."]


@pytest.mark.parametrize(("plugin", "way"), ways("breaking"))
def test_run_that_does_not_complete_is_recorded_once(plugin: Plugin, way: Way, line: Line) -> None:
    asyncio.run(drive(way, plugin.agent(Setup(line))))
    found = turns(line.client("ana"), "s")
    assert Counter(turn.content for turn in found)[HELLO] == 1
    assert found[0].content == HELLO
    assert len({turn.id for turn in found}) == len(found)


async def drive(way: Way, agent: Any) -> None:
    await way(agent, HELLO, ANA)
