"""Every operation of the contract as data: request, type of the answer, deadline. No I/O."""

from __future__ import annotations

import re
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
    paths,
)
from threefold.contract.common import NotedBy

R = TypeVar("R", bound=BaseModel)
TurnLike = TurnIn | Mapping[str, Any]

_FIELD = re.compile(r"\{[^}]*\}")

_DOTS = {
    ".": "%2E",
    "..": "%2E%2E",
}  # `quote` leaves dots alone, but proxies and clients remove such segments


@dataclass(frozen=True)
class Deadlines:
    """Seconds that one call may take, retries included."""

    recall: float = 2.0
    """Recalls (default 2)."""
    write: float = 5.0
    """Writes, saves, and every call about one thing (default 5)."""
    long: float = 30.0
    """Forgets, ends of sessions, lists and the calls of administrators (default 30)."""


@dataclass(frozen=True)
class Call(Generic[R]):
    """One request and the type of its answer."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    reply: type[R]
    """The model of the answer."""
    params: Mapping[str, str | int | float] = field(default_factory=dict[str, str | int | float])
    body: bytes | None = None
    deadline: Literal["recall", "write", "long"] = "write"
    """The field of `Deadlines` that applies."""
    repeatable: bool = True
    """False if the service would act twice on a request that arrives twice."""
    extra_seconds: float = 0.0
    """Seconds that the service was asked to wait, in addition to the deadline."""
    success_status: int = 200
    """One more status whose answer has the type `reply`, besides 200 to 299."""

    def seconds(self, deadlines: Deadlines) -> float:
        """Return the seconds that this call may take."""
        by_name = {"recall": deadlines.recall, "write": deadlines.write, "long": deadlines.long}
        return by_name[self.deadline] + self.extra_seconds


class RecordOptions(TypedDict, total=False):
    """Options of a session's `record`, as in `WriteRequest`."""

    visibility: Visibility | None
    """Widest level at which the turns may be recalled (default `user`)."""
    run_end: bool
    """The run of the agent is over: consolidate now (default false)."""
    on_conflict: OnConflict
    """For an id that is stored with other content: `refuse` the call (default) or `keep` the stored turn."""


class WriteOptions(RecordOptions, total=False):
    """Options of `write`, as in `WriteRequest`."""

    state: str | None
    """JSON text of a framework; it replaces the state of the session."""
    expected_revision: int | None
    """Write only if the session is at this revision; otherwise `RevisionConflict`."""


class RecallOptions(TypedDict, total=False):
    """Options of `recall`, as in `RecallRequest`."""

    level: Level | None
    """How far to read (default: the lower of `agent` and the ceiling)."""
    include: Sequence[Tier]
    """The tiers to return (default: all but `shared`)."""
    top_k: int | None
    """Most memories to return, 0 to 1,000 (default: the setting of the store, 10)."""
    min_score: float | None
    """Least value, 0 to 1, of the larger of cosine and coverage; the fused score is not tested."""
    min_score_of: ScoreTest
    """What `min_score` tests: `either` (default) or `cosine`."""
    token_budget: int | None
    """Most tokens of the block, 0 to 1,000,000 (default: the setting of the store, 4,096)."""
    exclude_ids: Sequence[str]
    """At most 10,000 ids of memories that are left out."""
    min_trust: float | None
    """Least trust of a memory, 0 to 1."""
    as_of: datetime | None
    """Return what was true at this moment, without window and digest; needs an offset."""


class ListOptions(TypedDict, total=False):
    """Options of `list`, as in `ListRequest`."""

    level: Level | None
    """How far to read (default: the lower of `agent` and the ceiling)."""
    include: Sequence[Literal["long_term", "shared"]]
    """The memories of the caller, the shared ones, or both (default `long_term`)."""
    kinds: Sequence[Literal["fact", "turn"]]
    """The kinds to return (default: both)."""
    session_id: str | None
    """The session; needed at level `session`."""
    order: Literal["created_at", "access_count"]
    """Sort by time or by number of reads, highest first (default `created_at`)."""
    cursor: str | None
    """`next_cursor` of the previous page."""
    limit: int
    """Memories per page, 0 to 1,000 (default 50)."""


