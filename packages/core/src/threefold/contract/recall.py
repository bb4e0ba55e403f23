"""Recall: the three tiers for a query, and the block a model reads."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from threefold.contract.common import MAX_IDS_PER_CALL, Id, Level, Query, Request, Response, ScoreTest, Tier, Timestamp
from threefold.contract.facts import Memory
from threefold.contract.turns import Turn

ALL_TIERS: tuple[Tier, ...] = ("short_term", "medium_term", "long_term")


class RecallRequest(Request):
    """`POST /v1/recall`: one call for everything that matters now."""

    query: Query
    session_id: Id | None = Field(default=None, description="Window and digest are this session's.")
    level: Level | None = Field(
        default=None, description="How far to read; the lower of `agent` and the ceiling by default."
    )
    include: list[Tier] = Field(default_factory=lambda: list(ALL_TIERS))
    top_k: int | None = Field(default=None, ge=0, le=1_000, description="Memories at most; the store's default is 10.")
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least cosine or lexical coverage, whichever is larger; never the fused score.",
    )
    min_score_of: ScoreTest = Field(
        default="either",
        description="`cosine`: `min_score` tests it alone, and words only where there is no vector to compare.",
    )
    token_budget: int | None = Field(default=None, ge=0, le=1_000_000)
    exclude_ids: Annotated[list[Id], Field(max_length=MAX_IDS_PER_CALL)] = Field(default_factory=list[str])
    min_trust: float | None = Field(default=None, ge=0, le=1)
    as_of: Timestamp | None = Field(
        default=None,
        description="What was true and had been said at this moment, by event time. Window and digest are of the "
        "present and left out.",
    )


class ScoreParts(Response):
    """Where a score comes from: `cosine` and `coverage` are absolute (0 to 1), the rest relative to this query."""

    cosine: float | None = Field(default=None, description="Similarity of meaning; null while the vector is pending.")
    coverage: float = Field(
        default=0.0, description="Share of the query's words, weighted by rarity, that the item has."
    )
    turn: float = 0.0
    window: float = 0.0
    session: float = 0.0
    speaker: float = 0.0


class RecalledMemory(Memory):
    """A memory with the score that brought it."""

    score: float
    score_parts: ScoreParts


class DigestView(Response):
    """The rolling narrative of a session's older turns, `from_seq` to `upto_seq`. It is lossy."""

    version: int
    text: str
    from_seq: int
    upto_seq: int


class SeqRange(Response):
    """Turns that neither the digest nor the window shows; read them at `/v1/sessions/{id}/turns`."""

    from_seq: int
    upto_seq: int


class Dropped(Response):
    """Something that did not fit the token budget."""

    tier: Tier
    id: str
    tokens: int


class TokenUse(Response):
    """Tokens of the block, counted on the rendered text."""

    budget: int
    used: int
    by_tier: dict[str, int] = Field(default_factory=dict)


class RecallResponse(Response):
    """The tiers, and one block of at most `tokens.budget` tokens. A tier that failed is named in `degraded`."""

    window: list[Turn] = Field(default_factory=list[Turn])
    digest: DigestView | None = None
    gap: SeqRange | None = None
    facts: list[RecalledMemory] = Field(default_factory=list[RecalledMemory])
    warnings: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    block: str = ""
    tokens: TokenUse = Field(default_factory=lambda: TokenUse(budget=0, used=0))
    dropped: list[Dropped] = Field(default_factory=list[Dropped])
    pending_turns: int = Field(
        default=0, description="Visible turns found by words only, as their vector is not there yet."
    )
    degraded: list[str] = Field(default_factory=list[str])
