"""One search of long-term memory in one read transaction: find candidates, rank them, load the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from threefold.contract import Memory, RecalledMemory, ScoreTest
from threefold_server.rules.access import ScopeFilter
from threefold_server.rules.candidates import Candidates, Corpus, Row, TurnKey, from_passages, from_rows
from threefold_server.rules.ranking import Ranked, rank_candidates
from threefold_server.rules.trust import trust_of
from threefold_server.storage.engine.deadline import check_in_time
from threefold_server.storage.engine.prepared import Pending
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts, owner_arrays, owner_index, search_queries, turn_memories
from threefold_server.storage.memories.owner_arrays import OwnerIndex
from threefold_server.storage.memories.owner_index import IndexCache
from threefold_server.text.indexed import Passage, fact_passages, turn_passages
from threefold_server.text.redaction import Redact
from threefold_server.text.terms import query_terms

Superseded = dict[UUID, AnyRow]
"""Superseded versions by their keys."""

Cited = dict[UUID, list[TurnKey]]
"""The source turns of each fact."""


class _Ranking(NamedTuple):
    """The best of an owner's memories, and how many have no vector yet."""

    ranked: list[Ranked]
    superseded: Superseded
    pending: int


@dataclass(frozen=True)
class Search:
    """The parameters of one search.

    `own` and `shared` choose the pools, `limit` is the most results, and `vector` is None for a search by words only.
    """

    query: str
    vector: NDArray[np.float32] | None
    embedder: str
    scope: ScopeFilter
    own: bool
    shared: bool
    min_score: float
    min_score_of: ScoreTest
    conditions: search_queries.Conditions
    limit: int
    redact: Redact
    index: IndexCache

    @cached_property
    def terms(self) -> list[str]:
        """The terms of the query, computed once, as up to 500 unindexed turns are compared with them."""
        return query_terms(self.query)

    def run(self, connection: Connection) -> tuple[list[RecalledMemory], int]:
        """Return memories, the best score first, and the number of own memories that have no vector yet."""
        own = self._send_own(connection) if self.own else None
        shared = self._send_pool(connection, search_queries.shared_pool(self.conditions)) if self.shared else None
        found: list[RecalledMemory] = []
        pending = 0
        if own is not None:
            ranked, superseded, pending = own()
            found += self._hydrate(connection, self.scope.owner, ranked, superseded)
        if shared is not None:
            found += self._hydrate(connection, None, self._rank_rows(*shared(), {}), {})
        return sorted(found, key=lambda memory: -memory.score), pending

    def _send_own(self, connection: Connection) -> Pending[_Ranking]:
        """Send for the ranked memories of the owner, from the index in memory if there is one."""
        unindexed = turn_memories.send_unindexed(connection, self.scope)
        history = self._send_history(connection)
        revision = owner_index.send_revision(connection, self.scope.owner) if self.index.is_on else None
        in_database = self._send_database(connection) if revision is None else None

        def receive() -> _Ranking:
            new_turns, unread = self._unindexed_turns(unindexed())
            superseded = history()
            added = [*new_turns, *self._superseded_facts(superseded.values())]
            index = None if revision is None else self._index(connection, revision())
            if index is not None:
                ranked, pending = self._rank_in_memory(index, added)
            else:
                ranked, pending = (in_database or self._send_database(connection))(added)
            without_vector = len({(row.source, row.seq) for row in new_turns}) + unread + pending
            return _Ranking(ranked, superseded, without_vector)

        return receive

    def _index(self, connection: Connection, revision: owner_index.Revision) -> OwnerIndex | None:
        return self.index.get(connection, self.scope.owner, self.embedder, revision)

    def _rank_in_memory(self, index: OwnerIndex, added: Sequence[Row]) -> tuple[list[Ranked], int]:
        query = owner_arrays.Query(self.terms, self.vector, self.scope, self.conditions)
        found = index.search(query, added)
        if found.passages is None:
            return [], found.pending
        corpus = _enlarged(found.corpus, added) if added else found.corpus
        return self._rank(from_passages(found.passages), corpus), found.pending

    def _send_database(self, connection: Connection) -> Callable[[Sequence[Row]], tuple[list[Ranked], int]]:
        """Send for the search in the database. What it returns takes the rows that are in no index."""
        pool = search_queries.own_pool(self.scope, self.conditions)
        pending = search_queries.send_unembedded_count(connection, pool)
        citations = facts.send_citations(connection, self.scope.owner)
        candidates = self._send_pool(connection, pool)

        def receive(added: Sequence[Row]) -> tuple[list[Ranked], int]:
            without_vector = pending()
            cited, outdated = self._current_citations(citations())
            rows, corpus = candidates()
            rows = [row for row in (*added, *rows) if (row.source, row.seq) not in outdated]
            corpus = _enlarged(corpus, added) if added else corpus
            return self._rank_rows(rows, corpus, cited), without_vector

        return receive

    def _send_history(self, connection: Connection) -> Pending[Superseded]:
        """Send for the superseded versions that were valid at `until`. A recall about the present needs none."""
        if self.conditions.until is None:
            return dict
        rows = facts.send_history(connection, self.scope, self.conditions.until)
        min_trust = self.conditions.min_trust or 0.0
        return lambda: {row.fact: row for row in rows() if row.trust >= min_trust}

    def _current_citations(self, citations: Sequence[Any]) -> tuple[Cited, set[TurnKey]]:
        """Return the source turns of each valid fact, and the turns whose facts are all no longer valid."""
        cited: Cited = {}
        outdated: set[TurnKey] = set()
        current: set[TurnKey] = set()
        for fact, valid_from, valid_to, session, from_seq, upto_seq in citations:
            keys = [(session, seq) for seq in range(from_seq, upto_seq + 1)]
            if self._is_valid(valid_from, valid_to):
                cited.setdefault(fact, []).extend(keys)
                current.update(keys)
            else:
                outdated.update(keys)
        return cited, outdated - current

    def _is_valid(self, valid_from: int, valid_to: int | None) -> bool:
        at = self.conditions.until
        return valid_to is None if at is None else valid_from <= at and (valid_to is None or at < valid_to)

    def _send_pool(self, connection: Connection, pool: search_queries.Pool) -> Pending[tuple[list[Row], Corpus]]:
        """Send all statements of the search of one pool, which give its candidates and its corpus."""
        corpus = search_queries.send_corpus(connection, pool)
        lexical = search_queries.send_lexical(connection, pool, self.terms)
        dense = None if self.vector is None else search_queries.send_dense(connection, pool, self.vector, self.embedder)
        return lambda: ([*lexical(), *(dense() if dense is not None else [])], corpus())

    def _rank_rows(self, rows: Sequence[Row], corpus: Corpus, cited: Mapping[UUID, Sequence[TurnKey]]) -> list[Ranked]:
        return self._rank(from_rows(rows, self.terms, cited), corpus) if rows else []

    def _rank(self, candidates: Candidates, corpus: Corpus) -> list[Ranked]:
        return rank_candidates(
            self.query,
            candidates,
            corpus,
            min_score=self.min_score,
            min_score_of=self.min_score_of,
            limit=self.limit,
        )

    def _unindexed_turns(self, unindexed: Sequence[Any]) -> tuple[list[Row], int]:
        """Count the query's terms in turns that are not in the index; return also how many turns were not read."""
        latest = search_queries.ALWAYS if self.conditions.until is None else self.conditions.until
        min_trust = self.conditions.min_trust or 0.0
        trusted = [turn for turn in unindexed if trust_of(turn) >= min_trust]
        eligible = [turn for turn in trusted if turn.event_at <= latest]
        read = [turn for turn in eligible if turn.content is not None]
        rows: list[Row] = []
        for turn in read:
            check_in_time()
            rows += self._passage_rows(turn.session, turn.seq, turn.event_at, turn_passages(turn, self.redact))
        return rows, len(eligible) - len(read)

    def _superseded_facts(self, versions: Iterable[AnyRow]) -> list[Row]:
        """Count the query's terms in superseded versions, which are not in the index either."""
        return [
            row
            for version in versions
            for row in self._passage_rows(version.fact, 0, version.valid_from, fact_passages(version.text))
        ]

    def _passage_rows(self, source: UUID, seq: int, at: int, found: Iterable[Passage]) -> Iterator[Row]:
        for passage in found:
            row = Row(source, seq, passage.part, passage.speaker, at, passage.length, pending=True)
            hits = passage.tf.keys() & self.terms
            yield from [row._replace(term=term, tf=passage.tf[term]) for term in hits] or [row]

    def _hydrate(
        self, connection: Connection, owner: UUID | None, ranked: Sequence[Ranked], superseded: Superseded
    ) -> list[RecalledMemory]:
        """Return the ranked memories that are visible to the scope. The owner is None for the shared pool."""
        turns = turn_memories.by_keys(connection, self.scope, [(item.source, item.seq) for item in ranked if item.seq])
        current = facts.by_keys(connection, owner, [item.source for item in ranked if not item.seq])
        rows = [*current, *(superseded[item.source] for item in ranked if item.source in superseded)]
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


def _enlarged(corpus: Corpus, added: Sequence[Row]) -> Corpus:
    """Return the corpus as it will be once the added rows are indexed."""
    lengths = {(row.source, row.seq, row.part): row.length for row in added}
    passages = corpus.passages + len(lengths)
    terms = corpus.passages * corpus.average_length + sum(lengths.values())
    return Corpus(passages, terms / passages)
