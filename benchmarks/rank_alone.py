"""The time of the ranking alone, in this process, over candidates like those that a search finds."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID, uuid4

from seeding import QUERY_WORDS, TURN_WORDS, TURNS, Words

from threefold_server.rules.candidates import Corpus, Row
from threefold_server.rules.ranking import rank
from threefold_server.storage.memories.search_queries import NEAREST
from threefold_server.text.indexed import Passage, turn_passages
from threefold_server.text.terms import query_terms

QUESTIONS = 50
LIMIT = 30


class IndexedTurn(NamedTuple):
    """A turn with its position in the session, as in the index."""

    session: UUID
    seq: int
    passage: Passage

    def row(self, **found: object) -> Row:
        """Return the row that a search returns for the turn."""
        passage = self.passage
        place = Row(self.session, self.seq, passage.part, passage.speaker, self.seq, passage.length)
        return place._replace(**found)


def rank_ms(memories: int) -> float:
    """Return the median time of a ranking for one owner with a number of memories, in sessions of 80 turns."""
    words = Words(seed=3)
    turns = _talk(words, memories)
    corpus = Corpus(len(turns), statistics.fmean(turn.passage.length for turn in turns))
    taken: list[float] = []
    for _ in range(QUESTIONS):
        query = words.text(QUERY_WORDS)
        rows = _candidates(turns, query)
        began = time.perf_counter()
        rank(query, rows, corpus, min_score=0.25, limit=LIMIT)
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def _talk(words: Words, memories: int) -> list[IndexedTurn]:
    sessions = [uuid4() for _ in range(-(-memories // TURNS))]
    return [
        IndexedTurn(sessions[number // TURNS], number % TURNS + 1, passage)
        for number in range(memories)
        for passage in turn_passages(_turn(number, words), str)
    ]


def _turn(number: int, words: Words) -> SimpleNamespace:
    role = ("user", "assistant")[number % 2]
    return SimpleNamespace(role=role, name=None, content=words.text(TURN_WORDS), created_at=number, utc_offset=0)


def _candidates(turns: Sequence[IndexedTurn], query: str) -> list[Row]:
    """Return every turn with a word of the query, once per word, and some turns that are near in meaning."""
    asked = set(query_terms(query))
    rows = [turn.row(term=term, tf=turn.passage.tf[term]) for turn in turns for term in asked & turn.passage.tf.keys()]
    near = random.sample(turns, min(NEAREST, len(turns)))
    return rows + [turn.row(cosine=random.uniform(0.0, 0.8)) for turn in near]
