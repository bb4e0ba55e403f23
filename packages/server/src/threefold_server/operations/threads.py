"""Threads of LangGraph. Each call is one transaction and does not interpret the stored values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Self

from threefold.contract import (
    ChannelHistories,
    ChannelHistoryRequest,
    CheckpointPage,
    CopyThreadRequest,
    DeleteRunsRequest,
    PruneThreadsRequest,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
    Stored,
    ThreadCounts,
)
from threefold.contract.common import DataScope
from threefold.errors import Conflict
from threefold_server.clock import MICROS
from threefold_server.rules.access import Holder, Principal, thread_holder, thread_key
from threefold_server.rules.paging import decode_cursor, encode_cursor
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.erasure import erase, erased_ids, forget_records
from threefold_server.storage.sessions import sessions
from threefold_server.storage.threads import checkpoints, pruning
from threefold_server.storage.threads import threads as storage
from threefold_server.storage.threads.checkpoints import CheckpointPosition


async def put_checkpoint(
    service: Service, principal: Principal, thread_id: str, request: PutCheckpointRequest
) -> Stored:
    """Store a checkpoint and the new values of its channels. With limits, drop the checkpoints beyond them.

    Raises:
        Conflict: The thread was deleted while its run was going on.
    """
    named = [(request.ns, request.checkpoint_id), *storage.parents_of(request.metadata).items()]
    if request.parent_id is not None:
        named.append((request.ns, request.parent_id))
    call = _ThreadCall.of(service, principal, thread_id, request.scope)
    has_limits = request.keep_last is not None or request.max_age is not None

    def run(connection: Connection) -> Stored:
        call.write(connection, named, lambda: storage.put_checkpoint(connection, call.thread, request, call.now))
        return Stored(stored=1, dropped=_drop_old(connection, call, request) if has_limits else 0)

    try:
        return await service.database.write(call.holder.owner, run, pipelined=not has_limits)
    except Conflict:
        # Later checkpoints of this run name only this one as parent, so mark it as erased too.
        refuse = partial(
            erase.refuse_late_checkpoint, thread=call.thread, ns=request.ns, checkpoint_id=request.checkpoint_id
        )
        await service.database.write(call.holder.owner, partial(refuse, now=call.now))
        raise


async def put_writes(service: Service, principal: Principal, thread_id: str, request: PutWritesRequest) -> Stored:
    """Store the writes of a task, even before their checkpoint."""
    call = _ThreadCall.of(service, principal, thread_id, request.scope)
    named = [(request.ns, request.checkpoint_id)]

    def run(connection: Connection) -> Stored:
        call.write(connection, named, lambda: storage.put_writes(connection, call.thread, request))
        return Stored(stored=len(request.writes))

    return await service.database.write(call.holder.owner, run, pipelined=True)


async def query(service: Service, principal: Principal, request: QueryCheckpointsRequest) -> CheckpointPage:
    """Return a page of checkpoints."""
    holder = thread_holder(principal, request.scope, names_threads=request.thread_id is not None)
    after: CheckpointPosition | None = None
    if request.cursor is not None:
        after = checkpoints.checked_position(decode_cursor(request.cursor, (str, str, str)))
    read = partial(checkpoints.page, holder=holder, query=request, after=after)
    found, blobs, following = await service.database.read(holder.owner, read)
    return CheckpointPage.model_construct(
        checkpoints=found, blobs=blobs, next_cursor=None if following is None else _cursor(following)
    )


async def history(
    service: Service, principal: Principal, thread_id: str, request: ChannelHistoryRequest
) -> ChannelHistories:
    """Return what the ancestors of a checkpoint wrote to some channels."""
    holder = thread_holder(principal, request.scope, names_threads=True)
    thread = storage.Thread(holder.owner, thread_key(holder, thread_id))
    read = partial(
        checkpoints.channel_history,
        thread=thread,
        ns=request.ns,
        checkpoint_id=request.checkpoint_id,
        channels=request.channels,
    )
    return ChannelHistories(channels=await service.database.read(holder.owner, read))


async def copy(service: Service, principal: Principal, thread_id: str, request: CopyThreadRequest) -> ThreadCounts:
    """Copy a thread's whole history under another id. Nothing is copied if the thread does not exist."""
    source = _ThreadCall.of(service, principal, thread_id, request.scope)
    target = _ThreadCall.of(service, principal, request.target, request.scope)

    def run(connection: Connection) -> ThreadCounts:
        existing = storage.lock(connection, storage.with_ids(source.holder, [thread_id]))
        if source.thread == target.thread or not existing:
            return ThreadCounts(threads=0, checkpoints=0)
        target.open(connection)
        return ThreadCounts(threads=1, checkpoints=storage.copy(connection, source.thread, target.thread))

    return await service.database.write(source.holder.owner, run)


