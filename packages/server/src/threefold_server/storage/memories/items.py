"""Items: one row per key in a namespace, found by their place, and their vectors among the passages of the index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from threefold_server.storage.erasure import erase
from threefold_server.storage.memories import index
from threefold_server.storage.sessions import sessions, tasks
from threefold_server.storage.store import system

ROWS_AT_ONCE = 200

T = TypeVar("T")
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Put:
    """An item to write, with the vectors of its texts; None where the embedder did not answer."""

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
    """Which of the rows in an order are wanted."""

    accepts: Callable[[dict[str, Any]], bool] | None
    """What their values have to satisfy, if anything."""
    offset: int
    limit: int

    def takes(self, row: AnyRow) -> bool:
        """Whether a row is among those to count."""
        check_in_time()
        return self.accepts is None or self.accepts(json.loads(row.value))

    def cut(self, found: Iterable[T]) -> list[T]:
        """The page of what counts, in its order."""
        return list(islice(found, self.offset, self.offset + self.limit))


def to_path(labels: Sequence[str]) -> bytes:
    """A namespace as bytes that sort and begin as the namespace does: no label holds a zero byte."""
    return b"".join(label.encode() + b"\0" for label in labels)


def to_labels(path: bytes) -> list[str]:
    """The namespace again."""
    return [label.decode() for label in path.split(b"\0")[:-1]]


def to_item(row: AnyRow, score: float | None = None) -> Item:
    """An item as the contract shows it."""
    return Item(
        namespace=to_labels(row.path),
        key=row.key,
        value=json.loads(row.value),
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        score=score,
    )


def by_keys(connection: Connection, holder: Holder, keys: Sequence[UUID], now: int) -> dict[UUID, AnyRow]:
    """Items by their keys, those that there are."""
    statement = select(items).where(_alive(holder, now), items.c.item.in_(keys))
    return {row.item: row for row in connection.execute(statement)}


def newest(connection: Connection, holder: Holder, path: bytes, now: int, page: Page) -> list[AnyRow]:
    """The items below a path, the most recently written first."""
    statement = select(items).where(_alive(holder, now), below(path)).order_by(*_NEWEST)
    if page.accepts is None:
        return list(connection.execute(statement.offset(page.offset).limit(page.limit)))
    with connection.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
        return page.cut(filter(page.takes, rows))


def nearest(
    connection: Connection, holder: Holder, path: bytes, now: int, query: Vector, embedder: str, page: Page
) -> list[tuple[AnyRow, float]]:
    """The items below a path, the nearest to a query first. An item is as near as the nearest of its texts; those
    without a vector are left out."""
    ranked = _ranked(connection, holder, path, now, query, embedder)
    if page.accepts is None:
        ranked, page = iter(page.cut(ranked)), Page(None, 0, page.limit)
    return page.cut(pair for pair in _with_rows(connection, holder, ranked, now) if page.takes(pair[0]))


def namespaces(connection: Connection, holder: Holder, path: bytes, now: int) -> list[list[str]]:
    """The namespaces below a path that hold an item, in order."""
    statement = select(items.c.path).where(_alive(holder, now), below(path)).distinct().order_by(items.c.path)
    return [to_labels(found) for found in connection.execute(statement).scalars()]


def start_anew(connection: Connection, owner: UUID, keys: Sequence[UUID], now: int) -> None:
    """Let the time to live of items begin again, as they were read."""
    sessions.lock_owner(connection, owner)
    minutes = select(items.c.item, items.c.ttl).where(
        items.c.owner == owner, items.c.item.in_(keys), items.c.ttl.is_not(None), items.c.expires_at > now
    )
    rows = [{"key_item": item, "until": _expiry(ttl, now)} for item, ttl in connection.execute(minutes)]
    if rows:
        statement = update(items).where(items.c.owner == owner, items.c.item == bindparam("key_item"))
        connection.execute(statement.values(expires_at=bindparam("until")), rows)


def write(connection: Connection, holder: Holder, puts: Puts, deletes: Sequence[UUID], embedder: str, now: int) -> None:
    """Write and delete items, with their vectors. Writers of one owner go one after another."""
    sessions.ensure_owner(connection, holder.principal, now)
    sessions.lock_owner(connection, holder.owner)
    erase.erase_items(connection, holder.owner, items.c.item.in_(deletes))
    rows = {item: _values(holder, item, put, now) for item, put in puts.items()}
    if not rows:
        return
    connection.execute(_replacing(connection, now), list(rows.values()))
    index.remove(connection, holder.owner, list(rows))
    ready, late = _split(connection, puts, embedder)
    index.add_items(connection, [(rows[item], put.texts, put.vectors) for item, put in ready.items()], embedder)
    index.add_items(connection, [(rows[item], put.texts, None) for item, put in late.items()], embedder)
    if late:
        tasks.restart(connection, holder.owner, holder.owner, "embed", now)


def below(path: bytes) -> ColumnElement[bool]:
    """Namespaces that begin with these labels: a range of bytes, in which no character has a meaning of its own."""
    return and_(items.c.path >= path, items.c.path < path[:-1] + b"\1") if path else true()


def _alive(holder: Holder, now: int) -> ColumnElement[bool]:
    fresh = or_(items.c.expires_at.is_(None), items.c.expires_at > now)
    return and_(items.c.owner == holder.owner, items.c.pool == holder.pool, fresh)


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
    """Every item below a path that has a vector, with the cosine of its nearest text, the nearest first."""
    same = and_(passages.c.owner == items.c.owner, passages.c.source == items.c.item, passages.c.pool == holder.pool)
    mine = and_(_alive(holder, now), below(path), passages.c.embedder == embedder)
    statement = select(items.c.item).join(passages, same).where(mine)
    texts = _texts_here if connection.dialect.name == "sqlite" else _texts_there
    seen: set[UUID] = set()
    for item, cosine in texts(connection, statement, query):
        if item not in seen:
            seen.add(item)
            yield item, max(-1.0, min(1.0, cosine))


def _texts_here(connection: Connection, statement: Any, query: Vector) -> Iterator[tuple[UUID, float]]:
    """SQLite's own types, as they are: to make a key of each row costs more than all the rest."""
    raw = type_coerce(items.c.item, LargeBinary), type_coerce(passages.c.vector, LargeBinary)
    rows: Any = connection.execute(statement.with_only_columns(*raw).order_by(*_NEWEST)).all()
    if not rows:
        return
    cosines = np.frombuffer(b"".join([row[1] for row in rows]), dtype="<f4").reshape(len(rows), -1) @ query
    for place in np.argsort(-cosines, kind="stable").tolist():
        yield UUID(bytes=rows[place][0]), float(cosines[place])


