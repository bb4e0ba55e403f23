"""Giving all of one user's memory to another name: every row gets the keys that follow from the new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, Table, bindparam, delete, exists, insert, select, update

from threefold.errors import Conflict, NotFound
from threefold_server.rules.access import holder_pool, item_key, owner_key, session_key
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import (
    TENANT_TABLES,
    audit,
    beliefs,
    erased_turns,
    facts,
    items,
    metadata,
    model_use,
    owners,
    passages,
    receipts,
    sessions,
    tasks,
    threads,
)
from threefold_server.storage.engine.types import Key
from threefold_server.storage.erasure import erase

AT_ONCE = 200
STAYING = (owners, model_use, erased_turns, receipts, audit)
"""What stays with the old name: what it has spent, marks that stop its late writers, and what was noted of it."""

MOVING = tuple(table for table in metadata.sorted_tables if table in TENANT_TABLES and table not in STAYING)
_PLACES = (
    (sessions, "session", "session_id"),
    (facts, "session", "session_id"),
    (beliefs, "session", "session_id"),
    (threads, "thread", "thread_id"),
)
"""Tables whose rows are placed in a session, its key, and its name. A fact may be saved before its session begins."""

PARENTS = {key.column.table for table in MOVING for key in table.foreign_keys} & {*MOVING}
"""Rows that others rest on: they are copied first and deleted last."""


def rename_user(connection: Connection, old_name: str, new_name: str, now: int) -> dict[str, int]:
    """Move every row of one user to a user who has none; returns how many, by table."""
    old, new = owner_key("user", old_name), owner_key("user", new_name)
    _lock(connection, old, new, new_name)
    if not any(_has_rows(connection, table, old) for table in MOVING):
        raise NotFound("nothing is kept of this user")
    if any(_has_rows(connection, table, new) for table in MOVING):
        raise Conflict("the new name has a memory already; two memories are not merged")
    erase.raise_epoch(connection, old)
    keys = _new_keys(connection, old, new)
    counts = {table.name: _move(connection, table, old, keys) for table in MOVING}
    for table in reversed(MOVING):
        if table in PARENTS:
            connection.execute(delete(table).where(table.c.owner == old))
    connection.execute(update(facts).where(facts.c.owner == new, facts.c.shared).values(writer=new_name))
    connection.execute(update(tasks).where(tasks.c.owner == new).values(lease=None, lease_until=None))
    connection.execute(update(passages).where(passages.c.owner == new).values(rev=0))  # the old owner's numbers
    erase.raise_epoch(connection, new)
    erase.erase_owner(connection, old, now)
    return counts


def _lock(connection: Connection, old: UUID, new: UUID, new_name: str) -> None:
    """Lock both owners, so that no other transaction adds a session or a fact to either."""
    created = select(owners.c.created_at).where(owners.c.owner == old)
    created_at = connection.execute(created).scalar_one_or_none() or 0
    values = {"owner": new, "kind": "user", "name": new_name, "created_at": created_at}
    named = insert_into(connection, owners).values(values)
    connection.execute(named.on_conflict_do_update(index_elements=["owner"], set_={"name": new_name}))
    both = select(owners.c.owner).where(owners.c.owner.in_([old, new])).order_by(owners.c.owner)
    connection.execute(both.with_for_update()).all()
    connection.execute(select(sessions.c.session).where(sessions.c.owner == old).with_for_update()).all()


def _has_rows(connection: Connection, table: Table, owner: UUID) -> bool:
    return bool(connection.execute(select(exists().where(table.c.owner == owner))).scalar_one())


def _new_keys(connection: Connection, old: UUID, new: UUID) -> dict[UUID, UUID]:
    """Every key that follows from the owner's, and what it becomes."""
    keys = {old: new}
    for table, key, name in _PLACES:
        rows = select(table.c[key], table.c.agent, table.c[name]).where(table.c.owner == old, table.c[key].is_not(None))
        keys |= {found: session_key(new, agent, text) for found, agent, text in connection.execute(rows)}
    rows = select(items.c.item, items.c.pool, items.c.agent, items.c.path, items.c.key).where(items.c.owner == old)
    for item, pool, agent, path, key in connection.execute(rows):
        keys[pool] = holder_pool(new, agent, for_all=False)
        keys[item] = item_key(keys[pool], path, key)
    return keys


def _move(connection: Connection, table: Table, old: UUID, keys: Mapping[UUID, UUID]) -> int:
    moved = 0
    for batch in _batches(connection, table, old):
        if table not in PARENTS:
            _delete(connection, table, batch)
        if batch:
            connection.execute(insert(table), [_renamed(table, row, keys) for row in batch])
        moved += len(batch)
    return moved


def _batches(connection: Connection, table: Table, old: UUID) -> Iterator[Sequence[RowMapping]]:
    """The rows of the old owner, so many at a time; all at once where they are not deleted meanwhile."""
    rows = select(table).where(table.c.owner == old)
    if table in PARENTS:
        yield connection.execute(rows).mappings().all()
        return
    while batch := connection.execute(rows.limit(AT_ONCE)).mappings().all():
        yield batch


def _delete(connection: Connection, table: Table, batch: Sequence[RowMapping]) -> None:
    columns = list(table.primary_key.columns)
    here = (column == bindparam(f"key_{column.name}") for column in columns)
    values = [{f"key_{column.name}": row[column.name] for column in columns} for row in batch]
    connection.execute(delete(table).where(*here), values)


def _renamed(table: Table, row: RowMapping, keys: Mapping[UUID, UUID]) -> dict[str, Any]:
    keyed = {column.name for column in table.columns if isinstance(column.type, Key)}
    return {str(name): keys.get(value, value) if name in keyed else value for name, value in row.items()}
