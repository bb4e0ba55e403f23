"""Writes to threads: checkpoints, the values of their channels, and pending writes. Values are not decoded."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, func, literal, select

from threefold.contract import PutCheckpointRequest, PutWritesRequest
from threefold.contract.threads import Version
from threefold_server.rules.access import Holder, derive_key, thread_key
from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.statements import insert_for, insert_into
from threefold_server.storage.engine.tables import checkpoint_blobs, checkpoint_writes, checkpoints, threads
from threefold_server.storage.engine.types import Key
from threefold_server.storage.erasure import erased_ids

OF_A_THREAD = (checkpoints, checkpoint_blobs, checkpoint_writes)


@dataclass(frozen=True)
class Thread:
    """The key of one thread."""

    owner: UUID
    key: UUID

    def rows(self, table: Table) -> ColumnElement[bool]:
        """Return the condition for its rows in a table."""
        return and_(table.c.owner == self.owner, table.c.thread == self.key)

    def key_columns(self, ns: str) -> dict[str, UUID]:
        """Return the first columns of all keys in a namespace."""
        return {"owner": self.owner, "thread": self.key, "place": namespace_key(ns)}


def namespace_key(ns: str) -> UUID:
    """Return the key of a namespace. It is a hash, as a namespace may be too long for an index."""
    return derive_key("namespace", ns.encode())


def blob_key(channel: str, version: Version) -> UUID:
    """Return the key of a channel's value at one version."""
    return derive_key("blob", channel.encode(), describe(version).encode())


def describe(version: Version) -> str:
    """Return a version as text, with different texts for 1 and "1"."""
    return json.dumps(version)


def of_holder(holder: Holder) -> ColumnElement[bool]:
    """Return the condition for the threads of a user with an agent, or of an agent for all of its users."""
    own = and_(threads.c.owner == holder.owner, threads.c.agent == holder.agent)
    return and_(own, threads.c.for_all.is_(holder.for_all))


def touch(connection: Connection, holder: Holder, thread: Thread, thread_id: str, now: int) -> None:
    """Create the thread if it is missing, and lock its row, so that writers and a deletion wait for each other."""
    values = {"owner": thread.owner, "thread": thread.key, "agent": holder.agent, "for_all": holder.for_all}
    _TOUCH.run(connection, **values, thread_id=thread_id, created_at=now, updated_at=now)


def put_checkpoint(connection: Connection, thread: Thread, request: PutCheckpointRequest, now: int) -> None:
    """Store a checkpoint, replacing one with the same id, and those of its values that are not stored yet."""
    key = thread.key_columns(request.ns)
    run_id = json.loads(request.metadata).get("run_id")
    _PUT.run(
        connection,
        **key,
        **request.model_dump(include={"checkpoint_id", "ns", "parent_id", "type", "data", "metadata"}),
        versions=json.dumps(request.versions),
        run_id=run_id if isinstance(run_id, str) else None,
        created_at=now,
    )
    blobs = [
        {
            **key,
            "blob": blob_key(blob.channel, blob.version),
            "channel": blob.channel,
            "version": describe(blob.version),
            "type": blob.type,
            "data": blob.data,
        }
        for blob in request.blobs
    ]
    if blobs:
        _PUT_BLOB.run_many(connection, blobs)


def put_writes(connection: Connection, thread: Thread, request: PutWritesRequest) -> None:
    """Store the writes of a task. At one index the first write stays; at a negative index the last one replaces it."""
    task = {"checkpoint_id": request.checkpoint_id, "task_id": request.task_id, "task_path": request.task_path}
    key = {**thread.key_columns(request.ns), **task}
    for statement, is_special in ((_ADD_WRITE, False), (_REPLACE_WRITE, True)):
        rows = [{**key, **write.model_dump()} for write in request.writes if (write.idx < 0) == is_special]
        if rows:
            statement.run_many(connection, rows)


