"""New facts among the known ones: one transaction with the watermark of the turns they were drawn from.

new         stored beside the others
same        one fact with one more source, if both come from as trusted a mouth; an echo of less trust adds nothing
excludes    a version of the known one: the one said last holds, the other is history; less trust displaces nothing

Beyond the user's quota nothing new is stored; what is known may still be confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from threefold_server.consolidation.compare import Drawn, Step
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts, revisions
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import Claim


class FactsMoved(Exception):
    """The owner's facts changed since the new ones were compared with them: to be compared again."""


@dataclass
class Merge:
    """What one batch of turns gave, as its transaction sees it."""

    claim: Claim
    upto: int
    session_id: str
    steps: Sequence[Step]
    revision: int | None
    extracted_by: str
    expires_at: int | None
    quota: int | None
    now: int
    outcomes: Counter[str] = field(default_factory=Counter[str])
    became: dict[UUID, UUID] = field(default_factory=dict[UUID, UUID])
    """New facts that are another one now: of the same batch, a later one may be about them."""
    _room: int | None = field(default=None, init=False)

    def run(self, connection: Connection) -> Claim:
        self.outcomes.clear()  # it may be run again
        self.became.clear()
        if self.steps and facts.touch_owner(connection, self.claim.owner) - 1 != self.revision:
            raise FactsMoved("this user's facts changed again and again while new ones were compared with them")
        tasks.hold(connection, self.claim)
        if self.quota is not None:
            self._room = self.quota - facts.count(connection, self.claim.owner)
        for step in self.steps:
            self.outcomes[self._take(connection, step)] += 1
        return tasks.advance(connection, self.claim, self.upto)

    def _take(self, connection: Connection, step: Step) -> str:
        known = self._known(connection, step)
        if known is None:
            return self._add(connection, step.drawn)
        if step.relation == "same":
            return self._same(connection, step.drawn, known)
        return self._version(connection, step.drawn, known)

    def _known(self, connection: Connection, step: Step) -> AnyRow | None:
        """The fact that a step is about; None if there is none, or if it has just expired."""
        if step.known is None:
            return None
        key = self.became.get(step.known, step.known)
        return facts.versions_by_key(connection, self.claim.owner, [key]).get(key)

    def _add(self, connection: Connection, drawn: Drawn) -> str:
        if not self._takes_room():
            return "over quota"
        revisions.add_fact(connection, self._values(drawn), self.now)
        self._rest(connection, drawn, drawn.key)
        return "added"

    def _same(self, connection: Connection, drawn: Drawn, known: AnyRow) -> str:
        fact = drawn.fact
        if known.valid_to is not None and self._rests_on(connection, known, drawn):
            return "known"  # drawn before, and superseded since
        if fact.trust > known.trust or known.valid_to is not None:
            return self._version(connection, drawn, known)
        self.became[drawn.key] = known.fact
        if fact.origin != known.origin:
            return "echoed"
        revisions.restate(connection, known, fact.event_at, self.expires_at)
        self._rest(connection, drawn, known.fact)
        return "confirmed"

    def _version(self, connection: Connection, drawn: Drawn, known: AnyRow) -> str:
        holding = [
            version for version in facts.history(connection, known.owner, known.root) if version.valid_to is None
        ]
        if any(drawn.fact.trust < version.trust for version in holding):
            return self._add(connection, drawn)
        if not self._takes_room():
            return "over quota"
        revisions.add_version(connection, self._values(drawn), known.root, self.now)
        self._rest(connection, drawn, drawn.key)
        return "revised"

    def _takes_room(self) -> bool:
        """Take the place of one more fact, if there is one."""
        if self._room is None:
            return True
        self._room -= 1
        return self._room >= 0

    def _rest(self, connection: Connection, drawn: Drawn, fact: UUID) -> None:
        ranges = revisions.ranges(drawn.fact.seqs)
        facts.add_sources(connection, self.claim.owner, fact, self.claim.subject, ranges)

    def _rests_on(self, connection: Connection, known: AnyRow, drawn: Drawn) -> bool:
        seqs = drawn.fact.seqs
        found = facts.resting_on(connection, known.owner, self.claim.subject, seqs[0], seqs[-1])
        return any(row.fact == known.fact for row in found)

    def _values(self, drawn: Drawn) -> dict[str, Any]:
        fact = drawn.fact
        return {
            "owner": self.claim.owner,
            "fact": drawn.key,
            "root": drawn.key,
            "agent": drawn.kind.agent,
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
