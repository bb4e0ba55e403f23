"""Writing turns and reading them back."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from threefold.contract.common import (
    MAX_TURNS_PER_WRITE,
    Content,
    Flag,
    Id,
    NotedBy,
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
    name: Id | None = Field(default=None, description="Name of the speaker or of the tool.")
    id: Id | None = Field(
        default=None,
        description="Unique in its session; makes a retry safe. Without an id, a retry may store the turn twice.",
    )
    kind: TurnKind = "message"
    group: Id | None = Field(
        default=None, description="Ties a tool call to its results: a window shows all turns of a group or none."
    )
    payload: Payload | None = Field(default=None, description="JSON text, returned byte for byte.")
    created_at: Timestamp | None = Field(
        default=None, description="When the turn was said, with an offset; default: the time of the write."
    )
    noted_by: NotedBy | None = Field(
        default=None,
        description="Who reports this turn, if the application did not hear it itself: what a model says that a user "
        "said is trusted no more than the model. It can only lower the trust.",
    )


class WriteRequest(Request):
    """`POST /v1/write`: append turns to one session, all or none."""

    session_id: Id
    turns: Annotated[list[TurnIn], Field(max_length=MAX_TURNS_PER_WRITE)]
    visibility: Visibility | None = Field(
        default=None, description="The widest level at which these turns may be recalled; `user` by default."
    )
    run_end: Flag = Field(
        default=False, description="The run of the agent is over: consolidate now instead of when the session is idle."
    )
    state: Payload | None = Field(
        default=None, description="JSON text of a framework; replaces the state of the session."
    )
    on_conflict: OnConflict = Field(
        default="refuse",
        description="If a turn id exists with other content: `refuse` the call with 409, or `keep` the stored turn.",
    )
    expected_revision: int | None = Field(
        default=None, ge=0, description="Write only if the session is at this revision; otherwise the answer is 409."
    )


class WriteResponse(Response):
    """Counts of the turns of one write. The answer follows the commit."""

    appended: int
    duplicates: int = Field(
        description="Turns that were stored before under the same id, with the same content or kept by `on_conflict`."
    )
    erased: int = Field(description="Turns refused because a turn with this id was forgotten.")
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
    payload: str | None = Field(default=None, description="Returned only with `payload=true`.")
    created_at: Timestamp
    tokens: int
    visibility: Visibility = "user"
    erased: bool = False
    noted_by: NotedBy | None = Field(default=None, description="Who reported it, if the application did not hear it.")
    trust: float | None = Field(default=None, description="0 to 1, set by the service.")
    cut: bool = Field(
        default=False, description="The content was too large for the window and keeps only its head and tail."
    )


class TurnPage(Response):
    """One page of a session's turns, oldest first."""

    turns: list[Turn]
    next_cursor: str | None = Field(default=None, description="The `from_seq` of the next page.")
