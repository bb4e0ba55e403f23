"""Long-term memory: facts, and turns of earlier sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from threefold.contract.common import (
    MAX_FACT_CHARS,
    MAX_METADATA_BYTES,
    MAX_METADATA_DEPTH,
    Cursor,
    Flag,
    Id,
    Level,
    NotedBy,
    Origin,
    PageLimit,
    Request,
    Response,
    Role,
    SourceRange,
    Timestamp,
    Visibility,
    check_json,
    clean_text,
)

RESERVED_METADATA = frozenset(
    {"user", "user_id", "agent", "agent_id", "session", "session_id", "owner", "tenant", "scope", "level"}
    | {"visibility", "trust", "origin", "created_at", "writer"}
)


def check_metadata(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse keys that the service sets itself, text that cannot be stored exactly, and oversized values."""
    reserved = sorted(RESERVED_METADATA & value.keys())
    if reserved:
        raise ValueError(f"reserved keys: {', '.join(reserved)}; the service sets these itself")
    return check_json(value, MAX_METADATA_DEPTH, MAX_METADATA_BYTES)


def check_fact_text(value: str) -> str:
    """Refuse a fact without words."""
    if not value.strip():
        raise ValueError("must not be blank")
    return value


FactText = Annotated[
    str, BeforeValidator(clean_text), Field(max_length=MAX_FACT_CHARS), AfterValidator(check_fact_text)
]
Metadata = Annotated[dict[str, Any], AfterValidator(check_metadata)]


class SaveFactRequest(Request):
    """`POST /v1/facts`: remember one statement at once, without a model."""

    text: FactText
    session_id: Id | None = None
    visibility: Visibility | None = None
    shared: Flag = Field(default=False, description="Into the store's shared partition; needs a key that may share.")
    expires_in_days: float | None = Field(default=None, gt=0, le=36_500)
    pinned: Flag = False
    metadata: Metadata = Field(default_factory=dict)
    noted_by: NotedBy | None = Field(
        default=None,
        description="Who states it, if the user does not: the tools of a model save as `assistant`. It can only lower "
        "the trust.",
    )

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        if self.visibility == "session" and self.session_id is None:
            raise ValueError("visibility 'session' needs a session_id, or no recall would ever bring it")
        return self


class UpdateFactRequest(Request):
    """`PATCH /v1/facts/{id}`: a new text supersedes the old one, which stays in the history."""

    text: FactText | None = None
    pinned: Flag | None = None
    expires_in_days: float | None = Field(default=None, gt=0, le=36_500)
    metadata: Metadata | None = None
    noted_by: NotedBy | None = Field(
        default=None, description="Who changes it, if the user does not: refused for a fact of more trust."
    )


class Memory(Response):
    """One item of long-term memory: a fact, or a turn of any session (its id is the turn's)."""

    id: str
    kind: Literal["fact", "turn"]
    text: str
    cut: bool = Field(default=False, description="The turn is longer than a memory shows: head and tail remain.")
    user: str | None = None
    agent: str
    session_id: str | None = None
    visibility: Visibility
    shared: bool = False
    origin: Origin
    trust: float = Field(description="0 to 1, set by the service from the origin.")
    sources: list[SourceRange] = Field(default_factory=list[SourceRange])
    role: Role | None = None
    name: str | None = None
    created_at: Timestamp
    event_at: Timestamp | None = None
    valid_from: Timestamp | None = None
    valid_to: Timestamp | None = None
    superseded_by: str | None = None
    expires_at: Timestamp | None = None
    access_count: int = 0
    pinned: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)


class FactHistory(Response):
    """Every version of one fact, oldest first."""

    versions: list[Memory]


class ListRequest(Request):
    """`POST /v1/list`: everything visible at a level, a page at a time."""

    level: Level | None = None
    include: list[Literal["long_term", "shared"]] = Field(default=["long_term"])
    kinds: list[Literal["fact", "turn"]] = Field(default=["fact", "turn"])
    session_id: Id | None = Field(default=None, description="Needed at level `session`.")
    order: Literal["created_at", "access_count"] = "created_at"
    cursor: Cursor | None = None
    limit: PageLimit = 50


class MemoryPage(Response):
    """One page of memories."""

    items: list[Memory]
    next_cursor: str | None = None
