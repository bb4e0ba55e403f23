"""One search of long-term memory in one read: candidates, ranking, and the memories themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from threefold.contract import Memory, RecalledMemory
from threefold_server.access import ScopeFilter
from threefold_server.indexing import turn_passages
from threefold_server.ranking import Corpus, Ranked, Row, rank
from threefold_server.storage import episodes, facts, search
from threefold_server.text import query_terms
from threefold_server.trust import trust_of


@dataclass(frozen=True)
class Search:
    """What to look for, where, and how much of it."""

    query: str
    vector: NDArray[np.float32] | None
    scope: ScopeFilter
    own: bool
    shared: bool
    min_score: float
    min_trust: float | None
    limit: int
    now: int

    def run(self, connection: Connection) -> tuple[list[RecalledMemory], int]:
        """Memories in order of score, and how many turns have no vector yet."""
        found: list[RecalledMemory] = []
        pending = 0
        if self.own:
            pool = search.own_pool(self.scope, self.now, self.min_trust)
            tail = self._tail(connection)
            pending = len({(row.source, row.seq) for row in tail}) + search.pending_vectors(connection, pool)
            found += self._search(connection, pool, tail)
        if self.shared:
            found += self._search(connection, search.shared_pool(self.now, self.min_trust), [])
        return sorted(found, key=lambda memory: -memory.score), pending

    def _search(self, connection: Connection, pool: search.Pool, tail: Sequence[Row]) -> list[RecalledMemory]:
        rows = [*tail, *search.lexical(connection, pool, query_terms(self.query))]
        if self.vector is not None:
            rows += search.dense(connection, pool, self.vector)
        if not rows or self.limit == 0:
            return []
        corpus = search.corpus(connection, pool)
        if tail:
            corpus = _with_tail(corpus, tail)
        cited = {} if pool.shared else facts.cited_places(connection, self.scope.owner)
        ranked = rank(self.query, rows, corpus, cited=cited, min_score=self.min_score, limit=self.limit)
        return self._hydrate(connection, pool, ranked)

    def _tail(self, connection: Connection) -> list[Row]:
        """Turns too new for the index, with the query's terms counted here and now."""
        asked = set(query_terms(self.query))
        rows: list[Row] = []
        for turn in episodes.unindexed(connection, self.scope):
            if self.min_trust is not None and trust_of(turn.role) < self.min_trust:
                continue
            for passage in turn_passages(turn):
                place = Row(
                    turn.session, turn.seq, passage.part, passage.speaker, turn.event_at, passage.length, pending=True
                )
                hits = asked & passage.tf.keys()
                rows += [place._replace(term=term, tf=passage.tf[term]) for term in hits] or [place]
        return rows

    def _hydrate(self, connection: Connection, pool: search.Pool, ranked: Sequence[Ranked]) -> list[RecalledMemory]:
        """The memories behind ranked places; what the scope does not see, or has gone meanwhile, is left out."""
        turns = episodes.by_place(connection, self.scope, [(item.source, item.seq) for item in ranked if item.seq])
        owner = None if pool.shared else self.scope.owner
        rows = facts.by_keys(connection, owner, [item.source for item in ranked if not item.seq])
        memories: dict[tuple[UUID, int], Memory] = {
            (row.session, row.seq): episodes.to_memory(row, self.scope.user) for row in turns
        }
        for row, memory in zip(rows, facts.to_memories(connection, rows, self.scope.user), strict=True):
            memories[row.fact, 0] = memory
        return [
            RecalledMemory.model_construct(
                **dict(memories[item.source, item.seq]), score=item.score, score_parts=item.parts
            )
            for item in ranked
            if (item.source, item.seq) in memories
        ]


def _with_tail(corpus: Corpus, tail: Sequence[Row]) -> Corpus:
    """The corpus as it will be once the tail is indexed."""
    lengths = {(row.source, row.seq, row.part): row.length for row in tail}
    passages = corpus.passages + len(lengths)
    terms = corpus.passages * corpus.average_length + sum(lengths.values())
    return Corpus(passages, terms / passages)
