"""The queries of the search index: which passages match a query by words and by meaning.

Every statement is bound to one pool (the owner's or the shared one) and to the scope filter, so neither the work nor
the statistics depend on other tenants. A `send_` function sends its statement and returns a `Pending` result, so that
all statements of a search take one round trip on Postgres.
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
from threefold_server.rules.candidates import Corpus, Row
from threefold_server.storage.engine.prepared import Pending, Prepared, among, texts
from threefold_server.storage.engine.scope import PASSAGES, visible, visible_to
from threefold_server.storage.engine.tables import passages, postings
from threefold_server.storage.engine.types import PgVector

NEAREST = 400
"""Most passages that a search by meaning gives to the ranking. With 300, recall@10 on LoCoMo with facts (which take
some of these ranks) loses 0.5 points; with 200, 1.4 points."""

ALWAYS = 2**62
"""A time (microseconds) after all events. The present would not do, as the clocks of two replicas differ."""

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Pool:
    """What one search reads: the owner's memories that are visible to the scope, or the shared partition."""

    shared: bool
    values: dict[str, Any]


@dataclass(frozen=True)
class Conditions:
    """Conditions on every result: not expired at `now`, at least `min_trust`, and no event after `until`."""

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


def own_pool(scope: ScopeFilter, conditions: Conditions) -> Pool:
    """Return the pool of the owner's memories that are visible to the scope."""
    return Pool(False, {**visible_to(scope), **conditions.values, "pool": scope.owner})


def shared_pool(conditions: Conditions) -> Pool:
    """Return the pool of the store's shared partition."""
    return Pool(True, {**conditions.values, "pool": SHARED_POOL})


def send_corpus(connection: Connection, pool: Pool) -> Pending[Corpus]:
    """Send for the number of passages in a pool and their mean length in terms."""
    rows = _CORPUS.send(connection, pool=pool.values["pool"])
    return lambda: _to_corpus(*rows()[0])


def send_lexical(connection: Connection, pool: Pool, terms: Sequence[str]) -> Pending[list[Row]]:
    """Send for the passages that contain any of the terms, one row per passage and term."""
    return _LEXICAL[pool.shared].send(connection, **pool.values, terms=texts(connection, terms))


def send_dense(connection: Connection, pool: Pool, query: Vector, embedder: str) -> Pending[list[Row]]:
    """Send for the passages nearest to the query, with their cosines.

    Only vectors of the query's embedder count: during a `reembed`, another process may store vectors of the next one.
    """
    if connection.dialect.name == "sqlite":
        vectors = _VECTORS[pool.shared].send(connection, **pool.values, embedder=embedder)
        return lambda: _nearest_of(vectors(), query)
    return _NEAREST[pool.shared].send(connection, **pool.values, query=query, embedder=embedder)


def send_unembedded_count(connection: Connection, pool: Pool) -> Pending[int]:
    """Send for the number of memories in the pool without a vector: search finds them by words only."""
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


_COLUMNS = (
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
    """Return a statement for each value of `Pool.shared`: the owner's pool and the shared pool."""
    allowed = and_(
        passages.c.pool == bindparam("pool"),
        or_(passages.c.expires_at.is_(None), passages.c.expires_at > bindparam("now")),
        passages.c.trust >= bindparam("min_trust"),
        passages.c.event_at <= bindparam("until"),
    )
    conditions = {False: and_(allowed, visible(PASSAGES)), True: and_(allowed, true())}
    return {shared: Prepared(partial(build, condition), make) for shared, condition in conditions.items()}


def _lexical(condition: ColumnElement[bool], dialect: str) -> Any:
    # MATERIALIZED makes the planner read the hits first. Otherwise it looked up each passage of the owner in the
    # postings of each term: 1 ms for 180 passages.
    matching = and_(postings.c.pool == bindparam("pool"), among(postings.c.term, "terms", dialect))
    hits = select(postings).where(matching).cte("hits").prefix_with("MATERIALIZED")
    same_passage = and_(
        hits.c.pool == passages.c.pool,
        hits.c.source == passages.c.source,
        hits.c.seq == passages.c.seq,
        hits.c.part == passages.c.part,
    )
    pending = passages.c.embedder.is_(None).label("pending")
    return (
        select(*_COLUMNS, hits.c.term, hits.c.tf, null(), pending)
        .join_from(hits, passages, same_passage)
        .where(condition)
    )


def _nearest(condition: ColumnElement[bool], _: str) -> Any:
    # Vectors have length 1, so the inner product equals the cosine and is cheaper. The operator returns its negative.
    distance = passages.c.vector.op("<#>", return_type=Float(53))(bindparam("query", type_=PgVector()))
    return (
        select(*_COLUMNS, null(), literal(0), (-distance).label("cosine"), false())
        .where(condition, passages.c.embedder == bindparam("embedder"))
        .order_by(distance)
        .limit(NEAREST)
    )


def _vectors(condition: ColumnElement[bool], _: str) -> Any:
    raw = type_coerce(passages.c.vector, LargeBinary), type_coerce(passages.c.source, LargeBinary)
    return select(*raw, *_COLUMNS[1:]).where(condition, passages.c.embedder == bindparam("embedder"))


def _unembedded(condition: ColumnElement[bool], _: str) -> Any:
    # Several passages of one long turn may have no vector, so the rows are distinct. With the columns in this order,
    # SQLite reads the index of passages without a vector; a plain count read all passages of the owner, 20 ms for
    # 20,000.
    unembedded = select(passages.c.source, passages.c.seq).where(condition, passages.c.embedder.is_(None)).distinct()
    return select(func.count()).select_from(unembedded.subquery())


_CORPUS = Prepared(
    select(func.count(), func.coalesce(func.avg(passages.c.length), 0)).where(passages.c.pool == bindparam("pool"))
)
_LEXICAL = _for_both_pools(_lexical, Row._make)
_NEAREST = _for_both_pools(_nearest, Row._make)
_VECTORS = _for_both_pools(_vectors, tuple)
_UNEMBEDDED = _for_both_pools(_unembedded, tuple)
