"""Every operation of the contract as data: what to send, what comes back, how long it may take. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel

from threefold.checks import checked, checked_id
from threefold.contract import (
    ChannelHistories,
    ChannelHistoryRequest,
    CheckpointPage,
    CopyThreadRequest,
    DataScope,
    DeleteRunsRequest,
    Digest,
    DigestPage,
    FactHistory,
    ForgetReceipt,
    ForgetRequest,
    ForgetSource,
    Health,
    ItemOp,
    ItemsRequest,
    ItemsResponse,
    Level,
    ListRequest,
    Memory,
    MemoryPage,
    OnConflict,
    PruneThreadsRequest,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
    RecallRequest,
    RecallResponse,
    SaveFactRequest,
    ScoreTest,
    SessionPage,
    SessionState,
    SessionStatus,
    Stored,
    ThreadCounts,
    Tier,
    TurnIn,
    TurnPage,
    UpdateFactRequest,
    Visibility,
    WhoAmI,
    WriteRequest,
    WriteResponse,
)
from threefold.contract.common import NotedBy

R = TypeVar("R", bound=BaseModel)
TurnLike = TurnIn | Mapping[str, Any]

_DOTS = {".": "%2E", "..": "%2E%2E"}  # left alone by quote, and eaten by whoever normalises the path


@dataclass(frozen=True)
class Deadlines:
    """Seconds for one whole call, retries included."""

    recall: float = 2.0
    write: float = 5.0
    """Writing, saving, and every call about one thing."""
    long: float = 30.0
    """Forget, end, list."""


@dataclass(frozen=True)
class Call(Generic[R]):
    """One request, and what its answer is."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    reply: type[R]
    params: Mapping[str, str | int | float] = field(default_factory=dict[str, str | int | float])
    body: bytes | None = None
    pace: Literal["recall", "write", "long"] = "write"
    repeatable: bool = True
    """False where a second arrival would do a second thing."""
    waits: float = 0.0
    """Seconds that the service was asked to wait, on top of the deadline."""
    also: int = 200
    """A status that carries the same reply as a success."""

    def seconds(self, deadlines: Deadlines) -> float:
        """How long this call may take."""
        return {"recall": deadlines.recall, "write": deadlines.write, "long": deadlines.long}[self.pace] + self.waits


class RecordOptions(TypedDict, total=False):
    """Options of a session's `record`, as in `WriteRequest`."""

    visibility: Visibility | None
    run_end: bool
    on_conflict: OnConflict


class WriteOptions(RecordOptions, total=False):
    """Options of `write`, as in `WriteRequest`."""

    state: str | None
    expected_revision: int | None


class RecallOptions(TypedDict, total=False):
    """Options of `recall`, as in `RecallRequest`."""

    level: Level | None
    include: Sequence[Tier]
    top_k: int | None
    min_score: float | None
    min_score_of: ScoreTest
    token_budget: int | None
    exclude_ids: Sequence[str]
    min_trust: float | None
    as_of: datetime | None


class ListOptions(TypedDict, total=False):
    """Options of `list`, as in `ListRequest`."""

    level: Level | None
    include: Sequence[Literal["long_term", "shared"]]
    kinds: Sequence[Literal["fact", "turn"]]
    session_id: str | None
    order: Literal["created_at", "access_count"]
    cursor: str | None
    limit: int


class ForgetOptions(TypedDict, total=False):
    """Options of `forget`, as in `ForgetRequest`: exactly one selector."""

    session_id: str | None
    level: Level | None
    memory_ids: Sequence[str] | None
    in_session: str
    sources: bool
    source: ForgetSource | None
    since: datetime | None
    dry_run: bool


class SaveOptions(TypedDict, total=False):
    """Options of `save`, as in `SaveFactRequest`."""

    visibility: Visibility | None
    shared: bool
    expires_in_days: float | None
    pinned: bool
    metadata: Mapping[str, Any]
    noted_by: NotedBy | None


class UpdateOptions(TypedDict, total=False):
    """Options of `update_fact`, as in `UpdateFactRequest`."""

    text: str | None
    pinned: bool | None
    expires_in_days: float | None
    metadata: Mapping[str, Any] | None
    noted_by: NotedBy | None


