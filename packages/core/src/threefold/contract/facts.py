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
    """`POST /v1/facts`: save one statement as a fact, without a model."""

    text: FactText
    session_id: Id | None = Field(default=None, description="Session of the fact; needed for visibility `session`.")
    visibility: Visibility | None = Field(
        default=None, description="Widest level at which the fact may be read (default `user`)."
    )
    shared: Flag = Field(default=False, description="Let every user of the store read it; needs the right to share.")
    expires_in_days: float | None = Field(
        default=None, gt=0, le=36_500, description="Days until it expires (default: the setting of the store)."
    )
    pinned: Flag = Field(default=False, description="The fact never expires.")
    metadata: Metadata = Field(default_factory=dict, description="At most 16,384 bytes of JSON, 32 levels deep.")
    noted_by: NotedBy | None = Field(
        default=None,
        description="Who stated it, if not the user; the tools of a model save with `assistant`. It can only lower the "
        "trust.",
    )

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        if self.visibility == "session" and self.session_id is None:
            raise ValueError("visibility 'session' needs a session_id; without one no recall would return the fact")
        return self


class UpdateFactRequest(Request):
    """`PATCH /v1/facts/{id}`: a new text supersedes the old one, which stays in the history."""

    text: FactText | None = Field(default=None, description="The new text; it makes a new version with a new id.")
    pinned: Flag | None = Field(default=None, description="Whether the fact never expires.")
    expires_in_days: float | None = Field(
        default=None, gt=0, le=36_500, description="Days from now until the fact expires."
    )
    metadata: Metadata | None = Field(default=None, description="Replaces all metadata.")
    noted_by: NotedBy | None = Field(
        default=None,
        description="Who changes it, if not the user. A fact of more trust is not changed: the answer is 403.",
    )


class Memory(Response):
    """One memory: a fact, or a turn of any session, with the id of the turn."""

    id: str
    kind: Literal["fact", "turn"]
    text: str
    cut: bool = Field(
        default=False, description="The turn is longer than a memory may be; only its head and tail are shown."
    )
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
    event_at: Timestamp | None = Field(default=None, description="When it was said, if that is known.")
    valid_from: Timestamp | None = None
    valid_to: Timestamp | None = None
    superseded_by: str | None = Field(default=None, description="Id of the next version of the fact.")
    expires_at: Timestamp | None = None
    access_count: int = 0
    pinned: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)


class FactHistory(Response):
    """Every version of one fact, oldest first."""

    versions: list[Memory]


class ListRequest(Request):
    """`POST /v1/list`: one page of the memories that are visible at a level."""

    level: Level | None = Field(
        default=None, description="How far to read (default: the lower of `agent` and the ceiling)."
    )
    include: list[Literal["long_term", "shared"]] = Field(default=["long_term"])
    kinds: list[Literal["fact", "turn"]] = Field(default=["fact", "turn"])
    session_id: Id | None = Field(default=None, description="Needed at level `session`.")
    order: Literal["created_at", "access_count"] = Field(
        default="created_at", description="Sort by time or by number of reads, highest first."
    )
    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: PageLimit = Field(default=50, description="Memories per page.")


class MemoryPage(Response):
    """One page of memories."""

    items: list[Memory]
    next_cursor: str | None = None
