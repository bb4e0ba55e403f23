"""The candidates of a search as columns: turns and facts, whole and in parts. Pure.

`from_rows` makes them from the rows that a database found, `from_passages` from the arrays of an owner in memory. Both
give the same columns, so the ranking does not depend on where a search ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
TurnKey: TypeAlias = tuple[UUID, int]
"""A turn: its session and sequence number."""

SEQ_BITS = 32
_PART_BITS = 16


class Row(NamedTuple):
    """A search hit of one passage: a term of the query in it (`term`, `tf`), its `cosine`, or both.

    (`source`, `seq`) is (session, sequence number) for a turn and (fact, 0) for a fact; a long text has several parts.
    The rows of a passage differ only in `term`, `tf` and `cosine`, come in any order, and have each term once. `at`
    orders by age; `length` counts terms.
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
    """It has no vector yet, so only its words can find it."""


class Corpus(NamedTuple):
    """The number of passages that the reader may see, hits or not, and their mean length in terms."""

    passages: int
    average_length: float


@dataclass(frozen=True)
class Texts:
    """Texts as columns: counts of terms (texts x terms), lengths, and cosines (NaN: not known)."""

    tf: Floats
    length: Floats
    cosine: Floats
    pending: NDArray[np.bool_]


@dataclass(frozen=True)
class Passages:
    """Passages as columns, each once and in any order."""

    keys: Sequence[int]
    """The keys of the sources, by number."""
    source: Ints
    seq: Ints
    part: Ints
    at: Ints
    speaker: Sequence[str | None]
    texts: Texts
    cited: Ints
    """(session, sequence number, fact) of each turn that a fact cites; session and fact are sources by number."""


@dataclass(frozen=True)
class Candidates:
    """Turns and facts, whole and in parts, sorted by key (source, then seq) so that neighbours are found by search."""

    source_at: Callable[[int], UUID]
    """The source with a number; sources are numbered in the order of their keys."""
    key: Ints
    at: Ints
    speaker: Sequence[str | None]
    whole: Texts
    parts: Texts
    part_of: Ints
    cited: Ints
    """(key of a turn, key of a fact that cites it), only where both are candidates."""

    @property
    def source(self) -> Ints:
        return self.key >> SEQ_BITS

    @property
    def seq(self) -> Ints:
        return self.key & ((1 << SEQ_BITS) - 1)


def from_rows(rows: Sequence[Row], terms: Sequence[str], cited: Mapping[UUID, Sequence[TurnKey]]) -> Candidates:
    """Return the candidates of at least one row."""
    source, seq, part, _, at, length, term, tf, cosine, pending = zip(*rows, strict=True)
    numbers = [key.int for key in source]  # hashing UUIDs takes 6 of 11 ms at 5,000 rows
    ordered: list[int] = sorted(set(numbers))
    code = {number: i for i, number in enumerate(ordered)}
    keys = np.array([code[number] for number in numbers]) << SEQ_BITS | np.array(seq)
    key, first, item = np.unique(keys, return_index=True, return_inverse=True)
    part_key = item << _PART_BITS | np.array(part)
    part_keys, sample, passage = np.unique(part_key, return_index=True, return_inverse=True)
    cosines = np.full(len(sample), np.nan)
    np.fmax.at(cosines, passage, np.array(cosine, dtype=float))
    counts = _counts(passage, term, tf, terms)
    lengths = np.array(length, dtype=float)[sample]
    parts = Texts(counts, lengths, cosines, np.array(pending, dtype=bool)[sample])
    sampled: list[int] = first.tolist()
    part_of = part_keys >> _PART_BITS
    return Candidates(
        source_at=lambda number: UUID(int=ordered[number]),
        key=key,
        at=np.array(at)[first],
        speaker=[rows[i].speaker for i in sampled],
        whole=join(parts, part_of),
        parts=parts,
        part_of=part_of,
        cited=_pairs(code, cited),
    )


