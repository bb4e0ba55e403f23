"""The routes of version 1 for agents and users. Each parses a request, calls one operation and answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from threefold.contract import (
    ChannelHistories,
    ChannelHistoryRequest,
    CheckpointPage,
    CopyThreadRequest,
    DeleteRunsRequest,
    Digest,
    DigestPage,
    ErrorBody,
    FactHistory,
    ForgetReceipt,
    ForgetRequest,
    ItemsRequest,
    ItemsResponse,
    ListRequest,
    Memory,
    MemoryPage,
    PruneThreadsRequest,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
    RecallRequest,
    RecallResponse,
    SaveFactRequest,
    SessionPage,
    SessionState,
    SessionStatus,
    Stored,
    ThreadCounts,
    TurnPage,
    UpdateFactRequest,
    WhoAmI,
    WriteRequest,
    WriteResponse,
    paths,
)
from threefold.contract.common import Cursor, DataScope, Id, PageLimit
from threefold.errors import ERRORS, InvalidRequest
from threefold_server.http.bodies import IdentifiedRoute
from threefold_server.http.gone import unless_gone
from threefold_server.http.identity import CallerDep
from threefold_server.operations import browse, facts, threads
from threefold_server.operations.forget import delete_fact, forget
from threefold_server.operations.items import run_items
from threefold_server.operations.recall import recall
from threefold_server.operations.sessions import end_session
from threefold_server.operations.whoami import whoami
from threefold_server.operations.write import write_turns
from threefold_server.service import Service
from threefold_server.storage.engine.deadline import LONG_SECONDS, allowed

MAX_WAIT_SECONDS = 60.0


async def service_of(request: Request) -> Service:
    """Return the service of this request.

    `async`, since FastAPI runs other functions in a thread, which costs a third of a write.
    """
    return request.app.state.service


async def check_query(request: Request) -> None:
    """Raise InvalidRequest for an unknown query parameter: ignoring it would silently change the result."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    unknown = sorted(request.query_params.keys() - known)
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown query parameter", {"field": unknown[0]})


async def allow_long() -> None:
    """Give the database calls of this request more time, for routes that touch many rows."""
    allowed.set(LONG_SECONDS)


_STATUSES = sorted({error.status for error in ERRORS.values()})
REFUSALS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in _STATUSES}

LONG = [Depends(allow_long)]

ServiceDep = Annotated[Service, Depends(service_of)]
Version = Annotated[int, Path(ge=1, le=2**31 - 1)]


class IdConvertor(PathConvertor):
    """Matches any text: an id may contain slashes and line ends."""

    regex = "(?s:.*)"


register_url_convertor("id", IdConvertor())

router = APIRouter(responses=REFUSALS, dependencies=[Depends(check_query)], route_class=IdentifiedRoute)


@router.post(
    paths.WRITE, responses={202: {"model": WriteResponse, "description": "Stored; consolidation was scheduled."}}
)
async def post_write(body: WriteRequest, caller: CallerDep, service: ServiceDep, response: Response) -> WriteResponse:
    """Append turns to a session, all or none."""
    written = await write_turns(service, caller, body)
    response.status_code = 202 if written.scheduled else 200
    return written


@router.post(paths.RECALL)
async def post_recall(body: RecallRequest, caller: CallerDep, service: ServiceDep) -> RecallResponse:
    """Return the tiers of memory for a query, and the block that a model reads."""
    return await recall(service, caller, body)


@router.post(paths.LIST, dependencies=LONG)
async def post_list(body: ListRequest, request: Request, caller: CallerDep, service: ServiceDep) -> MemoryPage:
    """Return everything visible at a level, in pages."""
    return await unless_gone(request, browse.list_memories(service, caller, body))


@router.post(paths.FORGET, dependencies=LONG)
async def post_forget(body: ForgetRequest, caller: CallerDep, service: ServiceDep) -> ForgetReceipt:
    """Erase by exactly one selector. The receipt counts what was erased."""
    return await forget(service, caller, body)


@router.post(paths.FACTS, status_code=201)
async def post_fact(body: SaveFactRequest, caller: CallerDep, service: ServiceDep) -> Memory:
    """Save one fact."""
    return await facts.save_fact(service, caller, body)


@router.get(paths.FACT_HISTORY)
async def get_fact_history(fact_id: Id, caller: CallerDep, service: ServiceDep) -> FactHistory:
    """Return every version of a fact."""
    return await facts.fact_history(service, caller, fact_id)


@router.post(paths.FACT_RESTORE)
async def post_fact_restore(fact_id: Id, caller: CallerDep, service: ServiceDep) -> Memory:
    """Make a superseded version of a fact current again."""
    return await facts.restore_fact(service, caller, fact_id)


@router.get(paths.FACT)
async def get_fact(fact_id: Id, caller: CallerDep, service: ServiceDep) -> Memory:
    """Return one fact."""
    return await facts.get_fact(service, caller, fact_id)


@router.patch(paths.FACT)
async def patch_fact(fact_id: Id, body: UpdateFactRequest, caller: CallerDep, service: ServiceDep) -> Memory:
    """Change a fact. A new text makes a new version."""
    return await facts.update_fact(service, caller, fact_id, body)


@router.delete(paths.FACT, dependencies=LONG)
async def remove_fact(
    fact_id: Id, caller: CallerDep, service: ServiceDep, sources: bool = False, in_session: Id | None = None
) -> ForgetReceipt:
    """Erase one fact or turn, with the content of its source turns if asked."""
    return await delete_fact(service, caller, fact_id, sources=sources, in_session=in_session)


