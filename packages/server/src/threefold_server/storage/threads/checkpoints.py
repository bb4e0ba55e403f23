"""Reads of threads: pages of checkpoints with their values and writes, and the history of channels."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, bindparam, literal, select, true, tuple_

from threefold.contract import Blob, ChannelHistory, QueryCheckpointsRequest, StoredCheckpoint, Write
from threefold_server.rules.access import Holder, thread_key
from threefold_server.rules.paging import bad_cursor
from threefold_server.storage.engine.prepared import PreparedAmong
from threefold_server.storage.engine.tables import checkpoint_blobs, checkpoint_writes, checkpoints, threads
from threefold_server.storage.engine.types import AnyRow, parse_key
from threefold_server.storage.threads.threads import Thread, blob_key, namespace_key, of_holder

PAGE_BYTES = 8 * 2**20
"""Size of its values (bytes) after which a page ends. It always has at least one checkpoint."""
SCANNED_AT_ONCE = 500
ANCESTORS_AT_ONCE = 100

_ANCESTOR_COLUMNS = ("thread", "place", "checkpoint_id", "parent_id", "versions", "ns")

CheckpointPosition = tuple[str, UUID, UUID]
"""A position in the order of checkpoints: id, namespace key and thread, descending, so the newest comes first."""


class CheckpointKey(NamedTuple):
    """The key of a checkpoint among those of one owner. `place` is the key of its namespace."""

    thread: UUID
    place: UUID
    checkpoint_id: str


def page(
    connection: Connection, holder: Holder, query: QueryCheckpointsRequest, after: CheckpointPosition | None
) -> tuple[list[StoredCheckpoint], list[Blob], CheckpointPosition | None]:
    """Return a page of checkpoints, the values that they need, and the position of the next page, if there is one."""
    found = list(islice(_matching(connection, holder, query, after), query.limit + 1))
    rows, blobs = _with_values(connection, holder.owner, found[: query.limit])
    writes = _writes(connection, holder.owner, [_key(row) for row in rows])
    last = rows[-1] if rows and len(rows) < len(found) else None
    return (
        [_to_contract(row, writes[_key(row)]) for row in rows],
        blobs,
        None if last is None else (last.checkpoint_id, last.place, last.thread),
    )


def checked_position(parts: Sequence[str]) -> CheckpointPosition:
    """Return the position of a cursor, or raise InvalidRequest if its keys are malformed."""
    checkpoint_id, *keys = parts
    place, thread = map(parse_key, keys)
    if place is None or thread is None:
        raise bad_cursor()
    return checkpoint_id, place, thread


def channel_history(
    connection: Connection, thread: Thread, ns: str, checkpoint_id: str | None, channels: Sequence[str]
) -> dict[str, ChannelHistory]:
    """Return what the ancestors of a checkpoint wrote to each channel, back to the nearest one with a stored value.

    The pending writes of that ancestor are included, as they came after its value.
    """
    collected: dict[str, list[Write]] = {channel: [] for channel in channels}
    seeds: dict[str, Blob] = {}
    for ancestors in _ancestors(connection, thread, namespace_key(ns), checkpoint_id):
        keys = [_key(row) for row in ancestors]
        stored = _stored(connection, thread.owner, ancestors, channels)
        writes = _writes(connection, thread.owner, keys)
        for key in keys:
            for write in reversed(writes[key]):
                if write.channel in collected and write.channel not in seeds:
                    collected[write.channel].append(write)
            seeds = {**stored[key], **seeds}
        if seeds.keys() >= collected.keys():
            break
    return {
        channel: ChannelHistory(writes=found[::-1], seed=seeds.get(channel)) for channel, found in collected.items()
    }


def _matching(
    connection: Connection, holder: Holder, query: QueryCheckpointsRequest, after: CheckpointPosition | None
) -> Iterator[AnyRow]:
    """Yield the checkpoints of a query, newest first. The filter compares JSON values of the metadata, not texts."""
    at_once = SCANNED_AT_ONCE if query.filter else query.limit + 1
    columns = (checkpoints.c.checkpoint_id, checkpoints.c.place, checkpoints.c.thread)
    types = [column.type for column in columns]
    statement = (
        select(checkpoints, threads.c.thread_id)
        .join_from(checkpoints, threads, _same_thread())
        .where(of_holder(holder), _conditions(holder, query))
        .order_by(*(column.desc() for column in columns))
        .limit(at_once)
    )
    while True:
        position = true() if after is None else tuple_(*columns) < tuple_(*after, types=types)
        rows = connection.execute(statement.where(position)).all()
        yield from (row for row in rows if _passes(json.loads(row.metadata), query.filter))
        if len(rows) < at_once:
            return
        after = (rows[-1].checkpoint_id, rows[-1].place, rows[-1].thread)


def _same_thread() -> ColumnElement[bool]:
    return and_(threads.c.owner == checkpoints.c.owner, threads.c.thread == checkpoints.c.thread)


def _conditions(holder: Holder, query: QueryCheckpointsRequest) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [true()]
    if query.thread_id is not None:
        conditions.append(Thread(holder.owner, thread_key(holder, query.thread_id)).rows(checkpoints))
    if query.ns is not None:
        conditions.append(checkpoints.c.place == namespace_key(query.ns))
    if query.checkpoint_id is not None:
        conditions.append(checkpoints.c.checkpoint_id == query.checkpoint_id)
    if query.before is not None:
        conditions.append(checkpoints.c.checkpoint_id < query.before)
    return and_(*conditions)


def _passes(metadata: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(name in metadata and metadata[name] == value for name, value in values.items())


def _with_values(connection: Connection, owner: UUID, rows: Sequence[AnyRow]) -> tuple[list[AnyRow], list[Blob]]:
    """Return the rows that fit on a page, and each value that they need once."""
    fitting: list[AnyRow] = []
    blobs: dict[tuple[UUID, UUID, UUID], Blob] = {}
    size = 0
    for row in rows:
        if fitting and size > PAGE_BYTES:
            break
        keys = [(row.thread, row.place, blob_key(*item)) for item in json.loads(row.versions).items()]
        for found in _BLOBS.all(connection, [key for key in keys if key not in blobs], owner=owner):
            blobs[found.thread, found.place, found.blob] = _to_blob(found, row.thread_id, row.ns)
            size += len(found.data)
        fitting.append(row)
    return fitting, list(blobs.values())


def _writes(connection: Connection, owner: UUID, keys: Sequence[CheckpointKey]) -> dict[CheckpointKey, list[Write]]:
    """Return the pending writes of checkpoints, in the order in which a run applies them."""
    rows = sorted(_WRITES.all(connection, keys, owner=owner), key=lambda row: (row.task_path, row.task_id, row.idx))
    found: dict[CheckpointKey, list[Write]] = defaultdict(list)
    for row in rows:
        write = Write.model_construct(task_id=row.task_id, channel=row.channel, type=row.type, data=bytes(row.data))
        found[_key(row)].append(write)
    return found


def _ancestors(
    connection: Connection, thread: Thread, namespace: UUID, checkpoint_id: str | None
) -> Iterator[Sequence[AnyRow]]:
    """Yield the ancestors of a checkpoint (None: the newest one) in batches, parents first."""
    in_namespace = and_(thread.rows(checkpoints), checkpoints.c.place == namespace)
    chosen = select(checkpoints.c.checkpoint_id, checkpoints.c.parent_id).where(in_namespace)
    if checkpoint_id is not None:
        chosen = chosen.where(checkpoints.c.checkpoint_id <= checkpoint_id)
    newest = connection.execute(chosen.order_by(checkpoints.c.checkpoint_id.desc()).limit(1)).one_or_none()
    if newest is None or (checkpoint_id is not None and newest.checkpoint_id != checkpoint_id):
        return
    seen: set[str] = {newest.checkpoint_id}
    parent: str | None = newest.parent_id
    while parent is not None and parent not in seen:
        rows = _lineage(connection, in_namespace, parent)
        seen.update(row.checkpoint_id for row in rows)
        yield rows
        parent = rows[-1].parent_id if rows else None


def _lineage(connection: Connection, in_namespace: ColumnElement[bool], first: str) -> Sequence[AnyRow]:
    """Return a checkpoint and its next ancestors, `ANCESTORS_AT_ONCE` in all."""
    columns: list[Any] = [checkpoints.c[name] for name in _ANCESTOR_COLUMNS]
    line: Any = select(*columns, literal(0).label("depth")).where(in_namespace, checkpoints.c.checkpoint_id == first)
    line = line.cte("line", recursive=True)
    more = and_(checkpoints.c.checkpoint_id == line.c.parent_id, line.c.depth < ANCESTORS_AT_ONCE - 1)
    line = line.union_all(select(*columns, line.c.depth + 1).where(in_namespace, more))
    return connection.execute(select(line).order_by(line.c.depth)).all()


def _stored(
    connection: Connection, owner: UUID, rows: Sequence[AnyRow], channels: Sequence[str]
) -> dict[CheckpointKey, dict[str, Blob]]:
    """Return the stored values of the channels at each checkpoint."""
    needed = {
        (row.thread, row.place, blob_key(channel, versions[channel])): None
        for row in rows
        for versions in (json.loads(row.versions),)
        for channel in channels
        if channel in versions
    }
    found = {(row.thread, row.place, row.blob): row for row in _BLOBS.all(connection, list(needed), owner=owner)}
    stored: dict[CheckpointKey, dict[str, Blob]] = {_key(row): {} for row in rows}
    for row in rows:
        for channel, version in json.loads(row.versions).items():
            blob = found.get((row.thread, row.place, blob_key(channel, version)))
            if blob is not None:
                stored[_key(row)][channel] = _to_blob(blob, "", row.ns)
    return stored


def _key(row: AnyRow) -> CheckpointKey:
    return CheckpointKey(row.thread, row.place, row.checkpoint_id)


def _to_blob(row: AnyRow, thread_id: str, ns: str) -> Blob:
    return Blob.model_construct(
        thread_id=thread_id,
        ns=ns,
        channel=row.channel,
        version=json.loads(row.version),
        type=row.type,
        data=bytes(row.data),
    )


def _to_contract(row: AnyRow, writes: list[Write]) -> StoredCheckpoint:
    return StoredCheckpoint.model_construct(
        thread_id=row.thread_id,
        ns=row.ns,
        checkpoint_id=row.checkpoint_id,
        parent_id=row.parent_id,
        type=row.type,
        data=bytes(row.data),
        metadata=row.metadata,
        versions=json.loads(row.versions),
        writes=writes,
    )


_BLOBS = PreparedAmong(
    select(checkpoint_blobs).where(checkpoint_blobs.c.owner == bindparam("owner")),
    checkpoint_blobs.c.thread,
    checkpoint_blobs.c.place,
    checkpoint_blobs.c.blob,
)
_WRITES = PreparedAmong(
    select(checkpoint_writes).where(checkpoint_writes.c.owner == bindparam("owner")),
    checkpoint_writes.c.thread,
    checkpoint_writes.c.place,
    checkpoint_writes.c.checkpoint_id,
)