def from_passages(passages: Passages) -> Candidates:
    """Return the candidates of at least one passage."""
    ordered: list[int] = sorted(np.unique(passages.source).tolist(), key=passages.keys.__getitem__)
    code = np.full(len(passages.keys), -1, dtype=np.int64)
    code[ordered] = np.arange(len(ordered))
    keys = code[passages.source] << SEQ_BITS | passages.seq
    order = np.lexsort((passages.part, keys))
    key, first, part_of = np.unique(keys[order], return_index=True, return_inverse=True)
    texts = passages.texts
    parts = Texts(texts.tf[order], texts.length[order], texts.cosine[order], texts.pending[order])
    first_of = order[first]
    sampled: list[int] = first_of.tolist()
    session, seq, fact = code[passages.cited[:, 0]], passages.cited[:, 1], code[passages.cited[:, 2]]
    here = (session >= 0) & (fact >= 0)
    return Candidates(
        source_at=lambda number: UUID(int=passages.keys[ordered[number]]),
        key=key,
        at=passages.at[first_of],
        speaker=[passages.speaker[i] for i in sampled],
        whole=join(parts, part_of),
        parts=parts,
        part_of=part_of,
        cited=np.stack([session[here] << SEQ_BITS | seq[here], fact[here] << SEQ_BITS], axis=1),
    )


def with_rows(passages: Passages, rows: Sequence[Row], terms: Sequence[str], number: Callable[[int], int]) -> Passages:
    """Return passages together with those of rows that have no vector.

    Args:
        number: Returns the number of a source by its key; a new source gets one.
    """
    if not rows:
        return passages
    first = {(row.source, row.seq, row.part): row for row in reversed(rows)}
    place = {key: i for i, key in enumerate(first)}
    column = {term: i for i, term in enumerate(terms)}
    tf = np.zeros((len(first), len(terms)))
    for row in rows:
        if row.term is not None:
            tf[place[row.source, row.seq, row.part], column[row.term]] = row.tf
    more = list(first.values())
    return Passages(
        keys=passages.keys,
        source=_added(passages.source, [number(row.source.int) for row in more]),
        seq=_added(passages.seq, [row.seq for row in more]),
        part=_added(passages.part, [row.part for row in more]),
        at=_added(passages.at, [row.at for row in more]),
        speaker=[*passages.speaker, *(row.speaker for row in more)],
        texts=_added_texts(passages.texts, tf, [row.length for row in more]),
        cited=passages.cited,
    )


def starts(group: Ints) -> Ints:
    """Return where each group begins in a sorted column."""
    return np.flatnonzero(np.diff(group, prepend=-1))


def join(texts: Texts, group: Ints) -> Texts:
    """Return each group of texts as one text."""
    start = starts(group)
    return Texts(
        np.add.reduceat(texts.tf, start),
        np.add.reduceat(texts.length, start),
        np.fmax.reduceat(texts.cosine, start),
        np.logical_and.reduceat(texts.pending, start),
    )


def _added(column: Ints, values: Sequence[int]) -> Ints:
    return np.concatenate([column, np.array(values, np.int64)])


def _added_texts(texts: Texts, tf: Floats, length: Sequence[int]) -> Texts:
    return Texts(
        np.concatenate([texts.tf, tf]),
        np.concatenate([texts.length, np.array(length, float)]),
        np.concatenate([texts.cosine, np.full(len(length), np.nan)]),
        np.concatenate([texts.pending, np.ones(len(length), bool)]),
    )


def _counts(passage: Ints, term: Sequence[str | None], tf: Sequence[int], terms: Sequence[str]) -> Floats:
    """Return how often each passage contains each term."""
    column: dict[str | None, int] = {name: i for i, name in enumerate(terms)}
    columns = np.array([column.get(name, len(terms)) for name in term])
    counts = np.zeros((passage.max() + 1, len(terms) + 1))
    counts[passage, columns] = tf
    return counts[:, :-1]


def _pairs(code: Mapping[int, int], cited: Mapping[UUID, Sequence[TurnKey]]) -> Ints:
    pairs = [
        (code[session.int] << SEQ_BITS | seq, code[fact.int] << SEQ_BITS)
        for fact, turns in cited.items()
        for session, seq in turns
        if fact.int in code and session.int in code
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