def write(session_id: str, turns: Sequence[TurnLike], **options: Unpack[WriteOptions]) -> Call[WriteResponse]:
    """Append turns. Each has an id from here on, so that it can be sent again and is stored once."""
    return write_request(
        checked(WriteRequest, session_id=session_id, turns=[turn_in(turn) for turn in turns], **options)
    )


def write_request(request: WriteRequest) -> Call[WriteResponse]:
    """A write that is made already, and whose turns have ids."""
    return Call("POST", "/v1/write", WriteResponse, body=json_body(request))


def recall(query: str, session_id: str | None = None, **options: Unpack[RecallOptions]) -> Call[RecallResponse]:
    """The tiers for a query."""
    request = checked(RecallRequest, query=query, session_id=session_id, **options)
    return Call("POST", "/v1/recall", RecallResponse, body=json_body(request), pace="recall")


def list_memories(**options: Unpack[ListOptions]) -> Call[MemoryPage]:
    """One page of everything visible."""
    return Call("POST", "/v1/list", MemoryPage, body=json_body(checked(ListRequest, **options)), pace="long")


def forget(**selector: Unpack[ForgetOptions]) -> Call[ForgetReceipt]:
    """Erase; a second arrival finds nothing left."""
    return Call("POST", "/v1/forget", ForgetReceipt, body=json_body(checked(ForgetRequest, **selector)), pace="long")


def save(text: str, session_id: str | None = None, **options: Unpack[SaveOptions]) -> Call[Memory]:
    """Remember one statement. It has no id of its own, so only a request that never left is sent again."""
    request = checked(SaveFactRequest, text=text, session_id=session_id, **options)
    return Call("POST", "/v1/facts", Memory, body=json_body(request), repeatable=False)


def get_fact(fact_id: str) -> Call[Memory]:
    """One fact."""
    return Call("GET", _path("facts", fact_id), Memory)


def update_fact(fact_id: str, **options: Unpack[UpdateOptions]) -> Call[Memory]:
    """Supersede or adjust one fact; twice would be two versions."""
    request = checked(UpdateFactRequest, **options)
    return Call("PATCH", _path("facts", fact_id), Memory, body=json_body(request), repeatable=False)


def delete_fact(fact_id: str, *, sources: bool = False, in_session: str | None = None) -> Call[ForgetReceipt]:
    """Erase one fact; a second arrival would answer that there is no such fact."""
    params: dict[str, str | int | float] = {"sources": 1} if sources else {}
    if in_session is not None:
        params["in_session"] = in_session
    return Call("DELETE", _path("facts", fact_id), ForgetReceipt, params, pace="long", repeatable=False)


def fact_history(fact_id: str) -> Call[FactHistory]:
    """Every version of one fact."""
    return Call("GET", _path("facts", fact_id, "history"), FactHistory)


def restore_fact(fact_id: str) -> Call[Memory]:
    """Make a superseded version the current one."""
    return Call("POST", _path("facts", fact_id, "restore"), Memory, repeatable=False)


def sessions(*, cursor: str | None = None, limit: int | None = None, state: bool = False) -> Call[SessionPage]:
    """One page of sessions."""
    params = given(cursor=cursor, limit=limit, state=1 if state else None)
    return Call("GET", "/v1/sessions", SessionPage, params, pace="long")


def state(session_id: str) -> Call[SessionState]:
    """What a framework keeps beside the turns of a session."""
    return Call("GET", _path("sessions", session_id, "state"), SessionState)


def turns(
    session_id: str, *, from_seq: int | None = None, limit: int | None = None, payload: bool = False
) -> Call[TurnPage]:
    """One page of a session's turns."""
    params = given(from_seq=from_seq, limit=limit, payload=1 if payload else None)
    return Call("GET", _path("sessions", session_id, "turns"), TurnPage, params, pace="long")


def digests(session_id: str) -> Call[DigestPage]:
    """Every version of a session's digest."""
    return Call("GET", _path("sessions", session_id, "digests"), DigestPage)


def digest(session_id: str, version: int) -> Call[Digest]:
    """One version of a session's digest."""
    return Call("GET", _path("sessions", session_id, "digests", str(version)), Digest)


def status(session_id: str) -> Call[SessionStatus]:
    """How far consolidation has come."""
    return Call("GET", _path("sessions", session_id, "status"), SessionStatus)


