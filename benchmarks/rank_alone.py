"""How long the ranking itself takes, in this process, over candidates as a search would find them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID, uuid4

from seeding import QUERY_WORDS, TURN_WORDS, TURNS, Words

from threefold_server.rules.ranking import Corpus, Row, rank
from threefold_server.storage.memories.search import NEAREST
from threefold_server.text.indexed import Passage, turn_passages
from threefold_server.text.terms import query_terms

QUESTIONS = 50
LIMIT = 30


class Said(NamedTuple):
    """A turn in its place, as the index knows it."""

    session: UUID
    seq: int
    passage: Passage

    def row(self, **found: object) -> Row:
        """What a search finds of it."""
        passage = self.passage
        place = Row(self.session, self.seq, passage.part, passage.speaker, self.seq, passage.length)
        return place._replace(**found)


def rank_ms(memories: int) -> float:
    """The median over questions to one owner who has so many memories, in sessions of 80 turns."""
    words = Words(seed=3)
    said = _talk(words, memories)
    corpus = Corpus(len(said), statistics.fmean(turn.passage.length for turn in said))
    taken: list[float] = []
    for _ in range(QUESTIONS):
        query = words.text(QUERY_WORDS)
        rows = _candidates(said, query)
        began = time.perf_counter()
        rank(query, rows, corpus, min_score=0.25, limit=LIMIT)
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def _talk(words: Words, memories: int) -> list[Said]:
    sessions = [uuid4() for _ in range(-(-memories // TURNS))]
    return [
        Said(sessions[number // TURNS], number % TURNS + 1, passage)
        for number in range(memories)
        for passage in turn_passages(_turn(number, words), str)
    ]


def _turn(number: int, words: Words) -> SimpleNamespace:
    role = ("user", "assistant")[number % 2]
    return SimpleNamespace(role=role, name=None, content=words.text(TURN_WORDS), created_at=number, utc_offset=0)


def _candidates(said: Sequence[Said], query: str) -> list[Row]:
    """Every turn that has a word of the query, once per word, and some that are near to it."""
    asked = set(query_terms(query))
    rows = [turn.row(term=term, tf=turn.passage.tf[term]) for turn in said for term in asked & turn.passage.tf.keys()]
    near = random.sample(said, min(NEAREST, len(said)))
    return rows + [turn.row(cosine=random.uniform(0.0, 0.8)) for turn in near]
