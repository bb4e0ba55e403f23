"""The facts that a new statement may repeat or contradict: the nearest ones of its merge group."""

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
"""Facts found by words, and again by meaning: enough to include the right one, few enough for one model call."""

LEAST_COSINE = 0.4  # with MiniLM, pairs that contradict each other have 0.45 or more
VECTORS = 5_000
"""Most facts of one merge group that are compared by meaning, newest first. All of them are compared by words."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class MergeGroup:
    """Facts that may be merged or supersede each other: of one agent and with the same visibility."""

    owner: UUID
    agent: str
    visibility: int
    session: UUID | None
    """Set only for facts with the visibility `session`."""

    def current(self, now: int) -> ColumnElement[bool]:
        """Return the condition for the current facts of the group."""
        return and_(
            facts.c.owner == self.owner,
            facts.c.agent == self.agent,
            facts.c.visibility == self.visibility,
            true() if self.session is None else facts.c.session == self.session,
            facts.c.shared.is_(False),
            fact_store.current(now),
        )


def merge_group(owner: UUID, agent: str, visibility: int, session: UUID | None) -> MergeGroup:
    """Return the merge group of a fact with these columns."""
    return MergeGroup(owner, agent, visibility, session if visibility == Reach.session else None)


def by_words(connection: Connection, group: MergeGroup, terms: Sequence[str], now: int) -> Sequence[AnyRow]:
    """Return the facts that share most words with a statement; among equal ones, the shortest first."""
    shared = (
        select(postings.c.source, func.count(postings.c.term.distinct()).label("terms"))
        .where(postings.c.pool == group.owner, postings.c.seq == 0, postings.c.term.in_(terms))
        .group_by(postings.c.source)
        .subquery()
    )
    statement = select(facts).join(shared, shared.c.source == facts.c.fact).where(group.current(now))
    ordered = statement.order_by(shared.c.terms.desc(), func.length(facts.c.text), facts.c.fact)
    return connection.execute(ordered.limit(PER_WAY)).all()


def by_meaning(
    connection: Connection, group: MergeGroup, vectors: Vectors, embedder: str, now: int
) -> list[list[AnyRow]]:
    """Return the facts with the nearest vectors, for each of the vectors."""
    statement = (
        select(passages.c.vector, *facts.c)
        .join(passages, and_(passages.c.owner == facts.c.owner, passages.c.source == facts.c.fact))
        .where(group.current(now), passages.c.pool == group.owner, passages.c.seq == 0, passages.c.embedder == embedder)
        .order_by(facts.c.event_at.desc())
        .limit(VECTORS)
    )
    rows: Sequence[AnyRow] = connection.execute(statement).all()
    if not rows:
        return [[] for _ in vectors]
    cosines = vectors @ np.stack([row.vector for row in rows]).T
    return [_best(rows, row) for row in cosines]


def _best(rows: Sequence[AnyRow], cosines: Vectors) -> list[AnyRow]:
    return [rows[int(i)] for i in np.argsort(-cosines, kind="stable")[:PER_WAY] if cosines[i] >= LEAST_COSINE]
