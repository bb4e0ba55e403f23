"""The query side of the index: what the owner's own items have in common with a query, by words and by meaning.

Every statement is bound to one pool (the owner's, or the shared one) and to the scope filter, so that the work done
and the statistics used never depend on other tenants. A `send_` function sends its statement and returns a
`Pending` result, so that all statements of a search take one round trip on Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
    false,
    func,
    literal,
    null,
    or_,
    select,
    true,
    type_coerce,
)

from threefold_server.rules.access import SHARED_POOL, ScopeFilter
from threefold_server.rules.ranking import Corpus, Row
from threefold_server.storage.engine.prepared import Pending, Prepared, among, texts
from threefold_server.storage.engine.scope import PASSAGES, visible, visible_to
from threefold_server.storage.engine.tables import passages, postings
from threefold_server.storage.engine.types import PgVector

NEAREST = 400
"""Passages by meaning that enter the ranking. Of recall@10 on LoCoMo with facts, which take some of these places, 300
cost half a point and 200 cost 1.4."""

ALWAYS = 2**62  # microseconds; not the present, as the clocks of two replicas differ

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Pool:
    """Where one search looks: the owner's memories as far as the scope sees them, or the shared partition."""

    shared: bool
    values: dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """What a memory must be to be found at all: not expired, trusted enough, not said after a moment."""

    now: int
    min_trust: float | None = None
    until: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "min_trust": self.min_trust or 0.0,
            "until": ALWAYS if self.until is None else self.until,
        }


def own_pool(scope: ScopeFilter, limits: Limits) -> Pool:
    """The owner's memories, as far as the scope sees them."""
    return Pool(False, {**visible_to(scope), **limits.values, "pool": scope.owner})


def shared_pool(limits: Limits) -> Pool:
    """The store's shared partition."""
    return Pool(True, {**limits.values, "pool": SHARED_POOL})


def send_corpus(connection: Connection, pool: Pool) -> Pending[Corpus]:
    """The number of passages in a pool and their mean length in terms."""
    rows = _CORPUS.send(connection, pool=pool.values["pool"])
    return lambda: _to_corpus(*rows()[0])


def send_lexical(connection: Connection, pool: Pool, terms: Sequence[str]) -> Pending[list[Row]]:
    """Every passage that has one of the terms, once per term."""
    return _LEXICAL[pool.shared].send(connection, **pool.values, terms=texts(connection, terms))


def send_dense(connection: Connection, pool: Pool, query: Vector, embedder: str) -> Pending[list[Row]]:
    """The nearest passages with their cosines. Only vectors of the query's embedder: during a `reembed` another
    process may store those of the next one already."""
    if connection.dialect.name == "sqlite":
        vectors = _VECTORS[pool.shared].send(connection, **pool.values, embedder=embedder)
        return lambda: _nearest_of(vectors(), query)
    return _NEAREST[pool.shared].send(connection, **pool.values, query=query, embedder=embedder)


def send_unembedded_count(connection: Connection, pool: Pool) -> Pending[int]:
    """How many memories of the pool only words find, as their vector is not there yet."""
    rows = _UNEMBEDDED[pool.shared].send(connection, **pool.values)
    return lambda: int(rows()[0][0])


def _to_corpus(count: Any, average: Any) -> Corpus:
    return Corpus(int(count), float(average))


def _nearest_of(rows: Sequence[Any], query: Vector) -> list[Row]:
    if not rows:
        return []
    cosines: Vector = np.frombuffer(b"".join([row[0] for row in rows]), dtype="<f4").reshape(len(rows), -1) @ query
    nearest = np.argsort(-cosines, kind="stable")[:NEAREST]
    return [Row(UUID(bytes=rows[i][1]), *rows[i][2:], cosine=float(cosines[i])) for i in nearest]


_PLACE = (
    passages.c.source,
    passages.c.seq,
    passages.c.part,
    passages.c.speaker,
    passages.c.event_at,
    passages.c.length,
)


def _for_both_pools(
    build: Callable[[ColumnElement[bool], str], Any], make: Callable[[Sequence[Any]], Any]
) -> dict[bool, Prepared]:
    """A statement for the owner's pool and one for the shared pool, told apart by `Pool.shared`."""
    holds = and_(
        passages.c.pool == bindparam("pool"),
        or_(passages.c.expires_at.is_(None), passages.c.expires_at > bindparam("now")),
        passages.c.trust >= bindparam("min_trust"),
        passages.c.event_at <= bindparam("until"),
    )
    conditions = {False: and_(holds, visible(PASSAGES)), True: and_(holds, true())}
    return {shared: Prepared(partial(build, condition), make) for shared, condition in conditions.items()}


def _lexical(condition: ColumnElement[bool], dialect: str) -> Any:
    # The hits come first, whatever a planner thinks: it looked each passage of the owner up among the postings of each
    # term, 1 ms at 180 passages.
    mine = and_(postings.c.pool == bindparam("pool"), among(postings.c.term, "terms", dialect))
    hits = select(postings).where(mine).cte("hits").prefix_with("MATERIALIZED")
    same = and_(
        hits.c.pool == passages.c.pool,
        hits.c.source == passages.c.source,
        hits.c.seq == passages.c.seq,
        hits.c.part == passages.c.part,
    )
    pending = passages.c.embedder.is_(None).label("pending")
    return select(*_PLACE, hits.c.term, hits.c.tf, null(), pending).join_from(hits, passages, same).where(condition)


def _nearest(condition: ColumnElement[bool], _: str) -> Any:
    # Vectors have length 1, so the negative inner product orders as the cosine does and is cheaper.
    distance = passages.c.vector.op("<#>", return_type=Float(53))(bindparam("query", type_=PgVector()))
    return (
        select(*_PLACE, null(), literal(0), (-distance).label("cosine"), false())
        .where(condition, passages.c.embedder == bindparam("embedder"))
        .order_by(distance)
        .limit(NEAREST)
    )


def _vectors(condition: ColumnElement[bool], _: str) -> Any:
    raw = type_coerce(passages.c.vector, LargeBinary), type_coerce(passages.c.source, LargeBinary)
    return select(*raw, *_PLACE[1:]).where(condition, passages.c.embedder == bindparam("embedder"))


def _unembedded(condition: ColumnElement[bool], _: str) -> Any:
    # Of a long turn several passages may wait. Distinct and in this order, SQLite reads the index of those that wait;
    # a plain count read every passage of the owner, 20 ms at 20,000.
    waiting = select(passages.c.source, passages.c.seq).where(condition, passages.c.embedder.is_(None)).distinct()
    return select(func.count()).select_from(waiting.subquery())


_CORPUS = Prepared(
    select(func.count(), func.coalesce(func.avg(passages.c.length), 0)).where(passages.c.pool == bindparam("pool"))
)
_LEXICAL = _for_both_pools(_lexical, Row._make)
_NEAREST = _for_both_pools(_nearest, Row._make)
_VECTORS = _for_both_pools(_vectors, tuple)
_UNEMBEDDED = _for_both_pools(_unembedded, tuple)