@router.get(paths.SESSIONS)
async def get_sessions(
    request: Request,
    caller: CallerDep,
    service: ServiceDep,
    cursor: Cursor | None = None,
    limit: PageLimit = 50,
    state: bool = False,
) -> SessionPage:
    """Return the caller's sessions, the most recently written first."""
    return await unless_gone(request, browse.list_sessions(service, caller, cursor, limit, state=state))


@router.get(paths.SESSION_STATE)
async def get_state(session_id: Id, caller: CallerDep, service: ServiceDep) -> SessionState:
    """Return the state that a framework keeps beside the turns of a session."""
    return await browse.session_state(service, caller, session_id)


@router.get(paths.SESSION_TURNS)
async def get_turns(
    session_id: Id,
    request: Request,
    caller: CallerDep,
    service: ServiceDep,
    from_seq: Annotated[int, Query(ge=1, le=2**31 - 1)] = 1,
    limit: PageLimit = 100,
    payload: bool = False,
) -> TurnPage:
    """Return the verbatim turns of a session, oldest first."""
    page = browse.list_turns(service, caller, session_id, from_seq, limit, payload=payload)
    return await unless_gone(request, page)


@router.get(paths.SESSION_DIGESTS)
async def get_digests(
    session_id: Id,
    request: Request,
    caller: CallerDep,
    service: ServiceDep,
    cursor: Cursor | None = None,
    limit: PageLimit = 100,
) -> DigestPage:
    """Return the versions of a session's digest, newest first."""
    return await unless_gone(request, browse.list_digests(service, caller, session_id, cursor, limit))


@router.get(paths.SESSION_DIGEST)
async def get_digest(session_id: Id, version: Version, caller: CallerDep, service: ServiceDep) -> Digest:
    """Return one version of a session's digest."""
    return await browse.get_digest(service, caller, session_id, version)


@router.get(paths.SESSION_STATUS)
async def get_status(session_id: Id, caller: CallerDep, service: ServiceDep) -> SessionStatus:
    """Return how far the consolidation of a session has come."""
    return await browse.session_status(service, caller, session_id)


@router.post(paths.SESSION_END, dependencies=LONG)
async def post_end(
    session_id: Id,
    caller: CallerDep,
    service: ServiceDep,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
) -> SessionStatus:
    """Consolidate the turns so far. With `wait` (seconds), answer when that is done or the time is over."""
    return await end_session(service, caller, session_id, wait)


@router.post(paths.ITEMS_BATCH, dependencies=LONG)
async def post_items(body: ItemsRequest, caller: CallerDep, service: ServiceDep) -> ItemsResponse:
    """Run operations on the items of a framework's store, all or none."""
    return await run_items(service, caller, body)


@router.post(paths.THREADS_QUERY)
async def post_thread_query(body: QueryCheckpointsRequest, caller: CallerDep, service: ServiceDep) -> CheckpointPage:
    """Return checkpoints with their values and pending writes, newest first."""
    return await threads.query(service, caller, body)


@router.post(paths.THREADS_PRUNE, dependencies=LONG)
async def post_thread_prune(body: PruneThreadsRequest, caller: CallerDep, service: ServiceDep) -> ThreadCounts:
    """Delete some threads, or all of their checkpoints but the newest of each namespace."""
    return await threads.prune(service, caller, body)


@router.post(paths.THREADS_DELETE_RUNS, dependencies=LONG)
async def post_delete_runs(body: DeleteRunsRequest, caller: CallerDep, service: ServiceDep) -> ThreadCounts:
    """Delete the checkpoints of some runs."""
    return await threads.delete_runs(service, caller, body)


@router.post(paths.THREAD_CHECKPOINTS)
async def post_checkpoint(thread_id: Id, body: PutCheckpointRequest, caller: CallerDep, service: ServiceDep) -> Stored:
    """Store one checkpoint and the new values of its channels."""
    return await threads.put_checkpoint(service, caller, thread_id, body)


@router.post(paths.THREAD_WRITES)
async def post_writes(thread_id: Id, body: PutWritesRequest, caller: CallerDep, service: ServiceDep) -> Stored:
    """Store the writes of one task, before or after their checkpoint."""
    return await threads.put_writes(service, caller, thread_id, body)


@router.post(paths.THREAD_HISTORY)
async def post_history(
    thread_id: Id, body: ChannelHistoryRequest, caller: CallerDep, service: ServiceDep
) -> ChannelHistories:
    """Return what the ancestors of a checkpoint wrote to some channels."""
    return await threads.history(service, caller, thread_id, body)


@router.post(paths.THREAD_COPY, dependencies=LONG)
async def post_thread_copy(
    thread_id: Id, body: CopyThreadRequest, caller: CallerDep, service: ServiceDep
) -> ThreadCounts:
    """Copy the whole history of a thread under another id."""
    return await threads.copy(service, caller, thread_id, body)


@router.delete(paths.THREAD, dependencies=LONG)
async def remove_thread(
    thread_id: Id, caller: CallerDep, service: ServiceDep, scope: DataScope = "user"
) -> ThreadCounts:
    """Delete a thread. A run that still uses it cannot write to it any more."""
    return await threads.delete(service, caller, thread_id, scope)


@router.get(paths.WHOAMI)
async def get_whoami(caller: CallerDep, service: ServiceDep) -> WhoAmI:
    """Return who the caller is and what it may do."""
    return whoami(service, caller)
