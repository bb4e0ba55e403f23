"""Erasure of memory: one selector, one transaction over every tier, a check, and a receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID, uuid4

from threefold.contract import ForgetReceipt, ForgetRequest
from threefold.errors import NotFound
from threefold_server.clock import from_micros
from threefold_server.rules.access import Principal, ScopeFilter, erasure_scope
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.erasure import erase, forget_records, selection
from threefold_server.storage.store import system
from threefold_server.storage.store.audit import Actor, actor_of, note

# The counts of a receipt.
TIERS = (
    "sessions",
    "turns",
    "digests",
    "facts",
    "items",
    "index",
    "threads",
    "checkpoints",
    "beliefs",
    "unsupported_beliefs",
)


async def forget(service: Service, principal: Principal, request: ForgetRequest) -> ForgetReceipt:
    """Erase what the selector names, within the caller's reach. A dry run erases and rolls back."""
    scope = erasure_scope(principal, request)
    selected = selection.select_request(request, scope)
    not_covered: list[str] = []
    if principal.user is not None and request.level is not None:
        not_covered = await held_for_all(service, principal.agent if request.level == "agent" else None)
    erasure = Erasure(_selector(request), request.dry_run, service.clock(), actor_of(principal), not_covered)
    receipt = await service.database.write(principal.owner, lambda c: erasure.run(c, scope, selected))
    return receipt if request.dry_run else await conclude(service, erasure.selector, receipt)


async def conclude(service: Service, selector: str, receipt: ForgetReceipt) -> ForgetReceipt:
    """Count the erased rows, wake the workers to rebuild digests, and purge the files if that is quick."""
    service.metrics.erasures.labels(selector).inc()
    for tier, count in receipt.counts.items():
        service.metrics.erased_rows.labels(tier).inc(count)
    service.wake()
    return receipt.model_copy(update={"purge": "done" if await service.database.purge() else "pending"})


async def delete_fact(
    service: Service, principal: Principal, fact_id: str, *, sources: bool, in_session: str | None
) -> ForgetReceipt:
    """Erase one fact or turn. Raise NotFound for an unknown id and for an id of another owner."""
    request = ForgetRequest(memory_ids=[fact_id], sources=sources, in_session=in_session)
    receipt = await forget(service, principal, request)
    if not receipt.counts["facts"] and not receipt.counts["turns"]:
        raise NotFound("no such fact")
    return receipt


async def held_for_all(service: Service, agent: str | None) -> list[str]:
    """Return the names of data that an agent (or any agent) has for all of its users.

    One user cannot erase it, even if this user wrote it.
    """
    names = await service.database.read("system", partial(system.held_for_all, agent=agent))
    return [f"{name} of scope 'agent'" for name in names]


def _selector(request: ForgetRequest) -> str:
    if request.source is not None:
        return f"source:{request.source.kind}"
    if request.level is not None:
        return f"level:{request.level}"
    return "session" if request.session_id is not None else "facts"


@dataclass(frozen=True)
class Erasure:
    """One forget request, applied to each owner in a transaction."""

    selector: str
    dry_run: bool
    now: int
    actor: Actor
    not_covered: Sequence[str] = ()
    receipt: UUID = field(default_factory=uuid4)

    def run(self, connection: Connection, scope: ScopeFilter, selected: selection.Selection) -> ForgetReceipt:
        """Erase the selected rows of one owner, store the receipt, and note it in the audit."""
        selection.check_unambiguous(connection, scope.owner, selected)
        with connection.begin_nested() as savepoint:
            counts = self._erase(connection, scope.owner, selected)
            left = selection.remaining(connection, scope.owner, selected)
            left_out = selection.not_covered(connection, scope, selected)
            if self.dry_run:
                savepoint.rollback()
        if not self.dry_run:
            self._store_receipt(connection, scope.owner, counts, complete=left == 0)
        return self.receipt_of(counts, left_out, complete=left == 0)

    def receipt_of(self, counts: dict[str, int], left_out: Sequence[str], *, complete: bool) -> ForgetReceipt:
        """Return the receipt for the caller."""
        return ForgetReceipt(
            receipt_id=self.receipt.hex,
            counts={tier: counts.get(tier, 0) for tier in TIERS},
            complete=complete,
            not_covered=[*self.not_covered, *left_out],
            purge="pending",
            dry_run=self.dry_run,
            at=from_micros(self.now),
        )

    def _erase(self, connection: Connection, owner: UUID, selected: selection.Selection) -> dict[str, int]:
        erase.raise_epoch(connection, owner)
        counts: Counter[str] = Counter()
        if selected.turns is not None:  # before the facts, whose sources name the turns
            counts += erase.blank_turns(connection, owner, selected.turns, self.now)
        if selected.facts is not None:
            counts += erase.erase_facts(connection, owner, selected.facts)
        if selected.sessions is not None:
            counts += erase.erase_sessions(connection, owner, selected.sessions, self.now)
        if selected.items is not None:
            counts += erase.erase_items(connection, owner, selected.items)
        if selected.threads is not None:
            counts += erase.erase_threads(connection, owner, selected.threads, self.now)
        if selected.beliefs is not None:
            counts += erase.erase_beliefs(connection, owner, selected.beliefs, self.now)
        if selected.whole_owner:
            erase.erase_owner(connection, owner, self.now)
        return {tier: counts[tier] for tier in TIERS}

    def _store_receipt(self, connection: Connection, owner: UUID, counts: dict[str, int], *, complete: bool) -> None:
        outcome = "done" if complete else "incomplete"
        forget_records.add_receipt(connection, owner, self.receipt, self.selector, counts, self.now)
        note(connection, owner, self.actor, "forget", target=self.selector, counts=counts, outcome=outcome, at=self.now)
        forget_records.require_purge(connection, self.now)
