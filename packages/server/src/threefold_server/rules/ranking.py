"""The ranking of long-term memory: words, meaning and the structure of conversations in one score. Pure.

Recall@10 of the evidence in long conversations (LoCoMo, 760 questions): BM25 66, cosine 50, both 71; with windows,
sessions and speakers 81; with substance 82; with facts that cite turns 83. Fusing by ranks (RRF) falls below BM25.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from threefold.contract import ScoreParts, ScoreTest
from threefold_server.text.terms import query_terms, speakers_named

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Place: TypeAlias = tuple[UUID, int]
"""A turn: its session and sequence number."""

K1, B = 0.9, 0.4
WEIGHTS = {"turn": 0.24, "window": 0.56, "session": 0.08, "speaker": 0.12}
# Of memories that fit alike, the one that says more is more often the evidence: recall@5 +1.3, recall@10 +0.8.
SUBSTANCE = 0.3

_SEQ_BITS, _PART_BITS = 32, 16
_AROUND = np.array([-1, 0, 1])


class Row(NamedTuple):
    """One thing the index knows about a passage: a term of the query in it (`term`, `tf`), its `cosine`, or both.

    A turn is (its session, its seq), a fact is (itself, 0); a long text has several parts. The rows of a passage agree
    in all else and come in any order, each term once. `at` orders by age; `length` counts terms.
    """

    source: UUID
    seq: int
    part: int
    speaker: str | None
    at: int
    length: int
    term: str | None = None
    tf: int = 0
    cosine: float | None = None
    pending: bool = False
    """It has no vector yet, so that words alone must find it."""


class Corpus(NamedTuple):
    """All passages that the reader may see, hit or not: how many, and their mean length in terms."""

    passages: int
    average_length: float


class Ranked(NamedTuple):
    """A turn or a fact, its score (0 to 1), and where the score comes from."""

    source: UUID
    seq: int
    score: float
    parts: ScoreParts


@dataclass(frozen=True)
class _Texts:
    """Texts as columns: how often each has each term (texts x terms), its length, its cosine (NaN: not known)."""

    tf: Floats
    length: Floats
    cosine: Floats
    pending: NDArray[np.bool_]


@dataclass(frozen=True)
class _Items:
    """Turns and facts, whole and in parts, sorted by key (source, then seq) so that neighbours are found by search."""

    code: dict[int, int]
    key: Ints
    row: Ints
    at: Ints
    speaker: list[str | None]
    whole: _Texts
    parts: _Texts
    part_of: Ints

    @property
    def source(self) -> Ints:
        return self.key >> _SEQ_BITS

    @property
    def seq(self) -> Ints:
        return self.key & ((1 << _SEQ_BITS) - 1)


def rank(
    query: str,
    rows: Sequence[Row],
    corpus: Corpus,
    *,
    cited: Mapping[UUID, Sequence[Place]] | None = None,
    min_score: float = 0.0,
    min_score_of: ScoreTest = "either",
    limit: int | None = None,
) -> list[Ranked]:
    """The items of the rows, best first, equals newest first. `cited` says which turns a fact rests on."""
    if not rows:
        return []
    corpus = corpus._replace(average_length=max(corpus.average_length, 1.0))
    terms = query_terms(query)
    items = _items(rows, terms)
    own = np.maximum.reduceat(_relevance(items.parts, corpus), _starts(items.part_of))
    parts = {
        "turn": _lifted(own, items, cited or {}),
        "window": np.where(items.seq == 0, own, _windows(items, corpus)),
        "session": _sessions(items),
        "speaker": _speakers(items, query, terms),
    }
    score = _score(parts, items.whole.length / (items.whole.length + corpus.average_length))
    parts |= {"cosine": np.maximum(items.whole.cosine, 0.0), "coverage": _coverage(items, corpus)}
    absolute = _absolute(parts, items.whole.pending, min_score_of)
    passes = (absolute > 0) & (absolute >= min_score)
    order = np.lexsort((-items.seq, -items.at, -score))
    best = order[passes[order]][:limit]
    return [_ranked(rows[int(items.row[i])], float(score[i]), parts, i) for i in best]


def _items(rows: Sequence[Row], terms: Sequence[str]) -> _Items:
    source, seq, part, speaker, at, length, term, tf, cosine, pending = zip(*rows, strict=True)
    numbers = [key.int for key in source]  # a UUID is hashed in Python: 6 of 11 ms at 5,000 rows
    code = {number: i for i, number in enumerate(sorted(set(numbers)))}
    keys = np.array([code[number] for number in numbers]) << _SEQ_BITS | np.array(seq)
    key, first, item = np.unique(keys, return_index=True, return_inverse=True)
    part_key = item << _PART_BITS | np.array(part)
    part_keys, sample, passage = np.unique(part_key, return_index=True, return_inverse=True)
    cosines = np.full(len(sample), np.nan)
    np.fmax.at(cosines, passage, np.array(cosine, dtype=float))
    counts = _counts(passage, term, tf, terms)
    lengths = np.array(length, dtype=float)[sample]
    parts = _Texts(counts, lengths, cosines, np.array(pending, dtype=bool)[sample])
    part_of = part_keys >> _PART_BITS
    speakers = [speaker[i] for i in first]
    return _Items(code, key, first, np.array(at)[first], speakers, _joined(parts, part_of), parts, part_of)


def _counts(passage: Ints, term: Sequence[str | None], tf: Sequence[int], terms: Sequence[str]) -> Floats:
    """How often each passage has each term."""
    column: dict[str | None, int] = {name: i for i, name in enumerate(terms)}
    columns = np.array([column.get(name, len(terms)) for name in term])
    counts = np.zeros((passage.max() + 1, len(terms) + 1))
    counts[passage, columns] = tf
    return counts[:, :-1]


def _starts(group: Ints) -> Ints:
    """Where each group begins in a sorted column."""
    return np.flatnonzero(np.diff(group, prepend=-1))


def _joined(texts: _Texts, group: Ints) -> _Texts:
    """Each group of texts as one text."""
    start = _starts(group)
    return _Texts(
        np.add.reduceat(texts.tf, start),
        np.add.reduceat(texts.length, start),
        np.fmax.reduceat(texts.cosine, start),
        np.logical_and.reduceat(texts.pending, start),
    )


def _relevance(texts: _Texts, corpus: Corpus) -> Floats:
    words = _unit(_bm25(texts, corpus))
    return 0.5 * np.where(texts.pending, words, _unit(_known(texts.cosine))) + 0.5 * words


def _bm25(texts: _Texts, corpus: Corpus) -> Floats:
    norm = K1 * (1 - B + B * texts.length / corpus.average_length)
    return texts.tf * (K1 + 1) / (texts.tf + norm[:, None]) @ _rarity(texts, corpus)


def _rarity(texts: _Texts, corpus: Corpus) -> Floats:
    """The inverse document frequency of each term. All texts with a term are here, so counting them suffices."""
    having = np.count_nonzero(texts.tf, axis=0)
    return np.log1p((np.maximum(corpus.passages - having, 0) + 0.5) / (having + 0.5))


def _known(cosine: Floats) -> Floats:
    """A cosine that is not known is taken as the weakest that is: it was not among the nearest (recall@10 -0.2)."""
    known = ~np.isnan(cosine)
    weakest = cosine.min(where=known, initial=1.0) if known.any() else 0.0
    return np.maximum(np.where(known, cosine, weakest), 0.0)


def _unit(values: Floats) -> Floats:
    """Scaled so that the best is 1. Zero stays zero: no hit, or nothing in common."""
    return values / (values.max(initial=0.0) or 1.0)


def _lifted(own: Floats, items: _Items, cited: Mapping[UUID, Sequence[Place]]) -> Floats:
    """A turn is as relevant as the best fact drawn from it."""
    code = items.code
    pairs = [
        (code[session.int] << _SEQ_BITS | seq, code[fact.int] << _SEQ_BITS)
        for fact, places in cited.items()
        for session, seq in places
        if fact.int in code and session.int in code
    ]
    turn, fact = _find(items.key, np.array(pairs, dtype=np.int64).reshape(-1, 2)).T
    lifted = np.append(own, 0.0)
    np.maximum.at(lifted, turn, lifted[fact])
    return lifted[:-1]


def _windows(items: _Items, corpus: Corpus) -> Floats:
    """The best of the three windows of three turns around each turn: an answer often lacks the question's words."""
    centre = np.unique(items.key[:, None] + _AROUND)
    member = _find(items.key, centre[:, None] + _AROUND)
    cosine = _known(items.whole.cosine)
    windows = _Texts(
        np.vstack([items.whole.tf, np.zeros(items.whole.tf.shape[1])])[member].sum(axis=1),
        np.append(items.whole.length, corpus.average_length)[member].sum(axis=1),
        np.append(cosine, cosine.min())[member].mean(axis=1),
        np.zeros(len(centre), dtype=bool),
    )
    score = _relevance(windows, Corpus(corpus.passages, 3 * corpus.average_length))
    return score[_find(centre, items.key[:, None] + _AROUND)].max(axis=1)


