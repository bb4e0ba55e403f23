"""What every use case works with: one object, composed in `app.py`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from threefold_server.clock import now_micros
from threefold_server.models.ports import Embedder, Extractor, Summarizer
from threefold_server.rules.access import Principal
from threefold_server.settings import Settings
from threefold_server.storage.engine.database import Database
from threefold_server.telemetry import Metrics
from threefold_server.text.redaction import Redact, build_redactor


def ticks() -> int:
    """Microseconds on a clock that nobody sets: for durations in one process, such as rates and caches."""
    return time.monotonic_ns() // 1_000


def _nobody_to_wake() -> None:
    """Without workers in this process, those of other processes find the work by themselves."""


class Refusal(NamedTuple):
    """What was refused to whom; nobody, where the identity itself was."""

    caller: Principal | None
    operation: str
    code: str


@dataclass
class Service:
    """The open resources of one running service."""

    settings: Settings
    database: Database
    embedder: Embedder
    summarizer: Summarizer
    extractor: Extractor | None = None
    """Draws facts from turns; without one, facts are what somebody saves."""
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], int] = now_micros
    """The time of day, as stored. It may be set back: how long something takes is told by `ticks`."""
    ticks: Callable[[], int] = ticks
    wake: Callable[[], None] = _nobody_to_wake
    """Tells workers in this process that something is due."""
    reads: Counter[tuple[UUID, UUID]] = field(default_factory=Counter[tuple[UUID, UUID]])
    """(owner, fact) -> recalls not yet written down; counting must not slow a read."""
    key_uses: dict[str, int] = field(default_factory=dict[str, int])
    """Key id -> its last use, not yet written down."""
    refusals: Counter[Refusal] = field(default_factory=Counter[Refusal])
    """Refusals not yet written into the audit: a flood of them costs an entry every few seconds."""
    redact: Redact = field(init=False)
    """Takes secrets out of a text, as the store's policy says."""

    def __post_init__(self) -> None:
        self.redact = build_redactor(self.settings.redact)
