"""Storing new facts beside the known ones, in one transaction with the watermark of their turns.

new         The fact is added.
same        The known fact gets one more source if both have the same origin. A fact of higher trust, or one that
            restates a superseded fact, becomes a new version; a repeat of another origin adds nothing otherwise.
excludes    The fact becomes a version of the known one. The version that was said last is current, the other is
            history. A fact of less trust does not replace the known one: it is added beside it.

If the owner's quota is used up, nothing new is stored, but known facts can still be confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from threefold_server.consolidation.compare import Decision, ExtractedFact
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts, revisions
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import Claim


class FactsMoved(Exception):
    """The owner's facts changed since the new ones were compared with them, so they must be compared again."""


@dataclass
class Merge:
    """The transaction that stores the facts of one batch of turns."""

    claim: Claim
    upto: int
    session_id: str
    decisions: Sequence[Decision]
    revision: int | None
    extracted_by: str
    expires_at: int | None
    quota: int | None
    now: int
    outcomes: Counter[str] = field(default_factory=Counter[str])
    merged_into: dict[UUID, UUID] = field(default_factory=dict[UUID, UUID])
    """The known fact that took each confirmed new one in. A later fact of the same batch may refer to the new key."""
    _room: int | None = field(default=None, init=False)
    """How many more facts the quota allows; None without a quota."""

    def run(self, connection: Connection) -> Claim:
        """Store the facts and return the claim with its new watermark. Raise FactsMoved or LeaseLost on a change."""
        self.outcomes.clear()  # the transaction may run again
        self.merged_into.clear()
        if self.decisions and facts.touch_owner(connection, self.claim.owner) - 1 != self.revision:
            raise FactsMoved("this user's facts kept changing while new ones were compared with them")
        tasks.confirm_lease(connection, self.claim)
        if self.quota is not None:
            self._room = self.quota - facts.count(connection, self.claim.owner)
        for decision in self.decisions:
            self.outcomes[self._apply(connection, decision)] += 1
        return tasks.advance(connection, self.claim, self.upto)

    def _apply(self, connection: Connection, decision: Decision) -> str:
        known = self._known_fact(connection, decision)
        if known is None:
            return self._add(connection, decision.extracted)
        if decision.relation == "same":
            return self._confirm(connection, decision.extracted, known)
        return self._add_version(connection, decision.extracted, known)

    def _known_fact(self, connection: Connection, decision: Decision) -> AnyRow | None:
        """Return the known fact of a decision; None if it names none, or if that fact has just expired."""
        if decision.known is None:
            return None
        key = self.merged_into.get(decision.known, decision.known)
        return facts.versions_by_key(connection, self.claim.owner, [key]).get(key)

    def _add(self, connection: Connection, extracted: ExtractedFact) -> str:
        if not self._use_quota():
            return "over quota"
        revisions.add_fact(connection, self._values(extracted), self.now)
        self._add_sources(connection, extracted, extracted.key)
        return "added"

    def _confirm(self, connection: Connection, extracted: ExtractedFact, known: AnyRow) -> str:
        fact = extracted.fact
        if known.valid_to is not None and self._rests_on(connection, known, extracted):
            return "known"  # extracted from these turns before and superseded since
        if fact.trust > known.trust or known.valid_to is not None:
            return self._add_version(connection, extracted, known)
        self.merged_into[extracted.key] = known.fact
        if fact.origin != known.origin:
            return "echoed"
        revisions.restate(connection, known, fact.event_at, self.expires_at)
        self._add_sources(connection, extracted, known.fact)
        return "confirmed"

    def _add_version(self, connection: Connection, extracted: ExtractedFact, known: AnyRow) -> str:
        current = [
            version for version in facts.history(connection, known.owner, known.root) if version.valid_to is None
        ]
        if any(extracted.fact.trust < version.trust for version in current):
            return self._add(connection, extracted)
        if not self._use_quota():
            return "over quota"
        revisions.add_version(connection, self._values(extracted), known.root, self.now)
        self._add_sources(connection, extracted, extracted.key)
        return "revised"

    def _use_quota(self) -> bool:
        """Count one more fact against the quota. Return False if the quota is used up."""
        if self._room is None:
            return True
        self._room -= 1
        return self._room >= 0

    def _add_sources(self, connection: Connection, extracted: ExtractedFact, fact: UUID) -> None:
        ranges = revisions.ranges(extracted.fact.seqs)
        facts.add_sources(connection, self.claim.owner, fact, self.claim.subject, ranges)

    def _rests_on(self, connection: Connection, known: AnyRow, extracted: ExtractedFact) -> bool:
        seqs = extracted.fact.seqs
        found = facts.resting_on(connection, known.owner, self.claim.subject, seqs[0], seqs[-1])
        return any(row.fact == known.fact for row in found)

    def _values(self, extracted: ExtractedFact) -> dict[str, Any]:
        fact = extracted.fact
        return {
            "owner": self.claim.owner,
            "fact": extracted.key,
            "root": extracted.key,
            "agent": extracted.group.agent,
            "session": self.claim.subject,
            "session_id": self.session_id,
            "visibility": fact.visibility,
            "text": fact.text,
            "origin": fact.origin,
            "extracted_by": self.extracted_by,
            "trust": fact.trust,
            "created_at": self.now,
            "event_at": fact.event_at,
            "valid_from": fact.event_at,
            "expires_at": self.expires_at,
        }
