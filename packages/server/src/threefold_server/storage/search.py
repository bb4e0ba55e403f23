"""The query side of the index: what the owner's own items have in common with a query, by words and by meaning.

Every statement is bound to one pool (the owner's, or the shared one) and to the scope filter, so that the work done
and the statistics used never depend on other tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
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
    func,
    literal,
    null,
    or_,
    select,
    type_coerce,
)

from threefold_server.access import SHARED_POOL, ScopeFilter
from threefold_server.ranking import Corpus, Row
from threefold_server.storage.scope import PASSAGES, visible
from threefold_server.storage.tables import passages, postings, tasks, turns
from threefold_server.storage.types import PgVector

NEAREST = 200
"""Passages by meaning that enter the ranking: its quality is flat from 60 candidates on."""

Vector = NDArray[np.float32]

_PLACE = (
    passages.c.source,
    passages.c.seq,
    passages.c.part,
    passages.c.speaker,
    passages.c.event_at,
    passages.c.length,
)
_JOIN = and_(
    postings.c.pool == passages.c.pool,
    postings.c.source == passages.c.source,
    postings.c.seq == passages.c.seq,
    postings.c.part == passages.c.part,
)


@dataclass(frozen=True)
class Pool:
    """Where one search looks: a pool, and the condition on its passages."""

    key: UUID
    condition: ColumnElement[bool]


def own_pool(scope: ScopeFilter, now: int, min_trust: float | None) -> Pool:
    """The owner's memories, as far as the scope sees them."""
    return Pool(scope.owner, and_(visible(PASSAGES, scope), _holds(now, min_trust)))


def shared_pool(now: int, min_trust: float | None) -> Pool:
    """The store's shared partition."""
    return Pool(SHARED_POOL, _holds(now, min_trust))


def corpus(connection: Connection, pool: Pool) -> Corpus:
    """The number of passages in a pool and their mean length in terms."""
    statement = select(func.count(), func.coalesce(func.avg(passages.c.length), 0)).where(passages.c.pool == pool.key)
    count, average = connection.execute(statement).one()
    return Corpus(int(count), float(average))


def lexical(connection: Connection, pool: Pool, terms: Sequence[str]) -> list[Row]:
    """Every passage that has one of the terms, once per term."""
    if not terms:
        return []
    statement = (
        select(*_PLACE, postings.c.term, postings.c.tf)
        .join_from(postings, passages, _JOIN)
        .where(postings.c.pool == pool.key, postings.c.term.in_(terms), passages.c.pool == pool.key, pool.condition)
    )
    return [Row(*row) for row in connection.execute(statement)]


def dense(connection: Connection, pool: Pool, query: Vector) -> list[Row]:
    """The nearest passages with their cosines."""
    return (_dense_sqlite if connection.dialect.name == "sqlite" else _dense_postgres)(connection, pool, query)


def unindexed(scope: ScopeFilter) -> ColumnElement[bool]:
    """The condition on `turns` for those of the owner that no posting knows yet."""
    upto = (
        select(tasks.c.upto)
        .where(tasks.c.owner == turns.c.owner, tasks.c.subject == turns.c.session, tasks.c.kind == "index")
        .scalar_subquery()
    )
    open_sessions = select(tasks.c.subject).where(
        tasks.c.owner == scope.owner,
        tasks.c.kind == "index",
        or_(tasks.c.due_at.is_not(None), tasks.c.parked.is_not(None)),
    )
    return and_(turns.c.session.in_(open_sessions), turns.c.seq > upto)


def pending_vectors(connection: Connection, pool: Pool) -> int:
    """Passages of the pool that only words find, as their vector is not there yet."""
    statement = select(func.count()).where(passages.c.pool == pool.key, passages.c.embedder.is_(None), pool.condition)
    return int(connection.execute(statement).scalar_one())


def _holds(now: int, min_trust: float | None) -> ColumnElement[bool]:
    alive = or_(passages.c.expires_at.is_(None), passages.c.expires_at > now)
    return alive if min_trust is None else and_(alive, passages.c.trust >= min_trust)


def _dense_postgres(connection: Connection, pool: Pool, query: Vector) -> list[Row]:
    # Vectors have length 1, so the negative inner product orders as the cosine does and is cheaper.
    distance = passages.c.vector.op("<#>", return_type=Float(53))(bindparam("query", query, PgVector()))
    statement = (
        select(*_PLACE, null(), literal(0), -distance)
        .where(passages.c.pool == pool.key, passages.c.embedder.is_not(None), pool.condition)
        .order_by(distance)
        .limit(NEAREST)
    )
    return [Row(*row) for row in connection.execute(statement)]


def _dense_sqlite(connection: Connection, pool: Pool, query: Vector) -> list[Row]:
    raw = type_coerce(passages.c.vector, LargeBinary), type_coerce(passages.c.source, LargeBinary)
    statement = select(*raw, *_PLACE[1:]).where(
        passages.c.pool == pool.key, passages.c.embedder.is_not(None), pool.condition
    )
    rows: Sequence[Any] = connection.execute(statement).all()
    if not rows:
        return []
    cosines: Vector = np.frombuffer(b"".join([row[0] for row in rows]), dtype="<f4").reshape(len(rows), -1) @ query
    nearest = np.argsort(-cosines, kind="stable")[:NEAREST]
    return [Row(UUID(bytes=rows[i][1]), *rows[i][2:], cosine=float(cosines[i])) for i in nearest]
