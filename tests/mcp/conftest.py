"""Tests of MCP are asynchronous, like its client."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that the service itself runs on."""
    return "asyncio"
