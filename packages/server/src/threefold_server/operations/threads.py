"""Threads of graphs: one transaction per call, and no look into what they hold."""

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
from threefold_server.storage.erasure import erase, erasures
from threefold_server.storage.sessions import sessions
from threefold_server.storage.threads import checkpoints, pruning
from threefold_server.storage.threads import threads as storage
from threefold_server.storage.threads.checkpoints import Position


async def put_checkpoint(
    service: Service, principal: Principal, thread_id: str, request: PutCheckpointRequest
) -> Stored:
    """Store a checkpoint and new values of its channels; with limits, drop what is beyond them."""
    named = [(request.ns, request.checkpoint_id), *storage.parents_of(request.metadata).items()]
    if request.parent_id is not None:
        named.append((request.ns, request.parent_id))
    visit = _Visit.of(service, principal, thread_id, request.scope)
    retained = request.keep_last is not None or request.max_age is not None

    def run(connection: Connection) -> Stored:
        visit.write(connection, named, lambda: storage.put_checkpoint(connection, visit.thread, request, visit.now))
        return Stored(stored=1, dropped=_retire(connection, visit, request) if retained else 0)

    try:
        return await service.database.write(visit.holder.owner, run, pipelined=not retained)
    except Conflict:
        # What builds on it is as late as it is, and names nothing but it.
        refuse = partial(erase.refuse_late, thread=visit.thread, ns=request.ns, checkpoint_id=request.checkpoint_id)
        await service.database.write(visit.holder.owner, partial(refuse, now=visit.now))
        raise


async def put_writes(service: Service, principal: Principal, thread_id: str, request: PutWritesRequest) -> Stored:
    """Store the writes of a task, whether or not their checkpoint is there yet."""
    visit = _Visit.of(service, principal, thread_id, request.scope)
    named = [(request.ns, request.checkpoint_id)]

    def run(connection: Connection) -> Stored:
        visit.write(connection, named, lambda: storage.put_writes(connection, visit.thread, request))
        return Stored(stored=len(request.writes))

    return await service.database.write(visit.holder.owner, run, pipelined=True)


async def query(service: Service, principal: Principal, request: QueryCheckpointsRequest) -> CheckpointPage:
    """One page of checkpoints."""
    holder = thread_holder(principal, request.scope, names_threads=request.thread_id is not None)
    after: Position | None = None
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
    """What the ancestors of a checkpoint wrote to some channels."""
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
    """Copy a thread's whole history under another id. A thread that is not there is copied to nothing."""
    source = _Visit.of(service, principal, thread_id, request.scope)
    target = _Visit.of(service, principal, request.target, request.scope)

    def run(connection: Connection) -> ThreadCounts:
        held = storage.lock(connection, storage.named(source.holder, [thread_id]))
        if source.thread == target.thread or not held:
            return ThreadCounts(threads=0, checkpoints=0)
        target.open(connection)
        return ThreadCounts(threads=1, checkpoints=storage.copy(connection, source.thread, target.thread))

    return await service.database.write(source.holder.owner, run)


async def prune(service: Service, principal: Principal, request: PruneThreadsRequest) -> ThreadCounts:
    """Keep the newest checkpoint of each namespace, or nothing."""
    if request.strategy == "delete":
        return await _delete(service, principal, request.scope, request.thread_ids)
    holder = thread_holder(principal, request.scope, names_threads=True)

    def run(connection: Connection) -> ThreadCounts:
        dropped = [
            pruning.drop_old(connection, thread, 1, None)
            for thread in storage.lock(connection, storage.named(holder, request.thread_ids))
        ]
        return ThreadCounts(threads=len(dropped), checkpoints=sum(dropped))

    return await service.database.write(holder.owner, run)


async def delete_runs(service: Service, principal: Principal, request: DeleteRunsRequest) -> ThreadCounts:
    """Delete the checkpoints whose metadata names one of the runs."""
    holder = thread_holder(principal, request.scope, names_threads=False)
    drop = partial(pruning.drop_runs, holder=holder, run_ids=request.run_ids)
    threads, dropped = await service.database.write(holder.owner, drop)
    return ThreadCounts(threads=threads, checkpoints=dropped)


async def delete(service: Service, principal: Principal, thread_id: str, scope: DataScope) -> ThreadCounts:
    """Delete a thread. What a run that is still at it writes afterwards is refused."""
    return await _delete(service, principal, scope, [thread_id])


async def _delete(service: Service, principal: Principal, scope: DataScope, ids: Collection[str]) -> ThreadCounts:
    holder = thread_holder(principal, scope, names_threads=True)
    now = service.clock()

    def run(connection: Connection) -> ThreadCounts:
        counts = erase.erase_threads(connection, holder.owner, storage.named(holder, ids), now)
        erasures.purge_needed(connection, now)
        return ThreadCounts(threads=counts["threads"], checkpoints=counts["checkpoints"])

    counts = await service.database.write(holder.owner, run)
    await service.database.purge()
    return counts


def _cursor(position: Position) -> str:
    checkpoint_id, place, thread = position
    return encode_cursor((checkpoint_id, place.hex, thread.hex))


def _retire(connection: Connection, visit: _Visit, request: PutCheckpointRequest) -> int:
    before = None if request.max_age is None else visit.now - int(request.max_age * MICROS)
    return pruning.drop_old(connection, visit.thread, request.keep_last, before)


@dataclass(frozen=True)
class _Visit:
    """One writing call to one thread."""

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
        """Make sure that the thread is there, and keep a deletion waiting."""
        sessions.ensure_owner(connection, self.holder.principal, self.now)
        storage.touch(connection, self.holder, self.thread, self.thread_id, self.now)

    def write(self, connection: Connection, named: Iterable[tuple[str, str]], store: Callable[[], None]) -> None:
        """Store something that names checkpoints, unless one of them was deleted with its thread."""
        self.open(connection)
        any_erased = erasures.send_any_erased(connection, self.thread.owner)
        store()  # on Postgres all of it is one round trip; a refusal takes it back
        if any_erased() and storage.erased_among(connection, self.thread, named, self.now):
            raise Conflict(
                "this thread was deleted while a run was at it; what the run stores now is refused, start a new run",
                {"thread_id": self.thread_id},
            )
