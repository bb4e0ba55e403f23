"""The facts that a new statement may repeat or contradict: the nearest of its own kind, by words and by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, and_, func, select, true

from threefold_server.rules.access import Reach
from threefold_server.storage.engine.tables import facts, passages, postings
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts as fact_store

PER_WAY = 4
"""Facts found in either way: enough that the one that is meant is among them, few enough for one model call."""

LEAST_COSINE = 0.4  # MiniLM, pairs that contradict each other: 0.45 and more
VECTORS = 5_000
"""Of an owner with more facts of one kind, those last said are compared by meaning, and all of them by words."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Kind:
    """Facts that may be merged or supersede each other: of one agent, and visible equally far."""

    owner: UUID
    agent: str
    visibility: int
    session: UUID | None
    """Only of facts that nobody sees beyond their session."""

    def holds(self, now: int) -> ColumnElement[bool]:
        """The current facts of this kind."""
        return and_(
            facts.c.owner == self.owner,
            facts.c.agent == self.agent,
            facts.c.visibility == self.visibility,
            true() if self.session is None else facts.c.session == self.session,
            facts.c.shared.is_(False),
            fact_store.current(now),
        )


def kind_of(owner: UUID, agent: str, visibility: int, session: UUID | None) -> Kind:
    """The kind of a fact with this place."""
    return Kind(owner, agent, visibility, session if visibility == Reach.session else None)


def by_words(connection: Connection, kind: Kind, terms: Sequence[str], now: int) -> Sequence[AnyRow]:
    """The facts that share most words with a statement; of those, the ones that say least else."""
    shared = (
        select(postings.c.source, func.count(postings.c.term.distinct()).label("terms"))
        .where(postings.c.pool == kind.owner, postings.c.seq == 0, postings.c.term.in_(terms))
        .group_by(postings.c.source)
        .subquery()
    )
    statement = select(facts).join(shared, shared.c.source == facts.c.fact).where(kind.holds(now))
    ordered = statement.order_by(shared.c.terms.desc(), func.length(facts.c.text), facts.c.fact)
    return connection.execute(ordered.limit(PER_WAY)).all()


def by_meaning(connection: Connection, kind: Kind, vectors: Vectors, embedder: str, now: int) -> list[list[AnyRow]]:
    """Per vector, the facts whose meaning is nearest."""
    statement = (
        select(passages.c.vector, *facts.c)
        .join(passages, and_(passages.c.owner == facts.c.owner, passages.c.source == facts.c.fact))
        .where(kind.holds(now), passages.c.pool == kind.owner, passages.c.seq == 0, passages.c.embedder == embedder)
        .order_by(facts.c.event_at.desc())
        .limit(VECTORS)
    )
    rows: Sequence[AnyRow] = connection.execute(statement).all()
    if not rows:
        return [[] for _ in vectors]
    cosines = vectors @ np.stack([row.vector for row in rows]).T
    return [_best(rows, line) for line in cosines]


def _best(rows: Sequence[AnyRow], cosines: Vectors) -> list[AnyRow]:
    return [rows[int(i)] for i in np.argsort(-cosines, kind="stable")[:PER_WAY] if cosines[i] >= LEAST_COSINE]
