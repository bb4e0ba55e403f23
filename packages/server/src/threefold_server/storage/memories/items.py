"""Rows of items, one per key in a namespace, and searches over them. Their vectors are passages of the search index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    LargeBinary,
    and_,
    bindparam,
    case,
    or_,
    select,
    true,
    type_coerce,
    update,
)

from threefold.contract import Item
from threefold.errors import EmbedderMismatch
from threefold_server.clock import MINUTE, from_micros
from threefold_server.rules.access import Holder
from threefold_server.storage.engine.deadline import check_in_time
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import items, passages
from threefold_server.storage.engine.types import AnyRow, PgVector
from threefold_server.storage.erasure import erase, forget_records
from threefold_server.storage.memories import index
from threefold_server.storage.sessions import sessions, tasks
from threefold_server.storage.store import system

ROWS_AT_ONCE = 50  # a value has up to 4 million bytes

T = TypeVar("T")
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Put:
    """An item to write. `vectors` belong to its texts; None if the embedder did not answer."""

    path: bytes
    key: str
    value: dict[str, Any]
    fields: Sequence[str]
    ttl: float | None
    texts: int
    vectors: Vector | None


Puts = Mapping[UUID, Put]


@dataclass(frozen=True)
class Page:
    """The part of an ordered result that a request asks for."""

    accepts: Callable[[dict[str, Any]], bool] | None
    """A filter of the values; None accepts all."""
    offset: int
    limit: int
    count: Callable[[AnyRow], None]
    """Called with each row of the page before the next one is read."""

    def accepts_row(self, row: AnyRow) -> bool:
        """Return whether the filter accepts a row."""
        check_in_time()
        return self.accepts is None or self.accepts(json.loads(row.value))

    def cut(self, found: Iterable[T]) -> Iterator[T]:
        """Return the part of an iterable that is on the page."""
        return islice(found, self.offset, self.offset + self.limit)

    def counted(self, row: AnyRow) -> AnyRow:
        """Count a row and return it."""
        self.count(row)
        return row


def to_path(labels: Sequence[str]) -> bytes:
    """Return a namespace as bytes with the same order and the same prefixes. No label contains a zero byte."""
    return b"".join(label.encode() + b"\0" for label in labels)


def to_labels(path: bytes) -> list[str]:
    """Return the namespace of a path."""
    return [label.decode() for label in path.split(b"\0")[:-1]]


def to_item(row: AnyRow, score: float | None = None) -> Item:
    """Return a row as a model of the contract."""
    return Item(
        namespace=to_labels(row.path),
        key=row.key,
        value=json.loads(row.value),
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        score=score,
    )


def by_keys(connection: Connection, holder: Holder, keys: Sequence[UUID], now: int) -> dict[UUID, AnyRow]:
    """Return the items with these keys that exist and have not expired."""
    statement = select(items).where(_not_expired(holder, now), items.c.item.in_(keys))
    return {row.item: row for row in connection.execute(statement)}


def newest(connection: Connection, holder: Holder, path: bytes, now: int, page: Page) -> list[AnyRow]:
    """Return the items below a path, the most recently written first."""
    statement = select(items).where(_not_expired(holder, now), below(path)).order_by(*_NEWEST)
    if page.accepts is None:
        statement, page = statement.offset(page.offset).limit(page.limit), replace(page, offset=0)
    streams = page.accepts is not None or page.limit > ROWS_AT_ONCE  # costs two more round trips on Postgres
    with connection.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE} if streams else {}) as rows:
        return [page.counted(row) for row in page.cut(filter(page.accepts_row, rows))]


def nearest(
    connection: Connection, holder: Holder, path: bytes, now: int, query: Vector, embedder: str, page: Page
) -> list[tuple[AnyRow, float]]:
    """Return the items below a path with their cosines, the nearest to the query first.

    The cosine of an item is that of its nearest text. Items without a vector are left out.
    """
    ranked = _ranked(connection, holder, path, now, query, embedder)
    if page.accepts is None:
        ranked, page = page.cut(ranked), replace(page, offset=0)
    accepted = (pair for pair in _with_rows(connection, holder, ranked, now) if page.accepts_row(pair[0]))
    return [(page.counted(row), cosine) for row, cosine in page.cut(accepted)]


def namespaces(connection: Connection, holder: Holder, path: bytes, now: int) -> list[list[str]]:
    """Return the namespaces below a path that have items, in order."""
    statement = select(items.c.path).where(_not_expired(holder, now), below(path)).distinct().order_by(items.c.path)
    return [to_labels(found) for found in connection.execute(statement).scalars()]


def renew_ttl(connection: Connection, owner: UUID, keys: Sequence[UUID], now: int) -> None:
    """Restart the time to live of items, because they were read."""
    sessions.lock_owner(connection, owner)
    minutes = select(items.c.item, items.c.ttl).where(
        items.c.owner == owner, items.c.item.in_(keys), items.c.ttl.is_not(None), items.c.expires_at > now
    )
    rows = [{"key_item": item, "until": _expiry(ttl, now)} for item, ttl in connection.execute(minutes)]
    if rows:
        statement = update(items).where(items.c.owner == owner, items.c.item == bindparam("key_item"))
        connection.execute(statement.values(expires_at=bindparam("until")), rows)


def write(connection: Connection, holder: Holder, puts: Puts, deletes: Sequence[UUID], embedder: str, now: int) -> None:
    """Write and delete items, with their vectors. A lock makes the writers of one owner run one after another."""
    sessions.ensure_owner(connection, holder.principal, now)
    sessions.lock_owner(connection, holder.owner)
    deleted = erase.erase_items(connection, holder.owner, items.c.item.in_(deletes))
    if puts:
        _put(connection, holder, puts, embedder, now)
    forget_records.note_deleted(connection, deleted["items"], now)


def _put(connection: Connection, holder: Holder, puts: Puts, embedder: str, now: int) -> None:
    rows = {item: _values(holder, item, put, now) for item, put in puts.items()}
    connection.execute(_replacing(connection, now), list(rows.values()))
    index.remove(connection, holder.owner, list(rows))
    ready, late = _split(connection, puts, embedder)
    index.add_items(connection, [(rows[item], put.texts, put.vectors) for item, put in ready.items()], embedder)
    index.add_items(connection, [(rows[item], put.texts, None) for item, put in late.items()], embedder)
    if late:
        tasks.restart(connection, holder.owner, holder.owner, "embed", now)


def below(path: bytes) -> ColumnElement[bool]:
    """Return the condition for namespaces that start with these labels: a range of bytes, without wildcards."""
    return and_(items.c.path >= path, items.c.path < path[:-1] + b"\1") if path else true()


def _not_expired(holder: Holder, now: int) -> ColumnElement[bool]:
    """Return the condition for the holder's items that have not expired."""
    not_expired = or_(items.c.expires_at.is_(None), items.c.expires_at > now)
    return and_(items.c.owner == holder.owner, items.c.pool == holder.pool, not_expired)


