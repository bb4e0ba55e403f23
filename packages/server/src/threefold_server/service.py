"""The open resources that every operation gets, in one object."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from threefold_server.clock import now_micros
from threefold_server.models.ports import Embedder, Extractor, Summarizer
from threefold_server.rules.access import Principal
from threefold_server.settings import Settings
from threefold_server.storage.engine.database import Database
from threefold_server.storage.memories.owner_index import IndexCache
from threefold_server.telemetry import Metrics
from threefold_server.text.redaction import Redact, redactor_for
from threefold_server.text.remembered import Recent, Remembered
from threefold_server.text.tokens import count_tokens

QUERY_VECTORS = 1_000
"""Most query vectors in each of two generations. With 384 dimensions, both take 3 MB."""


def ticks() -> int:
    """Return microseconds of a monotonic clock, for durations within one process."""
    return time.monotonic_ns() // 1_000


def _no_workers() -> None:
    """Do nothing: without workers in this process, those of other processes find the work by polling."""


class Refusal(NamedTuple):
    """A refused operation. `caller` is None if the identity itself was refused."""

    caller: Principal | None
    operation: str
    code: str


@dataclass
class Background:
    """What a service knows of the process that does its background work."""

    problem: str | None = None
    """Why there is no such process; None while it starts for the first time and while it works."""
    metrics: bytes = b""
    """Its metrics in the Prometheus text format, as it sent them last."""


@dataclass
class Service:
    """The resources of one running service, opened by `app.open_service`."""

    settings: Settings
    database: Database
    embedder: Embedder
    summarizer: Summarizer
    extractor: Extractor | None = None
    """Extracts facts from turns. None: callers save facts, and no model is asked."""
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], int] = now_micros
    """The system time that is stored, in microseconds. It may jump, so durations use `ticks`."""
    ticks: Callable[[], int] = ticks
    wake: Callable[[], None] = _no_workers
    """Tells the workers of this process that a task is due."""
    background: Background | None = None
    """The process that does the background work; None if this process does it, or nobody."""
    reads: Counter[tuple[UUID, UUID]] = field(default_factory=Counter[tuple[UUID, UUID]])
    """(owner, fact) -> recalls not yet stored. They are stored later, so that counting does not slow a read."""
    key_uses: dict[str, int] = field(default_factory=dict[str, int])
    """Key id -> time of its last use, not yet stored."""
    refusals: Counter[Refusal] = field(default_factory=Counter[Refusal])
    """Refusals not yet in the audit. They are stored as counts, so that a flood adds an entry every few seconds."""
    count_tokens: Remembered[int] = field(default_factory=lambda: Remembered(count_tokens))
    """Counts the tokens of a line, and remembers the count: most lines of a block were in the previous block."""
    query_vectors: Recent[NDArray[np.float32]] = field(default_factory=lambda: Recent(QUERY_VECTORS))
    """The vectors of recent queries, by a hash of owner, embedder and query. The owner is part of the hash, so that the
    time of an answer does not tell one user what others asked."""
    index: IndexCache = field(init=False)
    """The search indexes of the owners that were served last."""
    redact: Redact = field(init=False)
    """Removes secrets from a text, as the setting `redact` says."""

    _started: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work after the request; `aclose` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._started.add(task)
        task.add_done_callback(self._started.discard)

    async def aclose(self) -> None:
        """Cancel the work that was started, and wait for its end."""
        for task in self._started:
            task.cancel()
        await asyncio.gather(*self._started, return_exceptions=True)

    def __post_init__(self) -> None:
        self.index = IndexCache(self.settings.index_cache_mb * 2**20, self.metrics)
        self.redact = redactor_for(self.settings.redact)
