"""The interfaces of models (embedder, summarizer, extractor), the data that crosses them, and their errors.

ModelError              no usable answer: timeout, 429, 5xx, lost connection, malformed reply; retry later
├── BudgetSpent         the store's or the user's budget for models is used up; retry the next day
└── ModelRefused        the same call would always fail: bad request, bad key, policy; park the task

The message of a ModelError is stored with the task and shown by `status` and `doctor`, also after an erasure. It must
be the adapter's own text, with names from the configuration, codes and numbers. It must not contain words of a model or
of its server, which may quote what somebody said.
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
    """No usable answer; retry later. `retry_after` is the wait in seconds that the model's server asked for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelRefused(ModelError):
    """The same call would always fail: the task is parked until an operator fixes the cause."""


class BudgetSpent(ModelError):
    """The store's or the user's daily budget for models is used up; `retry_after` is the seconds to the next day."""


@dataclass(slots=True)
class Bill:
    """The tokens of one call: an estimate before it, the exact number after it."""

    tokens: int


class Meter(Protocol):
    """Charges the tokens of calls to the owner that they are made for."""

    def call(self, tokens: int) -> AbstractAsyncContextManager[Bill]:
        """Return a context for one call of about `tokens` tokens, whose bill the caller corrects after the call.

        Raises:
            BudgetSpent: On entry, if the budget does not allow the call.
        """
        ...


@dataclass(frozen=True, slots=True)
class DigestTurn:
    """One turn as a summarizer or an extractor reads it: its own words, without recalled memory."""

    seq: int
    speaker: str
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class DatedTurn(DigestTurn):
    """A turn with its time in the speaker's own time zone, from which "yesterday" is counted."""

    said_at: datetime


@dataclass(frozen=True, slots=True)
class ExtractionInput:
    """The turns to extract facts from, with the digest and the turns before them as context."""

    digest: str | None
    before: Sequence[DigestTurn]
    turns: Sequence[DatedTurn]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact proposed by a model. The caller checks that the turns that it cites support it."""

    text: str
    source_seqs: tuple[int, ...]
    attributed_to: Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a comparison. Its name is valid in this comparison only."""

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
    """How a new statement relates to a known one, given by its name.

    It does not say which of two statements that exclude each other is current: that is decided by their dates.
    """

    relation: Relation
    known: str | None = None


class Embedder(Protocol):
    """Computes the vectors of texts."""

    @property
    def name(self) -> str:
        """The name stored with each vector; it must change with the vectors, as only those of one name are compared."""
        ...

    @property
    def dimensions(self) -> int:
        """The length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Compute the vectors of texts.

        Returns:
            One row per text, in order, with L2 norm 1. Without texts an array of shape (0, dimensions).

        Raises:
            ModelError: A retry may help.
            ModelRefused: A retry cannot help.
        """
        ...

    async def aclose(self) -> None:
        """Close the embedder's connections."""
        ...


class Summarizer(Protocol):
    """Folds turns into a digest."""

    @property
    def name(self) -> str:
        """The name of the model, stored with each digest."""
        ...

    @property
    def prompt(self) -> str | None:
        """The version of its instructions, stored with each digest; None if it calls no model."""
        ...

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Fold turns into a digest.

        Args:
            prior: The digest so far; None for the first one.
            turns: The turns that follow it, oldest first.

        Returns:
            The text of the next digest.

        Raises:
            ModelError: A retry may help.
            ModelRefused: A retry cannot help.
        """
        ...


class Extractor(Protocol):
    """Extracts lasting facts from turns and compares them with known ones."""

    @property
    def name(self) -> str:
        """The name of the model and the version of its instructions, stored with each fact."""
        ...

    async def extract(self, source: ExtractionInput) -> list[Candidate]:
        """Return the facts that the turns state; an empty list if they state none.

        Raises:
            ModelError: The reply is unusable, or a retry may help for another reason.
            ModelRefused: A retry cannot help.
        """
        ...

    async def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return a verdict per comparison, in order, from one call of the model.

        Raises:
            ModelError: The reply is unusable, or a retry may help for another reason.
            ModelRefused: A retry cannot help.
        """
        ...