async def prune(service: Service, principal: Principal, request: PruneThreadsRequest) -> ThreadCounts:
    """Delete threads, or all of their checkpoints but the newest of each namespace."""
    if request.strategy == "delete":
        return await _delete(service, principal, request.scope, request.thread_ids)
    holder = thread_holder(principal, request.scope, names_threads=True)
    now = service.clock()

    def run(connection: Connection) -> ThreadCounts:
        dropped = [
            pruning.drop_old(connection, thread, 1, None)
            for thread in storage.lock(connection, storage.with_ids(holder, request.thread_ids))
        ]
        checkpoints = forget_records.note_deleted(connection, sum(dropped), now)
        return ThreadCounts(threads=len(dropped), checkpoints=checkpoints)

    return await service.database.write(holder.owner, run)


async def delete_runs(service: Service, principal: Principal, request: DeleteRunsRequest) -> ThreadCounts:
    """Delete the checkpoints whose metadata names one of the runs."""
    holder = thread_holder(principal, request.scope, names_threads=False)
    now = service.clock()

    def run(connection: Connection) -> ThreadCounts:
        threads, dropped = pruning.drop_runs(connection, holder, request.run_ids)
        return ThreadCounts(threads=threads, checkpoints=forget_records.note_deleted(connection, dropped, now))

    return await service.database.write(holder.owner, run)


async def delete(service: Service, principal: Principal, thread_id: str, scope: DataScope) -> ThreadCounts:
    """Delete a thread. Later writes of a run that still uses it are refused."""
    return await _delete(service, principal, scope, [thread_id])


async def _delete(service: Service, principal: Principal, scope: DataScope, ids: Collection[str]) -> ThreadCounts:
    holder = thread_holder(principal, scope, names_threads=True)
    now = service.clock()

    def run(connection: Connection) -> ThreadCounts:
        counts = erase.erase_threads(connection, holder.owner, storage.with_ids(holder, ids), now)
        forget_records.require_purge(connection, now)
        return ThreadCounts(threads=counts["threads"], checkpoints=counts["checkpoints"])

    counts = await service.database.write(holder.owner, run)
    await service.database.purge()
    return counts


def _cursor(position: CheckpointPosition) -> str:
    checkpoint_id, namespace, thread = position
    return encode_cursor((checkpoint_id, namespace.hex, thread.hex))


def _drop_old(connection: Connection, call: _ThreadCall, request: PutCheckpointRequest) -> int:
    before = None if request.max_age is None else call.now - int(request.max_age * MICROS)
    return pruning.drop_old(connection, call.thread, request.keep_last, before)


@dataclass(frozen=True)
class _ThreadCall:
    """One call that writes to one thread."""

    holder: Holder
    thread: storage.Thread
    thread_id: str
    now: int

    @classmethod
    def of(cls, service: Service, principal: Principal, thread_id: str, scope: DataScope) -> Self:
        holder = thread_holder(principal, scope, names_threads=True)
        thread = storage.Thread(holder.owner, thread_key(holder, thread_id))
        return cls(holder, thread, thread_id, service.clock())

    def open(self, connection: Connection) -> None:
        """Create the thread if it does not exist, and lock it against deletion."""
        sessions.ensure_owner(connection, self.holder.principal, self.now)
        storage.touch(connection, self.holder, self.thread, self.thread_id, self.now)

    def write(self, connection: Connection, named: Iterable[tuple[str, str]], store: Callable[[], None]) -> None:
        """Run `store`. Raise Conflict if one of the named checkpoints was deleted with its thread."""
        self.open(connection)
        any_erased = erased_ids.send_any_erased(connection, self.thread.owner)
        store()  # before the check, so that Postgres needs one round trip; a Conflict rolls it back
        if any_erased() and storage.erased_among(connection, self.thread, named, self.now):
            raise Conflict(
                "the thread was deleted during this run, so nothing was stored; start a new run",
                {"thread_id": self.thread_id},
            )
