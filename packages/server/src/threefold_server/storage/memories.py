"""One search of long-term memory in one read: candidates, ranking, and the memories themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from threefold.contract import Memory, RecalledMemory, ScoreTest
from threefold_server.access import ScopeFilter
from threefold_server.indexing import turn_passages
from threefold_server.ranking import Corpus, Ranked, Row, rank
from threefold_server.redaction import Redact
from threefold_server.storage import episodes, facts, search
from threefold_server.text import query_terms
from threefold_server.trust import trust_of

TAIL_CHARS = 100_000
"""A turn longer than this is found once it is indexed: reading its words here took half a recall's deadline."""


@dataclass(frozen=True)
class Search:
    """What to look for, where, and how much of it."""

    query: str
    vector: NDArray[np.float32] | None
    embedder: str
    scope: ScopeFilter
    own: bool
    shared: bool
    min_score: float
    min_score_of: ScoreTest
    min_trust: float | None
    limit: int
    now: int
    redact: Redact

    def run(self, connection: Connection) -> tuple[list[RecalledMemory], int]:
        """Memories in order of score, and how many turns have no vector yet."""
        own = self._start_own(connection) if self.own else None
        shared = self._start(connection, search.shared_pool(self.now, self.min_trust)) if self.shared else None
        found: list[RecalledMemory] = []
        pending = 0
        if own is not None:
            ranked, pending = own()
            found += self._hydrate(connection, self.scope.owner, ranked)
        if shared is not None:
            found += self._hydrate(connection, None, self._rank(*shared(), {}))
        return sorted(found, key=lambda memory: -memory.score), pending

    def _start_own(self, connection: Connection) -> Callable[[], tuple[list[Ranked], int]]:
        pool = search.own_pool(self.scope, self.now, self.min_trust)
        unindexed = episodes.start_unindexed(connection, self.scope)
        pending = search.start_pending(connection, pool)
        citations = facts.start_citations(connection, self.scope.owner)
        candidates = self._start(connection, pool)

        def finish() -> tuple[list[Ranked], int]:
            tail = self._tail(unindexed())
            waiting = len({(row.source, row.seq) for row in tail}) + pending()
            cited: dict[UUID, list[tuple[UUID, int]]] = {}
            for fact, session, from_seq, upto_seq in citations():
                cited.setdefault(fact, []).extend((session, seq) for seq in range(from_seq, upto_seq + 1))
            rows, corpus = candidates()
            return self._rank([*tail, *rows], _with_tail(corpus, tail) if tail else corpus, cited), waiting

        return finish

    def _start(self, connection: Connection, pool: search.Pool) -> Callable[[], tuple[list[Row], Corpus]]:
        """Send every statement of one pool's search; its candidates and its corpus when called."""
        corpus = search.start_corpus(connection, pool)
        lexical = search.start_lexical(connection, pool, query_terms(self.query))
        dense = None if self.vector is None else search.start_dense(connection, pool, self.vector, self.embedder)
        return lambda: ([*lexical(), *(dense() if dense is not None else [])], corpus())

    def _rank(
        self, rows: Sequence[Row], corpus: Corpus, cited: Mapping[UUID, Sequence[tuple[UUID, int]]]
    ) -> list[Ranked]:
        return rank(
            self.query,
            rows,
            corpus,
            cited=cited,
            min_score=self.min_score,
            min_score_of=self.min_score_of,
            limit=self.limit,
        )

    def _tail(self, unindexed: Sequence[Any]) -> list[Row]:
        """Turns too new for the index, with the query's terms counted here and now."""
        asked = set(query_terms(self.query))
        rows: list[Row] = []
        for turn in unindexed:
            if self.min_trust is not None and trust_of(turn.role) < self.min_trust:
                continue
            if len(turn.content) > TAIL_CHARS:
                continue
            for passage in turn_passages(turn, self.redact):
                described = (passage.part, passage.speaker, turn.event_at, passage.length)
                place = Row(turn.session, turn.seq, *described, pending=True)
                hits = asked & passage.tf.keys()
                rows += [place._replace(term=term, tf=passage.tf[term]) for term in hits] or [place]
        return rows

    def _hydrate(self, connection: Connection, owner: UUID | None, ranked: Sequence[Ranked]) -> list[RecalledMemory]:
        """The memories behind ranked places (owner None: of the shared pool), as far as the scope sees them."""
        turns = episodes.by_place(connection, self.scope, [(item.source, item.seq) for item in ranked if item.seq])
        rows = facts.by_keys(connection, owner, [item.source for item in ranked if not item.seq])
        memories: dict[tuple[UUID, int], Memory] = {
            (row.session, row.seq): episodes.to_memory(row, self.scope.user, self.redact) for row in turns
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
