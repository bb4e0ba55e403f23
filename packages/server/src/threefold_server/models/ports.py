"""What the service asks of models: three ports, the data that crosses them, and how they fail.

ModelError              no usable answer now: timeout, 429, 5xx, lost connection, garbled reply; try again later
├── BudgetSpent         what the store or the user may spend on models is spent; not before the next day
└── ModelRefused        the same call would fail for ever: bad request, bad key, policy; park the work
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from threefold.contract.common import Origin, Role

Vectors = NDArray[np.float32]


class ModelError(Exception):
    """No usable answer now; `retry_after` is the wait in seconds that the model's server asked for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelRefused(ModelError):
    """The same call would fail for ever: park the work and tell the operator, do not retry."""


class BudgetSpent(ModelError):
    """The store or the user has spent what models may cost in a day; `retry_after` is the wait for the next."""


@dataclass(slots=True)
class Bill:
    """The tokens of one call: guessed before it, known after it."""

    tokens: int


class Meter(Protocol):
    """Charges calls to whom they are made for."""

    def call(self, tokens: int) -> AbstractAsyncContextManager[Bill]:
        """Around one call of about so many tokens; `BudgetSpent` where it must not be made."""
        ...


@dataclass(frozen=True, slots=True)
class DigestTurn:
    """One turn as a summarizer or an extractor reads it: only what was really said, without recalled memory."""

    seq: int
    speaker: str
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact proposed by a model; the caller checks that its sources are among the turns it sent."""

    text: str
    source_seqs: tuple[int, ...]
    origin: Origin


class Embedder(Protocol):
    """Texts to vectors."""

    @property
    def name(self) -> str:
        """The stamp stored beside each vector; vectors of two names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """The length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row of length 1 (L2) per text, in order; no texts give an array of shape (0, dimensions)."""
        ...

    async def aclose(self) -> None:
        """Release what the embedder holds."""
        ...


class Summarizer(Protocol):
    """Turns to a digest."""

    @property
    def name(self) -> str:
        """The model, stored with each digest."""
        ...

    @property
    def prompt(self) -> str | None:
        """The version of its instructions, stored as well; None where no model is asked."""
        ...

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the digest that follows `prior` (None for the first) once `turns` are folded in."""
        ...


class Extractor(Protocol):
    """Turns to facts."""

    @property
    def name(self) -> str:
        """The model and the version of its instructions."""
        ...

    async def extract(self, prior: str | None, turns: Sequence[DigestTurn]) -> list[Candidate]:
        """Return the facts that `turns` state; `prior` is the digest of what was said before."""
        ...

    async def aclose(self) -> None:
        """Release what the extractor holds."""
        ...
