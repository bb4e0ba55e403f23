"""What becomes of a model's candidates: which rest on what was said, by whom, and when. Pure."""

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

FACT_CHARS = 1_000
"""A fact is one statement. What is longer is a summary, which holds less and less the longer it is merged."""

MOST = 100
"""Facts of one batch; a person states one in a dozen words or more. Each is compared with all the others."""

GROUNDED = 0.2
"""The least share of a fact's words that its turns must have; of the 1,210 observations in five LoCoMo files
98 % have more."""

# Instructions and questions state nothing, whatever a model reads into them.
_SUPPOSED = re.compile(
    r"\W*(?:if|suppose|imagine|pretend|what if|let's say)\b|.*\bpretend\b"
    r"|\W*(?:can|could|would|will|should|do|does|did|is|are|am|was|were|have|has|may|might|who|what|when|where|why|how"
    r"|which)\b.*\?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_NO_TOPIC = frozenset(terms("user assistant speaker"))


@dataclass(frozen=True, slots=True)
class Source:
    """A turn that a fact may rest on."""

    seq: int
    role: Role
    speaker: str
    text: str
    said: datetime
    event_at: int
    visibility: int
    imported: bool = False


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact that rests on turns: its place and its trust are those of the least of them."""

    text: str
    seqs: tuple[int, ...]
    origin: Origin
    visibility: int
    event_at: int
    said: datetime

    @property
    def trust(self) -> float:
        return TRUST[self.origin]


def accept(
    candidates: Iterable[Candidate], turns: Sequence[Source], before: Source | None
) -> tuple[list[NewFact], int]:
    """The candidates that hold, in the order in which they were said, and how many do not.

    `turns` are those that were read for facts, `before` the one ahead of them: an answer may rest on a question.
    """
    proposed = list(candidates)
    found = [fact for candidate in proposed if (fact := _accept(candidate, turns, before)) is not None]
    kept = sorted(found[:MOST], key=lambda fact: (fact.event_at, fact.seqs[-1]))
    return kept, len(proposed) - len(kept)


def _accept(candidate: Candidate, turns: Sequence[Source], before: Source | None) -> NewFact | None:
    text = strip_block(str(clean_text(candidate.text))).strip()
    if len(text) > FACT_CHARS or not any(map(str.isalnum, text)):
        return None
    evidence = _evidence(text, candidate, turns, before)
    if not evidence:
        return None
    said = max(evidence, key=lambda turn: (turn.event_at, turn.seq))
    roles: set[Role] = {candidate.attributed_to, *(turn.role for turn in evidence)}
    origins: list[Origin] = [ORIGIN_OF_ROLE[role] for role in roles]
    if any(turn.imported for turn in evidence):
        origins.append("import")
    return NewFact(
        text=ground_dates(text, said.said),
        seqs=tuple(sorted(turn.seq for turn in evidence)),
        origin=min(origins, key=TRUST.__getitem__),
        visibility=min(turn.visibility for turn in evidence),
        event_at=said.event_at,
        said=said.said,
    )


def _evidence(text: str, candidate: Candidate, turns: Sequence[Source], before: Source | None) -> list[Source]:
    """The turns that a fact rests on: those that the model names, with the one ahead where only both of them say it."""
    cited = [turn for turn in turns if turn.seq in candidate.source_seqs]
    if not cited:
        return []
    if grounded(text, cited):
        return cited
    asked = _ahead(cited[0], turns, before)
    return [asked, *cited] if asked is not None and grounded(text, [asked, *cited]) else []


def _ahead(first: Source, turns: Sequence[Source], before: Source | None) -> Source | None:
    place = turns.index(first)
    return turns[place - 1] if place else before


def grounded(text: str, evidence: Sequence[Source]) -> bool:
    """Whether turns state what a fact says, as far as words tell: what they only ask or suppose is not stated."""
    names = {term for turn in evidence for term in terms(turn.speaker)}
    wanted = Counter(terms(text)).keys() - _NO_TOPIC - names
    said = {
        term for turn in evidence for part in sentences(turn.text) if not _SUPPOSED.match(part) for term in terms(part)
    }
    return bool(wanted) and len(wanted & said) >= GROUNDED * len(wanted)
