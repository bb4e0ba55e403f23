"""Writing threads: checkpoints, the values of their channels, pending writes. No value is ever decoded here."""

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
from threefold_server.storage.erasure import erasures

OF_A_THREAD = (checkpoints, checkpoint_blobs, checkpoint_writes)


@dataclass(frozen=True)
class Thread:
    """Where everything of one thread is."""

    owner: UUID
    key: UUID

    def rows(self, table: Table) -> ColumnElement[bool]:
        """The condition for its rows in one of the tables."""
        return and_(table.c.owner == self.owner, table.c.thread == self.key)

    def place(self, ns: str) -> dict[str, UUID]:
        """The first columns of every key in one namespace."""
        return {"owner": self.owner, "thread": self.key, "place": place_key(ns)}


def place_key(ns: str) -> UUID:
    """The key of a namespace, which may be longer than an index takes."""
    return derive_key("namespace", ns.encode())


def blob_key(channel: str, version: Version) -> UUID:
    """The key of a channel's value at one version."""
    return derive_key("blob", channel.encode(), describe(version).encode())


def describe(version: Version) -> str:
    """A version as text that tells 1 from "1"."""
    return json.dumps(version)


def held_by(holder: Holder) -> ColumnElement[bool]:
    """The condition for the threads of a user with an agent, or of an agent for all of its users."""
    mine = and_(threads.c.owner == holder.owner, threads.c.agent == holder.agent)
    return and_(mine, threads.c.for_all.is_(holder.for_all))


def touch(connection: Connection, holder: Holder, thread: Thread, thread_id: str, now: int) -> None:
    """Create the thread unless it is there, and lock its row: a deletion waits for writers, and they for it."""
    values = {"owner": thread.owner, "thread": thread.key, "agent": holder.agent, "for_all": holder.for_all}
    _TOUCH.run(connection, **values, thread_id=thread_id, created_at=now, updated_at=now)


def put_checkpoint(connection: Connection, thread: Thread, request: PutCheckpointRequest, now: int) -> None:
    """Store a checkpoint, in place of one of the same id, and those of its values that are not there yet."""
    place = thread.place(request.ns)
    run_id = json.loads(request.metadata).get("run_id")
    _PUT.run(
        connection,
        **place,
        **request.model_dump(include={"checkpoint_id", "ns", "parent_id", "type", "data", "metadata"}),
        versions=json.dumps(request.versions),
        run_id=run_id if isinstance(run_id, str) else None,
        created_at=now,
    )
    blobs = [
        {
            **place,
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
    """Store the writes of a task. Of those at one index the first counts, and the last where the index is negative."""
    task = {"checkpoint_id": request.checkpoint_id, "task_id": request.task_id, "task_path": request.task_path}
    place = {**thread.place(request.ns), **task}
    for statement, is_special in ((_ADD_WRITE, False), (_REPLACE_WRITE, True)):
        rows = [{**place, **write.model_dump()} for write in request.writes if (write.idx < 0) == is_special]
        if rows:
            statement.run_many(connection, rows)


def copy(connection: Connection, source: Thread, target: Thread) -> int:
    """Copy what is not there yet, and let it be continued; returns how many checkpoints."""
    for table in OF_A_THREAD:
        columns = [column.name for column in table.c]
        chosen = select(*(literal(target.key, Key) if name == "thread" else table.c[name] for name in columns))
        statement = insert_into(connection, table).from_select(columns, chosen.where(source.rows(table)))
        connection.execute(statement.on_conflict_do_nothing())
    erasures.unmark_erased(connection, target.owner, target.key, marks_of(connection, target))
    count = select(func.count()).select_from(checkpoints).where(source.rows(checkpoints))
    return int(connection.execute(count).scalar_one())


def marks_of(connection: Connection, thread: Thread) -> set[str]:
    """What late writers of a thread would name: its checkpoints, and those that have writes only."""
    return {
        mark(row.place, row.checkpoint_id)
        for table in (checkpoints, checkpoint_writes)
        for row in connection.execute(select(table.c.place, table.c.checkpoint_id).where(thread.rows(table)).distinct())
    }


def mark(place: UUID, checkpoint_id: str) -> str:
    """A checkpoint as the marks of erased turns know it. No turn has such an id, as NUL is refused in them."""
    return f"\0{place.hex}{checkpoint_id}"


def erased_among(connection: Connection, thread: Thread, ids: Iterable[tuple[str, str]], now: int) -> Collection[str]:
    """Which of the (namespace, checkpoint id) were erased lately."""
    marks = [mark(place_key(ns), checkpoint_id) for ns, checkpoint_id in ids]
    return erasures.erased_among(connection, thread.owner, thread.key, marks, now)


def named(holder: Holder, thread_ids: Iterable[str]) -> ColumnElement[bool]:
    """The condition for threads by their ids."""
    keys = [thread_key(holder, thread_id) for thread_id in thread_ids]
    return and_(held_by(holder), threads.c.thread.in_(keys))


def lock(connection: Connection, condition: ColumnElement[bool]) -> list[Thread]:
    """Threads (a condition on `threads`), each closed to writers from here on."""
    chosen = select(threads.c.owner, threads.c.thread).where(condition).order_by(threads.c.thread)
    return [Thread(row.owner, row.thread) for row in connection.execute(chosen.with_for_update())]


def parents_of(metadata: str) -> dict[str, str]:
    """The checkpoints of the outer namespaces under which one was made, as its metadata says."""
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
    def made(dialect: str) -> Any:
        statement = insert_for(dialect, table).values({column.name: bindparam(column.name) for column in table.c})
        keys = table.primary_key.columns.keys()
        changed = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
        return statement.on_conflict_do_update(index_elements=keys, set_=changed)

    return Prepared(made)


def _add(table: Table) -> Prepared:
    def made(dialect: str) -> Any:
        statement = insert_for(dialect, table).values({column.name: bindparam(column.name) for column in table.c})
        return statement.on_conflict_do_nothing()

    return Prepared(made)


_TOUCH = Prepared(_touch)
_PUT = _replace(checkpoints)
_PUT_BLOB = _add(checkpoint_blobs)
_ADD_WRITE = _add(checkpoint_writes)
_REPLACE_WRITE = _replace(checkpoint_writes)