class ForgetOptions(TypedDict, total=False):
    """Options of `forget`, as in `ForgetRequest`: exactly one selector."""

    session_id: str | None
    """Selector: one session with everything in it."""
    level: Level | None
    """Selector: `agent` (all of this user with this agent) or `user` (all of this user)."""
    memory_ids: Sequence[str] | None
    """Selector: 1 to 10,000 ids of facts or turns."""
    in_session: str
    """With `memory_ids`: the session of a turn whose id exists in several sessions."""
    sources: bool
    """With `memory_ids`: also erase the content of the turns that the facts rest on (default false)."""
    source: ForgetSource | None
    """Selector: everything that came from one tool, session or agent."""
    since: datetime | None
    """With `source`: only what was written at this time or later; needs an offset."""
    dry_run: bool
    """Count without erasing (default false)."""


class SaveOptions(TypedDict, total=False):
    """Options of `save`, as in `SaveFactRequest`."""

    visibility: Visibility | None
    """Widest level at which the fact may be read (default `user`)."""
    shared: bool
    """Let every user of the store read the fact; needs the right to share (default false)."""
    expires_in_days: float | None
    """Days until the fact expires, more than 0, at most 36,500 (default: the setting of the store)."""
    pinned: bool
    """The fact never expires (default false)."""
    metadata: Mapping[str, Any]
    """At most 16,384 bytes of JSON, 32 levels deep."""
    noted_by: NotedBy | None
    """`assistant` or `tool` if the user did not state the fact; it lowers the trust (default: the caller states it)."""


class UpdateOptions(TypedDict, total=False):
    """Options of `update_fact`, as in `UpdateFactRequest`."""

    text: str | None
    """The new text; it makes a new version with a new id."""
    pinned: bool | None
    """Whether the fact never expires."""
    expires_in_days: float | None
    """Days from now until the fact expires, more than 0, at most 36,500."""
    metadata: Mapping[str, Any] | None
    """Replaces all metadata: at most 16,384 bytes of JSON, 32 levels deep."""
    noted_by: NotedBy | None
    """`assistant` or `tool` if the user did not state the change; it cannot change a fact of more trust."""


def write(session_id: str, turns: Sequence[TurnLike], **options: Unpack[WriteOptions]) -> Call[WriteResponse]:
    """Append turns. Turns without an id get one, so that a retry stores nothing twice."""
    return write_request(
        checked(WriteRequest, session_id=session_id, turns=[turn_in(turn) for turn in turns], **options)
    )


def write_request(request: WriteRequest) -> Call[WriteResponse]:
    """Append the turns of a checked request; they must have ids."""
    return Call("POST", paths.WRITE, WriteResponse, body=json_body(request))


def recall(query: str, session_id: str | None = None, **options: Unpack[RecallOptions]) -> Call[RecallResponse]:
    """Return window, digest and memories for a query."""
    request = checked(RecallRequest, query=query, session_id=session_id, **options)
    return Call("POST", paths.RECALL, RecallResponse, body=json_body(request), deadline="recall")


def list_memories(**options: Unpack[ListOptions]) -> Call[MemoryPage]:
    """Return one page of the memories that are visible at a level."""
    return Call("POST", paths.LIST, MemoryPage, body=json_body(checked(ListRequest, **options)), deadline="long")


def forget(**selector: Unpack[ForgetOptions]) -> Call[ForgetReceipt]:
    """Erase what one selector names. Repeatable: a second arrival finds nothing left."""
    return Call(
        "POST", paths.FORGET, ForgetReceipt, body=json_body(checked(ForgetRequest, **selector)), deadline="long"
    )


def save(text: str, session_id: str | None = None, **options: Unpack[SaveOptions]) -> Call[Memory]:
    """Save one statement as a fact. Not repeatable: the request has no idempotency key."""
    request = checked(SaveFactRequest, text=text, session_id=session_id, **options)
    return Call("POST", paths.FACTS, Memory, body=json_body(request), repeatable=False)


