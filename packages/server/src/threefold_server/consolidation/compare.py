"""Comparison of new facts with known ones: which say the same, which exclude each other.

Rules decide first; the model is asked about the rest.
"""

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
from threefold_server.storage.memories.nearest import MergeGroup
from threefold_server.text.terms import query_terms


@dataclass(frozen=True)
class ExtractedFact:
    """A new fact with the key that it gets if it is stored, and its merge group."""

    key: UUID
    group: MergeGroup
    fact: NewFact


@dataclass(frozen=True)
class KnownFact:
    """A fact that a new one is compared with: a stored one, or an earlier one of the same batch."""

    key: UUID
    text: str
    said_at: datetime

    @property
    def name(self) -> str:
        return f"K{self.key.hex[:8]}"  # the same at every attempt, so that the next one can reuse a verdict


@dataclass(frozen=True)
class Decision:
    """How a new fact relates to a known one: `known` is that fact's key, None for the relation "new"."""

    extracted: ExtractedFact
    relation: Relation = "new"
    known: UUID | None = None


@dataclass(frozen=True)
class NearFacts:
    """The known facts near each new one, in the same order, read at one revision of the owner's facts."""

    revision: int
    near: list[list[KnownFact]]


Verdicts = dict[Comparison, Verdict]


def find_near_facts(
    connection: Connection, session: UUID, extracted: Sequence[ExtractedFact], vectors: Vectors, embedder: str, now: int
) -> NearFacts:
    """Return the known facts near each new one.

    These are facts of its merge group that are near by words or by meaning, facts that an earlier extraction drew from
    its turns (after a rebuild), and those before it in the list.
    """
    owner = extracted[0].group.owner
    revision = facts.revision(connection, owner)  # read first: the store step notices every change after this
    rows: list[list[AnyRow]] = [[] for _ in extracted]
    for group, indexes in _indexes_by_group(extracted).items():
        near_by_meaning = nearest.by_meaning(connection, group, vectors[indexes], embedder, now)
        for index, near in zip(indexes, near_by_meaning, strict=True):
            terms = query_terms(extracted[index].fact.text)
            rows[index] += [*near, *nearest.by_words(connection, group, terms, now)]
    seqs = [seq for new in extracted for seq in new.fact.seqs]
    for row in facts.resting_on(connection, owner, session, min(seqs), max(seqs)):
        for index, new in enumerate(extracted):
            if any(row.from_seq <= seq <= row.upto_seq for seq in new.fact.seqs):
                rows[index].append(row)
    stored = [_known_facts(found) for found in rows]
    return NearFacts(revision, [[*near, *_earlier(extracted, vectors, index)] for index, near in enumerate(stored)])


async def decide(
    extractor: Extractor,
    extracted: Sequence[ExtractedFact],
    near: Sequence[Sequence[KnownFact]],
    verdicts: Verdicts,
) -> list[Decision]:
    """Return a decision per new fact.

    Comparisons that neither a rule nor an earlier verdict decides are put to the model in one call. Its verdicts are
    added to `verdicts`.
    """
    by_rule = [_decide_by_rule(new, known) for new, known in zip(extracted, near, strict=True)]
    undecided = {
        index: _comparison(index, extracted[index], near[index])
        for index, decision in enumerate(by_rule)
        if decision is None
    }
    unasked = [comparison for comparison in undecided.values() if comparison not in verdicts]
    if unasked:
        verdicts.update(zip(unasked, await extractor.compare(unasked), strict=True))
    by_model = {
        index: _decide_by_verdict(extracted[index], near[index], verdicts[comparison])
        for index, comparison in undecided.items()
    }
    return [decision or by_model[index] for index, decision in enumerate(by_rule)]


def _indexes_by_group(extracted: Sequence[ExtractedFact]) -> dict[MergeGroup, list[int]]:
    indexes: dict[MergeGroup, list[int]] = defaultdict(list)
    for index, new in enumerate(extracted):
        indexes[new.group].append(index)
    return indexes


def _known_facts(rows: Iterable[AnyRow]) -> list[KnownFact]:
    return list({row.fact: KnownFact(row.fact, row.text, from_micros(row.event_at)) for row in rows}.values())


def _earlier(extracted: Sequence[ExtractedFact], vectors: Vectors, index: int) -> list[KnownFact]:
    """Return the facts before this one in the batch of its merge group that are nearest to it."""
    new, terms = extracted[index], set(query_terms(extracted[index].fact.text))
    nearness: dict[int, float] = {}
    for i, other in enumerate(extracted[:index]):
        shared = len(terms.intersection(query_terms(other.fact.text)))
        cosine = float(np.dot(vectors[i], vectors[index]))
        if other.group == new.group and (shared or cosine >= nearest.LEAST_COSINE):
            nearness[i] = shared + cosine
    best = sorted(sorted(nearness, key=nearness.__getitem__, reverse=True)[: nearest.PER_WAY])
    return [KnownFact(e.key, e.fact.text, from_micros(e.fact.event_at)) for e in map(extracted.__getitem__, best)]


def _decide_by_rule(new: ExtractedFact, near: Sequence[KnownFact]) -> Decision | None:
    """Return the decision if it needs no model: nothing is near, the words are the same, or one value has changed."""
    if not near:
        return Decision(new)
    relations = {known.key: relation_by_rule(new.fact.text, known.text) for known in near}
    for relation in ("same", "excludes"):
        for key, found in relations.items():
            if found == relation:
                return Decision(new, relation, key)
    return None


def _comparison(index: int, new: ExtractedFact, near: Sequence[KnownFact]) -> Comparison:
    statement = Statement(f"N{index + 1}", new.fact.text, new.fact.said_at)
    return Comparison(statement, tuple(Statement(known.name, known.text, known.said_at) for known in near))


def _decide_by_verdict(new: ExtractedFact, near: Sequence[KnownFact], verdict: Verdict) -> Decision:
    keys = {known.name: known.key for known in near}
    return Decision(new) if verdict.known is None else Decision(new, verdict.relation, keys[verdict.known])
