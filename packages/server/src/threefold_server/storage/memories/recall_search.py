"""One search of long-term memory in one read: candidates, ranking, and the memories themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from threefold.contract import Memory, RecalledMemory, ScoreTest
from threefold_server.rules.access import ScopeFilter
from threefold_server.rules.ranking import Corpus, Ranked, Row, TurnKey, rank
from threefold_server.rules.trust import trust_of
from threefold_server.storage.engine.deadline import check_in_time
from threefold_server.storage.engine.prepared import Pending
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts, search, turn_memories
from threefold_server.text.indexed import Passage, fact_passages, turn_passages
from threefold_server.text.redaction import Redact
from threefold_server.text.terms import query_terms

Past = dict[UUID, AnyRow]
"""Superseded versions by their keys."""

Cited = dict[UUID, list[TurnKey]]


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
    limits: search.Limits
    limit: int
    redact: Redact

    def run(self, connection: Connection) -> tuple[list[RecalledMemory], int]:
        """Memories in order of score, and how many turns have no vector yet."""
        own = self._send_own(connection) if self.own else None
        shared = self._send_pool(connection, search.shared_pool(self.limits)) if self.shared else None
        found: list[RecalledMemory] = []
        pending = 0
        if own is not None:
            ranked, past, pending = own()
            found += self._hydrate(connection, self.scope.owner, ranked, past)
        if shared is not None:
            found += self._hydrate(connection, None, self._rank(*shared(), {}), {})
        return sorted(found, key=lambda memory: -memory.score), pending

    def _send_own(self, connection: Connection) -> Pending[tuple[list[Ranked], Past, int]]:
        pool = search.own_pool(self.scope, self.limits)
        unindexed = turn_memories.send_unindexed(connection, self.scope)
        pending = search.send_unembedded_count(connection, pool)
        citations = facts.send_citations(connection, self.scope.owner)
        history = self._send_history(connection)
        candidates = self._send_pool(connection, pool)

        def finish() -> tuple[list[Ranked], Past, int]:
            tail, unread = self._tail(unindexed())
            waiting = len({(row.source, row.seq) for row in tail}) + unread + pending()
            past = history()
            unseen = [*tail, *self._past(past.values())]
            cited, outdated = self._cited(citations())
            rows, corpus = candidates()
            rows = [row for row in (*unseen, *rows) if (row.source, row.seq) not in outdated]
            return self._rank(rows, _with_tail(corpus, unseen) if unseen else corpus, cited), past, waiting

        return finish

    def _send_history(self, connection: Connection) -> Pending[Past]:
        """What held at the moment asked about and no longer does; nothing in a recall about the present."""
        if self.limits.until is None:
            return dict
        rows = facts.send_history(connection, self.scope, self.limits.until)
        least = self.limits.min_trust or 0.0
        return lambda: {row.fact: row for row in rows() if row.trust >= least}

    def _cited(self, citations: Sequence[Any]) -> tuple[Cited, set[TurnKey]]:
        """The turns that each fact that holds rests on; and the turns all of whose facts hold no more."""
        cited: Cited = {}
        outdated: set[TurnKey] = set()
        current: set[TurnKey] = set()
        for fact, valid_from, valid_to, session, from_seq, upto_seq in citations:
            places = [(session, seq) for seq in range(from_seq, upto_seq + 1)]
            if self._holds(valid_from, valid_to):
                cited.setdefault(fact, []).extend(places)
                current.update(places)
            else:
                outdated.update(places)
        return cited, outdated - current

    def _holds(self, valid_from: int, valid_to: int | None) -> bool:
        at = self.limits.until
        return valid_to is None if at is None else valid_from <= at and (valid_to is None or at < valid_to)

    def _send_pool(self, connection: Connection, pool: search.Pool) -> Pending[tuple[list[Row], Corpus]]:
        """Send every statement of one pool's search; its candidates and its corpus when called."""
        corpus = search.send_corpus(connection, pool)
        lexical = search.send_lexical(connection, pool, query_terms(self.query))
        dense = None if self.vector is None else search.send_dense(connection, pool, self.vector, self.embedder)
        return lambda: ([*lexical(), *(dense() if dense is not None else [])], corpus())

    def _rank(self, rows: Sequence[Row], corpus: Corpus, cited: Mapping[UUID, Sequence[TurnKey]]) -> list[Ranked]:
        return rank(
            self.query,
            rows,
            corpus,
            cited=cited,
            min_score=self.min_score,
            min_score_of=self.min_score_of,
            limit=self.limit,
        )

    def _tail(self, unindexed: Sequence[Any]) -> tuple[list[Row], int]:
        """Turns too new for the index, with the query's terms counted here and now; and how many were not read."""
        latest = search.ALWAYS if self.limits.until is None else self.limits.until
        least = self.limits.min_trust or 0.0
        trusted = [turn for turn in unindexed if trust_of(turn) >= least]
        wanted = [turn for turn in trusted if turn.event_at <= latest]
        read = [turn for turn in wanted if turn.content is not None]
        rows: list[Row] = []
        for turn in read:
            check_in_time()
            rows += self._unindexed_rows(turn.session, turn.seq, turn.event_at, turn_passages(turn, self.redact))
        return rows, len(wanted) - len(read)

    def _past(self, versions: Iterable[AnyRow]) -> list[Row]:
        """Superseded facts, which are in no index either."""
        return [
            row
            for version in versions
            for row in self._unindexed_rows(version.fact, 0, version.valid_from, fact_passages(version.text))
        ]

    def _unindexed_rows(self, source: UUID, seq: int, at: int, found: Iterable[Passage]) -> Iterator[Row]:
        asked = set(query_terms(self.query))
        for passage in found:
            place = Row(source, seq, passage.part, passage.speaker, at, passage.length, pending=True)
            hits = asked & passage.tf.keys()
            yield from [place._replace(term=term, tf=passage.tf[term]) for term in hits] or [place]

    def _hydrate(
        self, connection: Connection, owner: UUID | None, ranked: Sequence[Ranked], past: Past
    ) -> list[RecalledMemory]:
        """The memories behind ranked places (owner None: of the shared pool), as far as the scope sees them."""
        turns = turn_memories.by_place(connection, self.scope, [(item.source, item.seq) for item in ranked if item.seq])
        current = facts.by_keys(connection, owner, [item.source for item in ranked if not item.seq])
        rows = [*current, *(past[item.source] for item in ranked if item.source in past)]
        memories: dict[tuple[UUID, int], Memory] = {
            (row.session, row.seq): turn_memories.to_memory(row, self.scope.user, self.redact) for row in turns
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