_NEWEST = (items.c.updated_at.desc(), items.c.path, items.c.key)


def _with_rows(
    connection: Connection, holder: Holder, ranked: Iterator[tuple[UUID, float]], now: int
) -> Iterator[tuple[AnyRow, float]]:
    while some := list(islice(ranked, ROWS_AT_ONCE)):
        found = by_keys(connection, holder, [item for item, _ in some], now)
        yield from ((found[item], score) for item, score in some if item in found)


def _ranked(
    connection: Connection, holder: Holder, path: bytes, now: int, query: Vector, embedder: str
) -> Iterator[tuple[UUID, float]]:
    """Yield the items below a path that have a vector, with the cosine of their nearest text, the nearest first."""
    own = and_(passages.c.owner == items.c.owner, passages.c.source == items.c.item, passages.c.pool == holder.pool)
    embedded = and_(_not_expired(holder, now), below(path), passages.c.embedder == embedder)
    statement = select(items.c.item).join(passages, own).where(embedded)
    texts = _texts_on_sqlite if connection.dialect.name == "sqlite" else _texts_on_postgres
    seen: set[UUID] = set()
    for item, cosine in texts(connection, statement, query):
        if item not in seen:
            seen.add(item)
            yield item, max(-1.0, min(1.0, cosine))


def _texts_on_sqlite(connection: Connection, statement: Any, query: Vector) -> Iterator[tuple[UUID, float]]:
    """Yield items with cosines from raw columns: converting each key to a UUID cost more than all other steps."""
    raw = type_coerce(items.c.item, LargeBinary), type_coerce(passages.c.vector, LargeBinary)
    rows: Any = connection.execute(statement.with_only_columns(*raw).order_by(*_NEWEST)).all()
    if not rows:
        return
    cosines = np.frombuffer(b"".join([row[1] for row in rows]), dtype="<f4").reshape(len(rows), -1) @ query
    for row in np.argsort(-cosines, kind="stable").tolist():
        yield UUID(bytes=rows[row][0]), float(cosines[row])


def _texts_on_postgres(connection: Connection, statement: Any, query: Vector) -> Iterator[tuple[UUID, float]]:
    # Vectors have length 1, so the inner product equals the cosine and is cheaper. The operator returns its negative.
    distance = passages.c.vector.op("<#>", return_type=Float(53))(bindparam("query", query, type_=PgVector()))
    ordered = statement.with_only_columns(items.c.item, distance.label("distance")).order_by(distance, *_NEWEST)
    yield from ((row.item, -row.distance) for row in connection.execute(ordered))


def _values(holder: Holder, item: UUID, put: Put, now: int) -> dict[str, Any]:
    return {
        "owner": holder.owner,
        "item": item,
        "pool": holder.pool,
        "agent": holder.agent,
        "for_all": holder.for_all,
        "path": put.path,
        "key": put.key,
        "value": json.dumps(put.value, ensure_ascii=False),
        "fields": json.dumps(list(put.fields), ensure_ascii=False),
        "ttl": put.ttl,
        "expires_at": _expiry(put.ttl, now),
        "created_at": now,
        "updated_at": now,
    }


def _replacing(connection: Connection, now: int) -> Any:
    """Return an insert that replaces an item and keeps its `created_at`, except if the stored item has expired."""
    statement = insert_into(connection, items)
    new = statement.excluded
    created_at = case((items.c.expires_at <= now, new.created_at), else_=items.c.created_at)
    changed = {name: new[name] for name in ("value", "fields", "ttl", "expires_at", "updated_at")}
    return statement.on_conflict_do_update(index_elements=["owner", "item"], set_={**changed, "created_at": created_at})


def _split(connection: Connection, puts: Puts, embedder: str) -> tuple[Puts, Puts]:
    """Return the items whose vectors can be stored now, and those whose vectors are computed later.

    The vectors come later if the model did not answer, or if the store has vectors of another embedder, until a
    `reembed`.
    """
    ready = {item: put for item, put in puts.items() if put.vectors is not None and put.texts}
    try:
        if ready:
            system.claim_embedder(connection, embedder)
    except EmbedderMismatch:
        ready = {}
    return ready, {item: put for item, put in puts.items() if put.texts and item not in ready}


def _expiry(minutes: float | None, now: int) -> int | None:
    return None if minutes is None else now + int(minutes * MINUTE)