def _find(keys: Ints, wanted: Ints) -> Ints:
    """Where each wanted key is; one past the end if it is not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, len(keys))


def _sessions(items: _Items) -> Floats:
    """How well the words of the whole session fit; without its length, which costs a query and gains nothing."""
    sessions = _joined(items.whole, items.source)
    average = Corpus(len(sessions.length), 1.0)
    return _unit(_bm25(replace(sessions, length=np.ones(average.passages)), average))[items.source]


def _speakers(items: _Items, query: str, terms: Sequence[str]) -> Floats:
    """Whether a turn is by someone whom the query names, or a fact tells of them."""
    named = speakers_named(query, {name for name in items.speaker if name})
    names = {term for name in named for term in query_terms(name)}
    by = np.array([name in named for name in items.speaker])
    about = items.whole.tf[:, [term in names for term in terms]].any(axis=1)
    return np.where(items.seq == 0, about, by).astype(float)


def _score(parts: Mapping[str, Floats], substance: Floats) -> Floats:
    """Rounded, since texts that are alike must tie wherever they stand in a matrix product."""
    fused = sum((WEIGHTS[name] * part for name, part in parts.items()), start=np.zeros_like(substance))
    return np.round(fused * (1 + SUBSTANCE * substance) / (1 + SUBSTANCE), 9)


def _coverage(items: _Items, corpus: Corpus) -> Floats:
    """The share of the query's terms, by rarity, that each item has."""
    rarity = _rarity(items.parts, corpus)
    return (items.whole.tf > 0) @ rarity / (rarity.sum() or 1.0)


def _absolute(parts: Mapping[str, Floats], pending: NDArray[np.bool_], min_score_of: ScoreTest) -> Floats:
    """What `min_score` tests. Never the fused score: the best of a bad lot has a high one too."""
    cosine, coverage = parts["cosine"], parts["coverage"]
    if min_score_of == "cosine":  # words stand in where there are no vectors to compare: of the query, or not yet
        coverage = np.where(pending | np.isnan(cosine).all(), coverage, 0.0)
    return np.fmax(cosine, coverage)


def _ranked(row: Row, score: float, parts: Mapping[str, Floats], i: int) -> Ranked:
    values = {name: float(part[i]) for name, part in parts.items() if not np.isnan(part[i])}
    return Ranked(row.source, row.seq, score, ScoreParts(**values))
