"""What the service asks of models: three ports, the data that crosses them, and how they fail.

ModelError              no usable answer now: timeout, 429, 5xx, lost connection, garbled reply; try again later
├── BudgetSpent         what the store or the user may spend on models is spent; not before the next day
└── ModelRefused        the same call would fail for ever: bad request, bad key, policy; park the work

The message of a ModelError is stored with the task and shown by `status` and `doctor`, also after an erasure. It is the
adapter's own text with names of the configuration, codes and numbers, never the words of a model or of its server,
which may quote what somebody said.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from threefold.contract.common import Role
from threefold_server.rules.statements import Relation

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
class SaidTurn(DigestTurn):
    """A turn with the moment it was said, in the speaker's own time zone: what "yesterday" is counted from."""

    said: datetime


@dataclass(frozen=True, slots=True)
class Talk:
    """What an extractor reads: the turns to draw facts from, and what helps to understand them."""

    digest: str | None
    before: Sequence[DigestTurn]
    turns: Sequence[SaidTurn]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact proposed by a model; the caller checks that it rests on turns it sent."""

    text: str
    source_seqs: tuple[int, ...]
    attributed_to: Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a comparison, by a name that holds for this comparison only."""

    name: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new statement and the known ones that it may repeat or contradict."""

    new: Statement
    known: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a new statement relates to a known one, by name; which of two that exclude each other holds is decided by
    their dates, not here."""

    relation: Relation
    known: str | None = None


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
    """Turns to facts that stay true."""

    @property
    def name(self) -> str:
        """The model and the version of its instructions, stored with each fact."""
        ...

    async def extract(self, talk: Talk) -> list[Candidate]:
        """Return the facts that the turns state. A reply that cannot be used is a `ModelError`, never an empty list."""
        ...

    async def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return a verdict per comparison, in order; all of them take one call."""
        ...
