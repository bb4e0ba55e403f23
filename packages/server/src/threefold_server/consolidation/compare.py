"""New facts against known ones: which say the same, which exclude each other. First by rules, then by the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import numpy as np

from threefold_server.clock import from_micros
from threefold_server.consolidation.candidates import NewFact
from threefold_server.models.ports import Comparison, Extractor, Statement, Vectors, Verdict
from threefold_server.rules.statements import Relation, relation_by_rule
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts, nearest
from threefold_server.storage.memories.nearest import Kind
from threefold_server.text.terms import query_terms


@dataclass(frozen=True)
class Drawn:
    """A new fact with the key it would have, and its kind."""

    key: UUID
    kind: Kind
    fact: NewFact


@dataclass(frozen=True)
class Known:
    """A fact that a new one is compared with: stored already, or drawn from the same turns."""

    key: UUID
    text: str
    said: datetime

    @property
    def name(self) -> str:
        return f"K{self.key.hex[:8]}"  # the same at every attempt, so that a verdict holds for the next one


@dataclass(frozen=True)
class Step:
    """What is to become of a new fact: its relation, and the fact that it is about."""

    drawn: Drawn
    relation: Relation = "new"
    known: UUID | None = None


@dataclass(frozen=True)
class Surroundings:
    """What a comparison rests on: per new fact those that are near, at one revision of the owner's facts."""

    revision: int
    near: list[list[Known]]


Verdicts = dict[Comparison, Verdict]


def look_around(
    connection: Connection, session: UUID, drawn: Sequence[Drawn], vectors: Vectors, embedder: str, now: int
) -> Surroundings:
    """The facts near each new one: of its kind by words and by meaning, those drawn from its turns before (after a
    rebuild), and those before it in the list."""
    owner = drawn[0].kind.owner
    revision = facts.revision(connection, owner)  # first: what moves after this is noticed when storing
    rows: list[list[AnyRow]] = [[] for _ in drawn]
    for kind, places in _by_kind(drawn).items():
        meaning = nearest.by_meaning(connection, kind, vectors[places], embedder, now)
        for place, near in zip(places, meaning, strict=True):
            terms = query_terms(drawn[place].fact.text)
            rows[place] += [*near, *nearest.by_words(connection, kind, terms, now)]
    seqs = [seq for item in drawn for seq in item.fact.seqs]
    for row in facts.resting_on(connection, owner, session, min(seqs), max(seqs)):
        for place, item in enumerate(drawn):
            if any(row.from_seq <= seq <= row.upto_seq for seq in item.fact.seqs):
                rows[place].append(row)
    stored = [_known(found) for found in rows]
    return Surroundings(revision, [[*near, *_earlier(drawn, vectors, place)] for place, near in enumerate(stored)])


async def decide(
    extractor: Extractor, drawn: Sequence[Drawn], near: Sequence[Sequence[Known]], verdicts: Verdicts
) -> list[Step]:
    """A step per new fact. What neither rules nor earlier verdicts tell is asked in one call, and noted there."""
    steps = [_by_rule(item, known) for item, known in zip(drawn, near, strict=True)]
    open_ = {place: _comparison(place, drawn[place], near[place]) for place, step in enumerate(steps) if step is None}
    asked = [comparison for comparison in open_.values() if comparison not in verdicts]
    if asked:
        verdicts.update(zip(asked, await extractor.compare(asked), strict=True))
    judged = {place: _judged(drawn[place], near[place], verdicts[open_[place]]) for place in open_}
    return [step or judged[place] for place, step in enumerate(steps)]


def _by_kind(drawn: Sequence[Drawn]) -> dict[Kind, list[int]]:
    places: dict[Kind, list[int]] = defaultdict(list)
    for place, item in enumerate(drawn):
        places[item.kind].append(place)
    return places


def _known(rows: Iterable[AnyRow]) -> list[Known]:
    return list({row.fact: Known(row.fact, row.text, from_micros(row.event_at)) for row in rows}.values())


def _earlier(drawn: Sequence[Drawn], vectors: Vectors, place: int) -> list[Known]:
    """Of the new facts that were said before this one and are of its kind, the nearest."""
    item, terms = drawn[place], set(query_terms(drawn[place].fact.text))
    nearness: dict[int, float] = {}
    for i, other in enumerate(drawn[:place]):
        shared = len(terms.intersection(query_terms(other.fact.text)))
        cosine = float(np.dot(vectors[i], vectors[place]))
        if other.kind == item.kind and (shared or cosine >= nearest.LEAST_COSINE):
            nearness[i] = shared + cosine
    best = sorted(nearness, key=nearness.__getitem__, reverse=True)[: nearest.PER_WAY]
    return [Known(drawn[i].key, drawn[i].fact.text, from_micros(drawn[i].fact.event_at)) for i in sorted(best)]


def _by_rule(drawn: Drawn, near: Sequence[Known]) -> Step | None:
    """A step that needs no model, if there is one: nothing near, the same words, or another value of one thing."""
    if not near:
        return Step(drawn)
    relations = {known.key: relation_by_rule(drawn.fact.text, known.text) for known in near}
    for relation in ("same", "excludes"):
        for key, found in relations.items():
            if found == relation:
                return Step(drawn, relation, key)
    return None


def _comparison(place: int, drawn: Drawn, near: Sequence[Known]) -> Comparison:
    new = Statement(f"N{place + 1}", drawn.fact.text, drawn.fact.said)
    return Comparison(new, tuple(Statement(known.name, known.text, known.said) for known in near))


def _judged(drawn: Drawn, near: Sequence[Known], verdict: Verdict) -> Step:
    keys = {known.name: known.key for known in near}
    return Step(drawn) if verdict.known is None else Step(drawn, verdict.relation, keys[verdict.known])