def copy(connection: Connection, source: Thread, target: Thread) -> int:
    """Copy the rows of a thread that the target does not have; return the number of checkpoints of the source.

    Marks of erased checkpoints are removed, so that the copy can be continued.
    """
    for table in OF_A_THREAD:
        columns = [column.name for column in table.c]
        chosen = select(*(literal(target.key, Key) if name == "thread" else table.c[name] for name in columns))
        statement = insert_into(connection, table).from_select(columns, chosen.where(source.rows(table)))
        connection.execute(statement.on_conflict_do_nothing())
    erased_ids.unmark_erased(connection, target.owner, target.key, checkpoint_marks(connection, target))
    count = select(func.count()).select_from(checkpoints).where(source.rows(checkpoints))
    return int(connection.execute(count).scalar_one())


def checkpoint_marks(connection: Connection, thread: Thread) -> set[str]:
    """Return the marks of all checkpoints of a thread, also of those that have only writes."""
    return {
        checkpoint_mark(row.place, row.checkpoint_id)
        for table in (checkpoints, checkpoint_writes)
        for row in connection.execute(select(table.c.place, table.c.checkpoint_id).where(thread.rows(table)).distinct())
    }


def checkpoint_mark(namespace: UUID, checkpoint_id: str) -> str:
    """Return the id of a checkpoint among the ids of erased turns. It starts with NUL, which turn ids cannot have."""
    return f"\0{namespace.hex}{checkpoint_id}"


def erased_among(connection: Connection, thread: Thread, ids: Iterable[tuple[str, str]], now: int) -> Collection[str]:
    """Return the marks of those pairs of namespace and checkpoint id that were erased recently."""
    marks = [checkpoint_mark(namespace_key(ns), checkpoint_id) for ns, checkpoint_id in ids]
    return erased_ids.erased_among(connection, thread.owner, thread.key, marks, now)


def with_ids(holder: Holder, thread_ids: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition for threads with these ids."""
    keys = [thread_key(holder, thread_id) for thread_id in thread_ids]
    return and_(of_holder(holder), threads.c.thread.in_(keys))


def lock(connection: Connection, condition: ColumnElement[bool]) -> list[Thread]:
    """Lock threads (a condition on `threads`) against writers and return them."""
    chosen = select(threads.c.owner, threads.c.thread).where(condition).order_by(threads.c.thread)
    return [Thread(row.owner, row.thread) for row in connection.execute(chosen.with_for_update())]


def parents_of(metadata: str) -> dict[str, str]:
    """Return the checkpoints of the outer namespaces in which a checkpoint was made, from its metadata."""
    parents = json.loads(metadata).get("parents")
    pairs: list[tuple[Any, Any]] = list(parents.items()) if isinstance(parents, dict) else []  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return {ns: checkpoint_id for ns, checkpoint_id in pairs if isinstance(checkpoint_id, str)}


def _touch(dialect: str) -> Any:
    names = [column.name for column in threads.c]
    statement = insert_for(dialect, threads).values({name: bindparam(name) for name in names})
    return statement.on_conflict_do_update(
        index_elements=["owner", "thread"], set_={"updated_at": statement.excluded.updated_at}
    )


def _replace(table: Table) -> Prepared:
    def build(dialect: str) -> Any:
        statement = insert_for(dialect, table).values({column.name: bindparam(column.name) for column in table.c})
        keys = table.primary_key.columns.keys()
        changed = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
        return statement.on_conflict_do_update(index_elements=keys, set_=changed)

    return Prepared(build)


def _add(table: Table) -> Prepared:
    def build(dialect: str) -> Any:
        statement = insert_for(dialect, table).values({column.name: bindparam(column.name) for column in table.c})
        return statement.on_conflict_do_nothing()

    return Prepared(build)


_TOUCH = Prepared(_touch)
_PUT = _replace(checkpoints)
_PUT_BLOB = _add(checkpoint_blobs)
_ADD_WRITE = _add(checkpoint_writes)
_REPLACE_WRITE = _replace(checkpoint_writes)
