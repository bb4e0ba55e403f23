"""Tool calls and files in the log are replayed unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conformance.adapter import Plugin, Setup, Who
from conformance.conftest import Remote
from fixtures.line import Line


def test_tool_calls_and_files_are_replayed_unchanged(plugin: Plugin, place: Line | Remote) -> None:
    if plugin.replay is None:
        pytest.skip("this framework has no messages of its own")
    replay = plugin.replay

    async def both() -> tuple[Any, Any]:
        return await replay(Setup(place), Who("ana", "rich"))

    original, loaded = asyncio.run(both())
    assert loaded == original