def get_fact(fact_id: str) -> Call[Memory]:
    """Return one fact."""
    return Call("GET", path_of(paths.FACT, fact_id), Memory)


def update_fact(fact_id: str, **options: Unpack[UpdateOptions]) -> Call[Memory]:
    """Change one fact. Not repeatable: a second arrival would make a second version."""
    request = checked(UpdateFactRequest, **options)
    return Call("PATCH", path_of(paths.FACT, fact_id), Memory, body=json_body(request), repeatable=False)


def delete_fact(fact_id: str, *, sources: bool = False, in_session: str | None = None) -> Call[ForgetReceipt]:
    """Erase one fact or turn. Not repeatable: a second arrival would answer that there is no such fact."""
    params: dict[str, str | int | float] = {"sources": 1} if sources else {}
    if in_session is not None:
        params["in_session"] = in_session
    return Call("DELETE", path_of(paths.FACT, fact_id), ForgetReceipt, params, deadline="long", repeatable=False)


def fact_history(fact_id: str) -> Call[FactHistory]:
    """Return every version of one fact."""
    return Call("GET", path_of(paths.FACT_HISTORY, fact_id), FactHistory)


def restore_fact(fact_id: str) -> Call[Memory]:
    """Make a superseded version of a fact the current one."""
    return Call("POST", path_of(paths.FACT_RESTORE, fact_id), Memory, repeatable=False)


def sessions(*, cursor: str | None = None, limit: int | None = None, state: bool = False) -> Call[SessionPage]:
    """Return one page of sessions."""
    params = given(cursor=cursor, limit=limit, state=1 if state else None)
    return Call("GET", paths.SESSIONS, SessionPage, params, deadline="long")


def state(session_id: str) -> Call[SessionState]:
    """Return the state that a framework keeps beside the turns of a session."""
    return Call("GET", path_of(paths.SESSION_STATE, session_id), SessionState)


def turns(
    session_id: str, *, from_seq: int | None = None, limit: int | None = None, payload: bool = False
) -> Call[TurnPage]:
    """Return one page of a session's turns."""
    params = given(from_seq=from_seq, limit=limit, payload=1 if payload else None)
    return Call("GET", path_of(paths.SESSION_TURNS, session_id), TurnPage, params, deadline="long")


def digests(session_id: str, *, cursor: str | None = None, limit: int | None = None) -> Call[DigestPage]:
    """Return one page of the versions of a session's digest."""
    return Call("GET", path_of(paths.SESSION_DIGESTS, session_id), DigestPage, given(cursor=cursor, limit=limit))


def digest(session_id: str, version: int) -> Call[Digest]:
    """Return one version of a session's digest."""
    return Call("GET", path_of(paths.SESSION_DIGEST, session_id, str(version)), Digest)


def status(session_id: str) -> Call[SessionStatus]:
    """Return how far the consolidation of a session has come."""
    return Call("GET", path_of(paths.SESSION_STATUS, session_id), SessionStatus)


def end(session_id: str, *, wait: float | None = None) -> Call[SessionStatus]:
    """Start the consolidation of all turns that a session has now."""
    path = path_of(paths.SESSION_END, session_id)
    return Call("POST", path, SessionStatus, given(wait=wait), deadline="long", extra_seconds=wait or 0.0)


def items_batch(ops: Sequence[ItemOp | Mapping[str, Any]], *, scope: DataScope = "user") -> Call[ItemsResponse]:
    """Run operations on the items of a framework's store.

    Repeatable unless reads and writes are mixed: the reads of a second arrival would see the writes of the first.
    """
    request = checked(ItemsRequest, scope=scope, ops=ops)
    writes = {op.op in ("put", "delete") for op in request.ops}
    deadline = "write" if len(request.ops) <= 1 else "long"
    return Call(
        "POST",
        paths.ITEMS_BATCH,
        ItemsResponse,
        body=json_body(request),
        deadline=deadline,
        repeatable=len(writes) <= 1,
    )


