"""Dropping checkpoints that nothing needs any more: which they are, and what goes with them."""

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
from threefold_server.storage.threads.threads import Thread, blob_key, held_by, lock, parents_of, place_key

ROOT = place_key("")
DELTA = "counters_since_delta_snapshot"
"""Metadata that marks a channel whose value is worked out from what its ancestors wrote: they are needed."""
AT_ONCE = 500
_NEEDED = ("place", "ns", "checkpoint_id", "metadata", "versions", "created_at")

Dropped = Mapping[UUID, set[str]]
"""Ids of checkpoints by place."""


def drop_old(connection: Connection, thread: Thread, keep: int | None, before: int | None) -> int:
    """Drop all but the `keep` newest checkpoints of each namespace, and superseded ones made before a moment."""
    rows = _read(connection, thread)
    return _drop(connection, thread, rows, surplus(rows, keep, before))


def drop_runs(connection: Connection, holder: Holder, run_ids: Sequence[str]) -> tuple[int, int]:
    """Drop the checkpoints of some runs; how many threads and checkpoints that were."""
    of_runs = and_(checkpoints.c.owner == holder.owner, checkpoints.c.run_id.in_(run_ids))
    within = threads.c.thread.in_(select(checkpoints.c.thread).where(of_runs))
    dropped = [
        _drop(connection, thread, _read(connection, thread), _of_runs(connection, thread, run_ids))
        for thread in lock(connection, and_(held_by(holder), within))
    ]
    return len(dropped), sum(dropped)


def surplus(rows: Iterable[AnyRow], keep: int | None, before: int | None) -> Dropped:
    """The checkpoints (newest first) that may go; the newest of a namespace never does by itself.

    What a subgraph stored under one call goes with the checkpoint of the root that made the call.
    """
    by_place: dict[UUID, list[AnyRow]] = defaultdict(list)
    for row in rows:
        by_place[row.place].append(row)
    dropped = {place: _superseded(found, keep, before) for place, found in by_place.items()}
    kept_roots = {row.checkpoint_id for row in by_place.get(ROOT, [])} - dropped.get(ROOT, set())
    for place, found in by_place.items():
        if ":" in found[0].ns:
            dropped[place] |= {row.checkpoint_id for row in found if _is_orphan(row, kept_roots)}
    return {place: ids for place, ids in dropped.items() if ids}


def _superseded(rows: Sequence[AnyRow], keep: int | None, before: int | None) -> set[str]:
    if any(json.loads(row.metadata).get(DELTA) for row in rows):
        return set()
    beyond = {row.checkpoint_id for row in rows[keep:]} if keep is not None else set[str]()
    old = {row.checkpoint_id for row in islice(rows, 1, None) if before is not None and row.created_at < before}
    return beyond | old


def _is_orphan(row: AnyRow, kept_roots: set[str]) -> bool:
    """True where the root's checkpoint is gone. One newer than all that are there has yet to arrive."""
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
    """Delete checkpoints with their writes, and the values that no other checkpoint of their namespace has."""
    for place, ids in dropped.items():
        needed = {
            blob_key(*item)
            for row in rows
            if row.place == place and row.checkpoint_id not in ids
            for item in json.loads(row.versions).items()
        }
        _delete_checkpoints(connection, thread, place, sorted(ids))
        _delete_values(connection, thread, place, needed)
    return sum(map(len, dropped.values()))


def _delete_checkpoints(connection: Connection, thread: Thread, place: UUID, ids: Sequence[str]) -> None:
    here = and_(thread.rows(checkpoints), checkpoints.c.place == place)
    for start in range(0, len(ids), AT_ONCE):
        batch = ids[start : start + AT_ONCE]
        orphaned = update(checkpoints).where(here, checkpoints.c.parent_id.in_(batch)).values(parent_id=None)
        connection.execute(orphaned)
        connection.execute(delete(checkpoints).where(here, checkpoints.c.checkpoint_id.in_(batch)))
        written = and_(thread.rows(checkpoint_writes), checkpoint_writes.c.place == place)
        connection.execute(delete(checkpoint_writes).where(written, checkpoint_writes.c.checkpoint_id.in_(batch)))


def _delete_values(connection: Connection, thread: Thread, place: UUID, needed: set[UUID]) -> None:
    here = and_(thread.rows(checkpoint_blobs), checkpoint_blobs.c.place == place)
    stored = connection.execute(select(checkpoint_blobs.c.blob).where(here)).scalars()
    unneeded = sorted(set(stored) - needed)
    for start in range(0, len(unneeded), AT_ONCE):
        batch = unneeded[start : start + AT_ONCE]
        connection.execute(delete(checkpoint_blobs).where(here, checkpoint_blobs.c.blob.in_(batch)))
