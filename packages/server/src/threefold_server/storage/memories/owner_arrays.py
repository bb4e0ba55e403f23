"""The passages of one owner as arrays, and a search over them.

An `OwnerIndex` does not change; methods such as `with_rows` return a new one. Vectors are shared, because copying them
takes longest: a later index writes its rows behind those of an earlier one, which never reads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from threefold_server.rules.access import ScopeFilter
from threefold_server.rules.candidates import SEQ_BITS, Corpus, Floats, Ints, Passages, Row, Texts, with_rows
from threefold_server.storage.engine.scope import visible_to
from threefold_server.storage.memories.search_queries import NEAREST, Conditions

Vectors: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = NDArray[np.void]
PassageKey: TypeAlias = tuple[UUID, int, int]

NEVER = 2**62
NO_VECTOR, OURS, OTHERS = 0, 1, 2
"""The state of a passage's vector: none yet, from the embedder of this process, from another embedder."""

SEGMENTS = 8
"""Most segments of the postings. More are merged into one, because each is searched separately."""
GARBAGE = 64
"""The arrays are compacted when replaced and removed passages exceed a half of all by this number."""
NAME_BYTES = 250
"""Approximate bytes of a key or name in its table."""

_COLUMNS = np.dtype(
    [
        *((name, np.int64) for name in ("seq", "at", "expires_at")),
        *((name, np.float64) for name in ("length", "trust")),
        *((name, np.int32) for name in ("source", "part", "speaker", "agent", "session")),
        *((name, np.int8) for name in ("visibility", "embedded")),
        ("alive", np.bool_),
    ]
)


class PassageRow(NamedTuple):
    """The columns of `passages` that the index reads."""

    source: UUID
    seq: int
    part: int
    agent: str
    session: UUID | None
    visibility: int
    speaker: str | None
    length: int
    event_at: int
    trust: float
    expires_at: int | None
    embedder: str | None
    vector: Vectors | None
    terms: str | None


class Citation(NamedTuple):
    """A range of turns that a version of a fact rests on."""

    fact: UUID
    valid_from: int
    valid_to: int | None
    session: UUID
    from_seq: int
    upto_seq: int


class Found(NamedTuple):
    """The result of a search: candidates (None if it found nothing), corpus, and number of turns without a vector."""

    passages: Passages | None
    corpus: Corpus
    pending: int


@dataclass(frozen=True)
class Query:
    """The query of a search, and whose memories it may return."""

    terms: Sequence[str]
    vector: Vectors | None
    scope: ScopeFilter
    conditions: Conditions


class Numbers:
    """Numbered names, in order of arrival. Names are added and never removed."""

    def __init__(self) -> None:
        self.names: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._adding = Lock()

    def number(self, name: Any) -> int:
        """Return the number of a name; add the name if it is new."""
        if (found := self._numbers.get(name)) is not None:
            return found
        with self._adding:
            found = self._numbers.setdefault(name, len(self.names))
            if found == len(self.names):
                self.names.append(name)
            return found

    def find(self, name: Any) -> int:
        """Return the number of a name, or -1 if it is unknown."""
        return self._numbers.get(name, -1)


@dataclass(frozen=True)
class Names:
    """The keys and names to which the columns refer."""

    sources: Numbers = field(default_factory=Numbers)
    """By `UUID.int`, because its hash is cheap."""
    agents: Numbers = field(default_factory=Numbers)
    speakers: Numbers = field(default_factory=Numbers)


@dataclass(frozen=True)
class Postings:
    """Terms with the passages that contain them, sorted by term.

    A term is stored as its 64-bit hash. Python's hash differs in each process; among 10,000 terms of one owner, two
    have the same hash with a probability of about 10^-11.
    """

    term: Ints
    passage: Ints
    tf: Ints

    def add_to(self, counts: Floats, terms: Ints) -> None:
        """Set how often each passage contains each term (passages x terms)."""
        begin, end = np.searchsorted(self.term, terms), np.searchsorted(self.term, terms, "right")
        for column, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
            counts[self.passage[first:last], column] = self.tf[first:last]


