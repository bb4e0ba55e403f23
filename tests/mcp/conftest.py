"""Fixtures of the MCP tests, which are async because its client is."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that the service uses."""
    return "asyncio"
