"""Checks of the facts that a model proposes: which turns support each, and its origin, date and visibility. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from threefold.contract import Origin, Role
from threefold.contract.common import clean_text
from threefold.render import strip_block
from threefold_server.consolidation.dates import ground_dates
from threefold_server.models.ports import Candidate
from threefold_server.rules.trust import ORIGIN_OF_ROLE, TRUST
from threefold_server.text.sentences import sentences
from threefold_server.text.terms import terms

MAX_CHARS = 1_000
"""The most characters of an extracted fact. A longer text is a summary, and summaries lose detail at every merge."""

MAX_FACTS = 100
"""The most facts of one batch, as each is compared with all the others. People take a dozen words or more per fact."""

MIN_GROUNDED_SHARE = 0.2
"""The smallest share of a fact's words that its turns must contain. 98 % of the 1,210 observations in five LoCoMo
files have more."""

# Suppositions and questions state nothing, but a model may read a fact into them.
_UNSTATED = re.compile(
    r"\W*(?:if|suppose|imagine|pretend|what if|let's say)\b|.*\bpretend\b"
    r"|\W*(?:can|could|would|will|should|do|does|did|is|are|am|was|were|have|has|may|might|who|what|when|where|why|how"
    r"|which)\b.*\?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_NO_TOPIC = frozenset(terms("user assistant speaker"))


@dataclass(frozen=True, slots=True)
class Source:
    """A turn that may support a fact."""

    seq: int
    role: Role
    speaker: str
    text: str
    said_at: datetime
    event_at: int
    visibility: int
    imported: bool = False


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact with the turns that support it. Its origin and visibility are the most restrictive ones of those turns."""

    text: str
    seqs: tuple[int, ...]
    origin: Origin
    visibility: int
    event_at: int
    said_at: datetime

    @property
    def trust(self) -> float:
        return TRUST[self.origin]


def accept(
    candidates: Iterable[Candidate], turns: Sequence[Source], before: Source | None
) -> tuple[list[NewFact], int]:
    """Return the facts that the turns support, in the order in which they were said, and the number of others.

    Args:
        candidates: The facts that the model proposes.
        turns: The turns that the model was asked to read for facts.
        before: The turn ahead of them, if any: an answer may need the question before it as support.
    """
    proposed = list(candidates)
    supported = [fact for candidate in proposed if (fact := _accept(candidate, turns, before)) is not None]
    kept = sorted(supported[:MAX_FACTS], key=lambda fact: (fact.event_at, fact.seqs[-1]))
    return kept, len(proposed) - len(kept)


def _accept(candidate: Candidate, turns: Sequence[Source], before: Source | None) -> NewFact | None:
    text = strip_block(str(clean_text(candidate.text))).strip()
    if len(text) > MAX_CHARS or not any(map(str.isalnum, text)):
        return None
    evidence = _evidence(text, candidate, turns, before)
    if not evidence:
        return None
    latest = max(evidence, key=lambda turn: (turn.event_at, turn.seq))
    roles: set[Role] = {candidate.attributed_to, *(turn.role for turn in evidence)}
    origins: list[Origin] = [ORIGIN_OF_ROLE[role] for role in roles]
    if any(turn.imported for turn in evidence):
        origins.append("import")
    return NewFact(
        text=ground_dates(text, latest.said_at),
        seqs=tuple(sorted(turn.seq for turn in evidence)),
        origin=min(origins, key=TRUST.__getitem__),
        visibility=min(turn.visibility for turn in evidence),
        event_at=latest.event_at,
        said_at=latest.said_at,
    )


def _evidence(text: str, candidate: Candidate, turns: Sequence[Source], before: Source | None) -> list[Source]:
    """Return the turns that support a fact: those that the model cites, or these and the one ahead of them.

    The list is empty if neither contains enough of the fact's words.
    """
    cited = [turn for turn in turns if turn.seq in candidate.source_seqs]
    if not cited:
        return []
    if grounded(text, cited):
        return cited
    ahead = _turn_ahead(cited[0], turns, before)
    return [ahead, *cited] if ahead is not None and grounded(text, [ahead, *cited]) else []


def _turn_ahead(first: Source, turns: Sequence[Source], before: Source | None) -> Source | None:
    index = turns.index(first)
    return turns[index - 1] if index else before


def grounded(text: str, evidence: Sequence[Source]) -> bool:
    """Return True if enough of a fact's words are in sentences of the turns that are no questions or suppositions."""
    names = {term for turn in evidence for term in terms(turn.speaker)}
    required = Counter(terms(text)).keys() - _NO_TOPIC - names
    stated = {
        term for turn in evidence for part in sentences(turn.text) if not _UNSTATED.match(part) for term in terms(part)
    }
    return bool(required) and len(required & stated) >= MIN_GROUNDED_SHARE * len(required)
