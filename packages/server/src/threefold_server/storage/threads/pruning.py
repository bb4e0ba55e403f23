"""The pruning of threads: which checkpoints nothing needs any more, and their deletion with writes and values."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from uuid import UUID

from sqlalchemy import Connection, and_, delete, select, update

from threefold_server.rules.access import Holder
from threefold_server.storage.engine.tables import checkpoint_blobs, checkpoint_writes, checkpoints, threads
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.threads.threads import Thread, blob_key, lock, namespace_key, of_holder, parents_of

ROOT = namespace_key("")
DELTA = "counters_since_delta_snapshot"
"""A name in the metadata of checkpoints whose values are computed from the writes of their ancestors, which are
therefore needed."""
AT_ONCE = 500
_NEEDED = ("place", "ns", "checkpoint_id", "metadata", "versions", "created_at")

Dropped = Mapping[UUID, set[str]]
"""The ids of the checkpoints to delete, by namespace key."""


def drop_old(connection: Connection, thread: Thread, keep: int | None, before: int | None) -> int:
    """Delete checkpoints of a thread and return their number.

    Args:
        keep: Keep this number of the newest checkpoints in each namespace; None: all.
        before: Delete checkpoints created before this time (microseconds), except the newest of each namespace.
    """
    rows = _read(connection, thread)
    return _drop(connection, thread, rows, surplus(rows, keep, before))


def drop_runs(connection: Connection, holder: Holder, run_ids: Sequence[str]) -> tuple[int, int]:
    """Delete the checkpoints of runs; return the number of affected threads and of deleted checkpoints."""
    of_runs = and_(checkpoints.c.owner == holder.owner, checkpoints.c.run_id.in_(run_ids))
    within = threads.c.thread.in_(select(checkpoints.c.thread).where(of_runs))
    dropped = [
        _drop(connection, thread, _read(connection, thread), _of_runs(connection, thread, run_ids))
        for thread in lock(connection, and_(of_holder(holder), within))
    ]
    return len(dropped), sum(dropped)


def surplus(rows: Iterable[AnyRow], keep: int | None, before: int | None) -> Dropped:
    """Return the checkpoints that can be deleted. The arguments are those of `drop_old`; rows come newest first.

    Checkpoints that a subgraph stored in one call are deleted with the root checkpoint that made the call.
    """
    by_namespace: dict[UUID, list[AnyRow]] = defaultdict(list)
    for row in rows:
        by_namespace[row.place].append(row)
    dropped = {namespace: _superseded(found, keep, before) for namespace, found in by_namespace.items()}
    kept_roots = {row.checkpoint_id for row in by_namespace.get(ROOT, [])} - dropped.get(ROOT, set())
    for namespace, found in by_namespace.items():
        if ":" in found[0].ns:
            dropped[namespace] |= {row.checkpoint_id for row in found if _is_orphan(row, kept_roots)}
    return {namespace: ids for namespace, ids in dropped.items() if ids}


def _superseded(rows: Sequence[AnyRow], keep: int | None, before: int | None) -> set[str]:
    if any(json.loads(row.metadata).get(DELTA) for row in rows):
        return set()
    beyond = {row.checkpoint_id for row in rows[keep:]} if keep is not None else set[str]()
    old = {row.checkpoint_id for row in islice(rows, 1, None) if before is not None and row.created_at < before}
    return beyond | old


def _is_orphan(row: AnyRow, kept_roots: set[str]) -> bool:
    """Return whether the root checkpoint was deleted. A root id newer than all stored ones has not arrived yet."""
    root = parents_of(row.metadata).get("")
    return root is not None and bool(kept_roots) and root not in kept_roots and root < max(kept_roots)


def _read(connection: Connection, thread: Thread) -> Sequence[AnyRow]:
    columns = [checkpoints.c[name] for name in _NEEDED]
    newest_first = checkpoints.c.checkpoint_id.desc()
    return connection.execute(select(*columns).where(thread.rows(checkpoints)).order_by(newest_first)).all()


def _of_runs(connection: Connection, thread: Thread, run_ids: Sequence[str]) -> Dropped:
    statement = select(checkpoints.c.place, checkpoints.c.checkpoint_id)
    found: dict[UUID, set[str]] = defaultdict(set)
    for row in connection.execute(statement.where(thread.rows(checkpoints), checkpoints.c.run_id.in_(run_ids))):
        found[row.place].add(row.checkpoint_id)
    return found


def _drop(connection: Connection, thread: Thread, rows: Sequence[AnyRow], dropped: Dropped) -> int:
    """Delete checkpoints with their writes, and the values that no other checkpoint of their namespace needs."""
    for namespace, ids in dropped.items():
        needed = {
            blob_key(*item)
            for row in rows
            if row.place == namespace and row.checkpoint_id not in ids
            for item in json.loads(row.versions).items()
        }
        _delete_checkpoints(connection, thread, namespace, sorted(ids))
        _delete_values(connection, thread, namespace, needed)
    return sum(map(len, dropped.values()))


def _delete_checkpoints(connection: Connection, thread: Thread, namespace: UUID, ids: Sequence[str]) -> None:
    in_namespace = and_(thread.rows(checkpoints), checkpoints.c.place == namespace)
    for start in range(0, len(ids), AT_ONCE):
        batch = ids[start : start + AT_ONCE]
        unlink = update(checkpoints).where(in_namespace, checkpoints.c.parent_id.in_(batch)).values(parent_id=None)
        connection.execute(unlink)
        connection.execute(delete(checkpoints).where(in_namespace, checkpoints.c.checkpoint_id.in_(batch)))
        written = and_(thread.rows(checkpoint_writes), checkpoint_writes.c.place == namespace)
        connection.execute(delete(checkpoint_writes).where(written, checkpoint_writes.c.checkpoint_id.in_(batch)))


def _delete_values(connection: Connection, thread: Thread, namespace: UUID, needed: set[UUID]) -> None:
    in_namespace = and_(thread.rows(checkpoint_blobs), checkpoint_blobs.c.place == namespace)
    stored = connection.execute(select(checkpoint_blobs.c.blob).where(in_namespace)).scalars()
    unneeded = sorted(set(stored) - needed)
    for start in range(0, len(unneeded), AT_ONCE):
        batch = unneeded[start : start + AT_ONCE]
        connection.execute(delete(checkpoint_blobs).where(in_namespace, checkpoint_blobs.c.blob.in_(batch)))
