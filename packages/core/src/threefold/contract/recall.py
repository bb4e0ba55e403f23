"""Recall: the three tiers for a query, and the block a model reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from threefold.contract.common import MAX_IDS_PER_CALL, Id, Level, Query, Request, Response, ScoreTest, Tier, Timestamp
from threefold.contract.facts import Memory
from threefold.contract.turns import Turn

ALL_TIERS: tuple[Tier, ...] = ("short_term", "medium_term", "long_term")


class RecallRequest(Request):
    """`POST /v1/recall`: window, digest and memories for a query."""

    query: Query
    session_id: Id | None = Field(default=None, description="Session whose window and digest are returned.")
    level: Level | None = Field(
        default=None, description="How far to read (default: the lower of `agent` and the ceiling)."
    )
    include: list[Tier] = Field(
        default_factory=lambda: list(ALL_TIERS), description="Tiers to return (default: all but `shared`)."
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        le=1_000,
        description="Most memories to return (default: the setting of the key or the store, 10).",
    )
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least value, 0 to 1, of the larger of cosine and coverage; the fused score is not tested.",
    )
    min_score_of: ScoreTest = Field(
        default="either",
        description="`cosine`: `min_score` tests the cosine alone, or coverage where a vector is missing.",
    )
    token_budget: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Most tokens of the block (default: the setting of the key or the store, 4,096).",
    )
    exclude_ids: Annotated[list[Id], Field(max_length=MAX_IDS_PER_CALL)] = Field(default_factory=list[str])
    min_trust: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least trust of everything in the answer: memories, groups of turns in the window, and the digest, "
        "which is trusted no more than the least trusted turn that it was made of.",
    )
    as_of: Timestamp | None = Field(
        default=None,
        description="Return what was true and said at this moment, by event time. Window and digest are left out.",
    )


class ScoreParts(Response):
    """Parts of a score: `cosine` and `coverage` are absolute (0 to 1), the others are relative to this query."""

    cosine: float | None = Field(default=None, description="Similarity of meaning; null while the vector is missing.")
    coverage: float = Field(
        default=0.0, description="Share of the query's words, weighted by rarity, that the memory contains."
    )
    turn: float = 0.0
    window: float = 0.0
    session: float = 0.0
    speaker: float = 0.0


class RecalledMemory(Memory):
    """A memory and its score for this query."""

    score: float
    score_parts: ScoreParts


class DigestView(Response):
    """The summary of a session's older turns, `from_seq` to `upto_seq`. It loses detail."""

    version: int
    text: str
    from_seq: int
    upto_seq: int
    trust: float | None = Field(default=None, description="The least trust of the turns that it was made of.")


class SeqRange(Response):
    """Turns that neither digest nor window shows; `/v1/sessions/{id}/turns` returns them."""

    from_seq: int
    upto_seq: int


class Dropped(Response):
    """A memory or digest that is not in the block."""

    tier: Tier
    id: str
    tokens: int
    reason: Literal["budget", "trust"] = Field(
        default="budget", description="It did not fit the token budget, or its trust is below `min_trust`."
    )


class TokenUse(Response):
    """Tokens of the rendered block."""

    budget: int
    used: int
    by_tier: dict[str, int] = Field(default_factory=dict)


class RecallResponse(Response):
    """The tiers, and one block of at most `tokens.budget` tokens. `degraded` names each tier that failed."""

    window: list[Turn] = Field(default_factory=list[Turn])
    digest: DigestView | None = None
    gap: SeqRange | None = None
    memories: list[RecalledMemory] = Field(default_factory=list[RecalledMemory])
    warnings: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    block: str = ""
    tokens: TokenUse = Field(default_factory=lambda: TokenUse(budget=0, used=0))
    dropped: list[Dropped] = Field(default_factory=list[Dropped])
    pending_turns: int = Field(
        default=0, description="Visible turns that are found by words only, because their vector is missing so far."
    )
    degraded: list[str] = Field(default_factory=list[str])