def _texts_there(connection: Connection, statement: Any, query: Vector) -> Iterator[tuple[UUID, float]]:
    # Vectors have length 1, so the negative inner product orders as the cosine does and is cheaper.
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
    """An insert that replaces what is there, but for the time of its making; what had expired is made anew."""
    statement = insert_into(connection, items)
    new = statement.excluded
    made = case((items.c.expires_at <= now, new.created_at), else_=items.c.created_at)
    changed = {name: new[name] for name in ("value", "fields", "ttl", "expires_at", "updated_at")}
    return statement.on_conflict_do_update(index_elements=["owner", "item"], set_={**changed, "created_at": made})


def _split(connection: Connection, puts: Puts, embedder: str) -> tuple[Puts, Puts]:
    """Those whose vectors are here, and those whose vectors have to come later: from a model that did not answer, or
    once the store, which holds another embedder's, has been embedded anew."""
    ready = {item: put for item, put in puts.items() if put.vectors is not None and put.texts}
    try:
        if ready:
            system.claim_embedder(connection, embedder)
    except EmbedderMismatch:
        ready = {}
    return ready, {item: put for item, put in puts.items() if put.texts and item not in ready}


def _expiry(minutes: float | None, now: int) -> int | None:
    return None if minutes is None else now + int(minutes * MINUTE)
