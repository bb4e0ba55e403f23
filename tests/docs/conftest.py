"""What a reader of the documentation has at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.served import served


@pytest.fixture
def reader_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables that every example finds: the address of a service that is running."""
    data: Path = tmp_path_factory.mktemp("service")
    with served("--data", str(data), "--allow-user-level") as url:
        yield {"THREEFOLD_URL": url}