@dataclass(frozen=True)
class Citations:
    """The source turns of versions of facts, one row per turn; session and fact are numbers of sources."""

    session: Ints
    seq: Ints
    fact: Ints
    valid_from: Ints
    valid_to: Ints

    def holding(self, at: int | None) -> Mask:
        """Return which versions are valid now, or were valid at a moment."""
        return self.valid_to == NEVER if at is None else (self.valid_from <= at) & (at < self.valid_to)


@dataclass(frozen=True)
class OwnerIndex:
    """The passages of one owner, as a search reads them."""

    embedder: str
    names: Names
    columns: Columns
    buffer: Vectors
    """The vectors, followed by free rows."""
    postings: tuple[Postings, ...]
    citations: Citations

    @classmethod
    def empty(cls, embedder: str) -> OwnerIndex:
        """Return the index of an owner without memories."""
        none = np.zeros(0, np.int64)
        citations = Citations(none, none, none, none, none)
        return cls(embedder, Names(), np.zeros(0, _COLUMNS), np.zeros((0, 0), np.float32), (), citations)

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes."""
        arrays = [self.columns, self.buffer, *vars(self.citations).values()]
        arrays += [array for postings in self.postings for array in vars(postings).values()]
        names = len(self.names.sources.names) + len(self.names.agents.names) + len(self.names.speakers.names)
        return sum(array.nbytes for array in arrays) + names * NAME_BYTES

    def with_rows(self, rows: Sequence[PassageRow]) -> OwnerIndex:
        """Return the index with passages added; known ones are replaced."""
        if not rows:
            return self
        kept = self._without({(row.source, row.seq, row.part) for row in rows})
        columns = np.concatenate([kept.columns, _columns(rows, self.names, self.embedder)])
        buffer = _with_vectors(self.buffer, len(self.columns), rows, self.embedder)
        postings = (*self.postings, _postings(rows, first=len(self.columns)))
        grown = replace(kept, columns=columns, buffer=buffer, postings=postings)
        if np.count_nonzero(~columns["alive"]) > len(columns) // 2 + GARBAGE:
            return grown._compacted()
        return grown if len(postings) <= SEGMENTS else replace(grown, postings=(_merged(postings),))

    def with_only(self, keys: Iterable[PassageKey]) -> OwnerIndex:
        """Return the index with only these passages."""
        sources = self.names.sources
        present = {(sources.find(source.int), seq, part) for source, seq, part in keys}
        columns = self.columns.copy()
        own = zip(*(columns[name].tolist() for name in ("source", "seq", "part")), strict=True)
        columns["alive"] &= np.fromiter((key in present for key in own), np.bool_, len(columns))
        return replace(self, columns=columns)

    def with_citations(self, rows: Sequence[Citation]) -> OwnerIndex:
        """Return the index with these citations in place of its own."""
        number = self.names.sources.number
        turns = [
            (number(row.session.int), seq, number(row.fact.int), row.valid_from, _or_never(row.valid_to))
            for row in rows
            for seq in range(row.from_seq, row.upto_seq + 1)
        ]
        return replace(self, citations=Citations(*np.array(turns, np.int64).reshape(-1, 5).T.copy()))

    def search(self, query: Query, unseen: Sequence[Row]) -> Found:
        """Find passages with a word of the query, and those nearest to it by meaning.

        Args:
            unseen: Rows of passages outside the index: those of the newest turns and of superseded facts.
        """
        visible = self._visible(query)
        tf = self._counts(query.terms)
        cosine = self._cosines(query, visible)
        waiting = self.columns[visible & (self.columns["embedded"] == NO_VECTOR)]
        chosen = np.flatnonzero(visible & (tf.any(axis=1) | ~np.isnan(cosine)))
        holding = self.citations.holding(query.conditions.until)
        outdated = self._outdated(holding)
        columns = self.columns[chosen]
        chosen = chosen[~np.isin(_turn_keys(columns["source"], columns["seq"]), outdated)]
        found = self._passages(chosen, tf, cosine, holding)
        added = with_rows(found, self._unseen(unseen, outdated), query.terms, self.names.sources.number)
        pending = len(np.unique(_turn_keys(waiting["source"], waiting["seq"])))
        return Found(added if len(added.source) else None, self._corpus(), pending)

    def _corpus(self) -> Corpus:
        lengths = self.columns["length"][self.columns["alive"]]
        return Corpus(len(lengths), float(lengths.mean()) if len(lengths) else 0.0)

    def _visible(self, query: Query) -> Mask:
        """Return which passages scope and limits allow, as `visible` of `storage/engine/scope.py` does in SQL."""
        columns, who, limits = self.columns, visible_to(query.scope), query.conditions.values
        same_agent = columns["agent"] == self.names.agents.find(query.scope.agent)
        session = query.scope.session
        same_session = False if session is None else columns["session"] == self.names.sources.find(session.int)
        within = (
            (same_agent & (same_session | (columns["visibility"] >= who["agent_floor"])))
            | (columns["visibility"] >= who["user_floor"])
        )  # fmt: skip
        return (
            within
            & columns["alive"]
            & (columns["expires_at"] > limits["now"])
            & (columns["trust"] >= limits["min_trust"])
            & (columns["at"] <= limits["until"])
        )

    def _counts(self, terms: Sequence[str]) -> Floats:
        counts = np.zeros((len(self.columns), len(terms)))
        hashes = np.fromiter(map(hash, terms), np.int64, len(terms))
        for postings in self.postings:
            postings.add_to(counts, hashes)
        return counts

    def _cosines(self, query: Query, visible: Mask) -> Floats:
        """Return the cosines of the nearest passages, and NaN for all others."""
        cosines = np.full(len(self.columns), np.nan)
        rows = np.flatnonzero(visible & (self.columns["embedded"] == OURS))
        if query.vector is None or not len(rows):
            return cosines
        vectors = self.buffer[: len(self.columns)] if len(rows) == len(self.columns) else self.buffer[rows]
        found = vectors @ query.vector
        nearest = np.argsort(-found, kind="stable")[:NEAREST]
        cosines[rows[nearest]] = found[nearest]
        return cosines

    def _outdated(self, holding: Mask) -> Ints:
        """Return the turns whose facts are all outdated."""
        turns = _turn_keys(self.citations.session, self.citations.seq)
        return np.setdiff1d(turns[~holding], turns[holding])

    def _unseen(self, unseen: Sequence[Row], outdated: Ints) -> list[Row]:
        """Return the rows of unseen passages that are neither outdated nor in the index by now."""
        if not unseen:
            return []
        alive = self.columns[self.columns["alive"]]
        hidden = {*outdated.tolist()}
        keys = [_turn_key(self.names.sources.find(row.source.int), row.seq) for row in unseen]
        hidden |= {*np.intersect1d(_turn_keys(alive["source"], alive["seq"]), keys).tolist()}
        return [row for row, key in zip(unseen, keys, strict=True) if key < 0 or key not in hidden]

    def _passages(self, chosen: Ints, tf: Floats, cosine: Floats, holding: Mask) -> Passages:
        """Return the chosen passages, and the valid citations."""
        columns, names = self.columns[chosen], self.names
        texts = Texts(tf[chosen], columns["length"], cosine[chosen], columns["embedded"] == NO_VECTOR)
        return Passages(
            keys=names.sources.names,
            source=columns["source"].astype(np.int64),
            seq=columns["seq"],
            part=columns["part"].astype(np.int64),
            at=columns["at"],
            speaker=[names.speakers.names[number] for number in columns["speaker"].tolist()],
            texts=texts,
            cited=np.stack([self.citations.session, self.citations.seq, self.citations.fact], axis=1)[holding],
        )

    def _without(self, keys: set[PassageKey]) -> OwnerIndex:
        """Return the index with these passages marked as not alive, because their later versions follow."""
        columns = self.columns.copy()
        known = {(self.names.sources.find(source.int), seq, part) for source, seq, part in keys}
        turns = np.array([_turn_key(source, seq) for source, seq, _ in known], np.int64)
        for place in np.flatnonzero(np.isin(_turn_keys(columns["source"], columns["seq"]), turns)).tolist():
            row = columns[place]
            if (int(row["source"]), int(row["seq"]), int(row["part"])) in known:
                columns["alive"][place] = False
        return replace(self, columns=columns)

    def _compacted(self) -> OwnerIndex:
        """Return the index without passages that are not alive."""
        alive = self.columns["alive"]
        moved = np.cumsum(alive) - 1
        merged = _merged(self.postings)
        kept = alive[merged.passage]
        postings = Postings(merged.term[kept], moved[merged.passage[kept]], merged.tf[kept])
        vectors = self.buffer[: len(self.columns)][alive]
        return replace(self, columns=self.columns[alive], buffer=vectors, postings=(postings,))


def _turn_key(source: int, seq: int) -> int:
    return source << SEQ_BITS | seq


def _turn_keys(source: NDArray[Any], seq: NDArray[Any]) -> Ints:
    return source.astype(np.int64) << SEQ_BITS | seq


def _or_never(moment: int | None) -> int:
    return NEVER if moment is None else moment


def _columns(rows: Sequence[PassageRow], names: Names, embedder: str) -> Columns:
    source, agent, speaker = names.sources.number, names.agents.number, names.speakers.number
    columns = np.zeros(len(rows), _COLUMNS)
    for name in ("seq", "part", "visibility", "length", "trust"):
        columns[name] = [getattr(row, name) for row in rows]
    columns["at"] = [row.event_at for row in rows]
    columns["expires_at"] = [_or_never(row.expires_at) for row in rows]
    columns["source"] = [source(row.source.int) for row in rows]
    columns["session"] = [-1 if row.session is None else source(row.session.int) for row in rows]
    columns["agent"] = [agent(row.agent) for row in rows]
    columns["speaker"] = [speaker(row.speaker) for row in rows]
    columns["embedded"] = [NO_VECTOR if row.embedder is None else _whose(row, embedder) for row in rows]
    columns["alive"] = True
    return columns


def _whose(row: PassageRow, embedder: str) -> int:
    return OURS if row.embedder == embedder else OTHERS


def _with_vectors(buffer: Vectors, used: int, rows: Sequence[PassageRow], embedder: str) -> Vectors:
    """Return the buffer with the vectors of rows behind those in use; a larger copy if it is too small."""
    own = {place: row.vector for place, row in enumerate(rows, used) if row.embedder == embedder}
    vectors = [vector for vector in own.values() if vector is not None]
    dimensions = len(vectors[0]) if vectors else buffer.shape[1]
    end = used + len(rows)
    if end > len(buffer) or dimensions != buffer.shape[1]:
        larger = np.zeros((end if not used else end + end // 4, dimensions), np.float32)
        if buffer.shape[1] == dimensions:
            larger[:used] = buffer[:used]
        buffer = larger
    if vectors:
        buffer[list(own)] = vectors
    return buffer


def _postings(rows: Sequence[PassageRow], first: int) -> Postings:
    """Return the postings of rows, of which the first has this number."""
    words = [(row.terms or "").split(" ") if row.terms else [] for row in rows]
    passage = np.repeat(np.arange(first, first + len(rows)), [len(each) // 2 for each in words])
    every = list(chain.from_iterable(words))
    term = np.fromiter(map(hash, every[::2]), np.int64, len(every) // 2)
    tf = np.fromiter(map(int, every[1::2]), np.int64, len(every) // 2)
    return _sorted(term, passage, tf)


def _merged(postings: Sequence[Postings]) -> Postings:
    if not postings:
        return _postings([], 0)
    names = ("term", "passage", "tf")
    return _sorted(*(np.concatenate([getattr(each, name) for each in postings]) for name in names))


def _sorted(term: Ints, passage: Ints, tf: Ints) -> Postings:
    order = np.argsort(term, kind="stable")
    return Postings(term[order], passage[order], tf[order])