def put_checkpoint(thread_id: str, request: PutCheckpointRequest) -> Call[Stored]:
    """Store one checkpoint and the new values of its channels."""
    return Call("POST", path_of(paths.THREAD_CHECKPOINTS, thread_id), Stored, body=json_body(request))


def put_writes(thread_id: str, request: PutWritesRequest) -> Call[Stored]:
    """Store the writes of one task."""
    return Call("POST", path_of(paths.THREAD_WRITES, thread_id), Stored, body=json_body(request))


def query_checkpoints(request: QueryCheckpointsRequest) -> Call[CheckpointPage]:
    """Return one page of checkpoints."""
    return Call("POST", paths.THREADS_QUERY, CheckpointPage, body=json_body(request))


def channel_history(thread_id: str, request: ChannelHistoryRequest) -> Call[ChannelHistories]:
    """Return what the ancestors of a checkpoint wrote to some channels."""
    return Call("POST", path_of(paths.THREAD_HISTORY, thread_id), ChannelHistories, body=json_body(request))


def copy_thread(thread_id: str, request: CopyThreadRequest) -> Call[ThreadCounts]:
    """Copy a thread. Repeatable: a second arrival adds nothing."""
    return Call("POST", path_of(paths.THREAD_COPY, thread_id), ThreadCounts, body=json_body(request), deadline="long")


def prune_threads(request: PruneThreadsRequest) -> Call[ThreadCounts]:
    """Delete all but the newest checkpoints of some threads, or all of them."""
    return Call("POST", paths.THREADS_PRUNE, ThreadCounts, body=json_body(request), deadline="long")


def delete_runs(request: DeleteRunsRequest) -> Call[ThreadCounts]:
    """Delete the checkpoints of some runs."""
    return Call("POST", paths.THREADS_DELETE_RUNS, ThreadCounts, body=json_body(request), deadline="long")


def delete_thread(thread_id: str, scope: DataScope = "user") -> Call[ThreadCounts]:
    """Delete a thread. Repeatable: a second arrival finds nothing left."""
    return Call("DELETE", path_of(paths.THREAD, thread_id), ThreadCounts, {"scope": scope}, deadline="long")


def whoami() -> Call[WhoAmI]:
    """Return the verified identity and the policy of the store."""
    return Call("GET", paths.WHOAMI, WhoAmI)


def health() -> Call[Health]:
    """Return whether the process of the service is alive."""
    return Call("GET", paths.HEALTH, Health)


def ready() -> Call[Health]:
    """Return whether the service reaches its database; 503 has the same form of answer as 200."""
    return Call("GET", paths.READY, Health, success_status=503)


def turn_in(turn: TurnLike) -> TurnIn:
    """Return a checked turn with an id; a turn without one gets a random id."""
    checked_turn = turn if isinstance(turn, TurnIn) else checked(TurnIn, **turn)
    return checked_turn if checked_turn.id is not None else checked_turn.model_copy(update={"id": uuid4().hex})


def beside_history(options: RecallOptions, has_history: bool) -> RecallOptions:
    """Return recall options without the window if the model reads the history anyway; an explicit `include` wins."""
    return {"include": ("medium_term", "long_term"), **options} if has_history else options


def path_of(template: str, *names: str) -> str:
    """Return a path of the contract with its ids, percent-encoded. Raise InvalidRequest for an invalid id."""
    segments = (_segment(name) for name in names)
    return _FIELD.sub(lambda _: next(segments), template)


def _segment(name: str) -> str:
    checked_id("id", name)
    return _DOTS.get(name) or quote(name, safe="")


def given(**params: str | int | float | None) -> dict[str, str | int | float]:
    """Return the query parameters that are not None."""
    return {name: value for name, value in params.items() if value is not None}


def json_body(request: BaseModel) -> bytes:
    """Return the fields that the caller gave as JSON: a default of this client must not override one of the store."""
    return request.model_dump_json(exclude_unset=True).encode()
