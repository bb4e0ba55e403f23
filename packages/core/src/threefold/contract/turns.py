"""Writing turns and reading them back."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from threefold.contract.common import (
    MAX_TURNS_PER_WRITE,
    Content,
    Flag,
    Id,
    OnConflict,
    Payload,
    Request,
    Response,
    Role,
    Timestamp,
    TurnKind,
    Visibility,
)


class TurnIn(Request):
    """One verbatim message to append; `group` ties a tool call to its results."""

    role: Role
    content: Content
    name: Id | None = Field(default=None, description="The speaker, or the tool.")
    id: Id | None = Field(
        default=None,
        description="Makes a retry safe: unique in its session. Without it there is no idempotency.",
    )
    kind: TurnKind = "message"
    group: Id | None = Field(default=None, description="Turns of one group are never split by a window.")
    payload: Payload | None = Field(default=None, description="JSON text, returned byte for byte.")
    created_at: Timestamp | None = Field(default=None, description="When it was said; the service's now otherwise.")


class WriteRequest(Request):
    """`POST /v1/write`: append turns to one session, all or none."""

    session_id: Id
    turns: Annotated[list[TurnIn], Field(max_length=MAX_TURNS_PER_WRITE)]
    visibility: Visibility | None = Field(
        default=None, description="The widest level at which these turns may be recalled; `user` by default."
    )
    run_end: Flag = Field(
        default=False, description="The agent's run is over: consolidate without waiting for idleness."
    )
    state: Payload | None = Field(
        default=None, description="JSON text of a framework's own that takes the place of the session's state."
    )
    on_conflict: OnConflict = Field(
        default="refuse",
        description="A turn whose id was written before with other content: refuse the call with 409, or keep what is "
        "there, as where a newer reader tells the same messages in other words.",
    )
    expected_revision: int | None = Field(
        default=None, ge=0, description="Write only if the session is still at this revision, else 409."
    )


class WriteResponse(Response):
    """What became of the turns. Answered only after the commit."""

    appended: int
    duplicates: int = Field(description="Turns that were there already, with the same id and content, or kept.")
    erased: int = Field(description="Turns refused because their id was forgotten.")
    last_seq: int
    revision: int
    scheduled: bool = Field(description="Folding or extraction became due; the status is then 202.")


class Turn(Response):
    """One stored turn. `seq` starts at 1 and orders the session."""

    id: str
    seq: int
    role: Role
    content: str
    name: str | None = None
    kind: TurnKind = "message"
    group: str | None = None
    payload: str | None = Field(default=None, description="Only where it was asked for.")
    created_at: Timestamp
    tokens: int
    visibility: Visibility = "user"
    erased: bool = False
    cut: bool = Field(default=False, description="The content was too large for the window: head and tail remain.")


class TurnPage(Response):
    """One page of a session's turns, oldest first."""

    turns: list[Turn]
    next_cursor: str | None = Field(default=None, description="The `from_seq` of the next page.")