def end(session_id: str, *, wait: float | None = None) -> Call[SessionStatus]:
    """Extract up to the turns seen now."""
    path = _path("sessions", session_id, "end")
    return Call("POST", path, SessionStatus, given(wait=wait), pace="long", waits=wait or 0.0)


def items_batch(ops: Sequence[ItemOp | Mapping[str, Any]], *, scope: DataScope = "user") -> Call[ItemsResponse]:
    """Operations on the items of a framework's store. Sent again only where that answers the same."""
    request = checked(ItemsRequest, scope=scope, ops=ops)
    kinds = {op.op in ("put", "delete") for op in request.ops}
    pace = "write" if len(request.ops) <= 1 else "long"
    return Call(
        "POST", "/v1/items/batch", ItemsResponse, body=json_body(request), pace=pace, repeatable=len(kinds) <= 1
    )


def put_checkpoint(thread_id: str, request: PutCheckpointRequest) -> Call[Stored]:
    """Store one checkpoint and the new values of its channels."""
    return Call("POST", _path("threads", thread_id, "checkpoints"), Stored, body=json_body(request))


def put_writes(thread_id: str, request: PutWritesRequest) -> Call[Stored]:
    """Store the writes of one task."""
    return Call("POST", _path("threads", thread_id, "writes"), Stored, body=json_body(request))


def query_checkpoints(request: QueryCheckpointsRequest) -> Call[CheckpointPage]:
    """One page of checkpoints."""
    return Call("POST", "/v1/threads/query", CheckpointPage, body=json_body(request))


def channel_history(thread_id: str, request: ChannelHistoryRequest) -> Call[ChannelHistories]:
    """What the ancestors of a checkpoint wrote to some channels."""
    return Call("POST", _path("threads", thread_id, "history"), ChannelHistories, body=json_body(request))


def copy_thread(thread_id: str, request: CopyThreadRequest) -> Call[ThreadCounts]:
    """Copy a thread; a second arrival adds nothing."""
    return Call("POST", _path("threads", thread_id, "copy"), ThreadCounts, body=json_body(request), pace="long")


def prune_threads(request: PruneThreadsRequest) -> Call[ThreadCounts]:
    """Drop all but the newest checkpoints, or everything."""
    return Call("POST", "/v1/threads/prune", ThreadCounts, body=json_body(request), pace="long")


def delete_runs(request: DeleteRunsRequest) -> Call[ThreadCounts]:
    """Delete the checkpoints of some runs."""
    return Call("POST", "/v1/threads/delete_runs", ThreadCounts, body=json_body(request), pace="long")


def delete_thread(thread_id: str, scope: DataScope = "user") -> Call[ThreadCounts]:
    """Delete a thread; a second arrival finds nothing left."""
    return Call("DELETE", _path("threads", thread_id), ThreadCounts, {"scope": scope}, pace="long")


def whoami() -> Call[WhoAmI]:
    """The verified identity and the store's policy."""
    return Call("GET", "/v1/whoami", WhoAmI)


def health() -> Call[Health]:
    """Whether the process is alive."""
    return Call("GET", "/healthz", Health)


def ready() -> Call[Health]:
    """Whether the service reaches its database: either answer is an answer."""
    return Call("GET", "/readyz", Health, also=503)


def turn_in(turn: TurnLike) -> TurnIn:
    """A checked turn that has an id."""
    made = turn if isinstance(turn, TurnIn) else checked(TurnIn, **turn)
    return made if made.id is not None else made.model_copy(update={"id": uuid4().hex})


def beside_history(options: RecallOptions, has_history: bool) -> RecallOptions:
    """A model that is shown the conversation needs no window of it, unless the options say so."""
    return {"include": ("medium_term", "long_term"), **options} if has_history else options


def _path(collection: str, name: str, *rest: str) -> str:
    checked_id("id", name)
    return "/".join(["/v1", collection, _DOTS.get(name) or quote(name, safe=""), *rest])


def given(**params: str | int | float | None) -> dict[str, str | int | float]:
    """The parameters of a query that were given."""
    return {name: value for name, value in params.items() if value is not None}


def json_body(request: BaseModel) -> bytes:
    """Only what the caller gave: a default of this client must not override one of the store."""
    return request.model_dump_json(exclude_unset=True).encode()
