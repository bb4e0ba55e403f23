"""What a reader of the documentation has at hand."""

from __future__ import annotations

import pytest


@pytest.fixture
def reader_environment() -> dict[str, str]:
    """Environment variables that every example finds, such as the address of a running service."""
    return {}
