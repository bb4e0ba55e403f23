"""Erasure: one selector, one transaction over every tier, verified, with a receipt."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

from threefold.contract import ForgetReceipt, ForgetRequest
from threefold.errors import Forbidden, NotFound
from threefold_server.access import Principal, Reach, ScopeFilter, forget_scope, item_scope, session_scope
from threefold_server.service import Service
from threefold_server.storage import erase, erasures, selection, system
from threefold_server.storage.database import Connection
from threefold_server.storage.types import from_micros

TIERS = ("sessions", "turns", "digests", "facts", "items", "index", "threads", "checkpoints")


async def forget(service: Service, principal: Principal, request: ForgetRequest) -> ForgetReceipt:
    """Erase what the selector names, as far as the caller may reach. A dry run does the same and takes it back."""
    scope = _scope(principal, request)
    selected = selection.select_request(request, scope)
    kept = await _held_for_all(service, principal, request)
    job = _Erasure(scope, _selector(request), selected, kept, request.dry_run, service.clock())
    receipt = await service.database.write(principal.owner, job.run)
    if request.dry_run:
        return receipt
    service.metrics.erasures.labels(job.selector).inc()
    for tier, count in receipt.counts.items():
        service.metrics.erased_rows.labels(tier).inc(count)
    service.wake()
    return receipt.model_copy(update={"purge": "done" if await service.database.purge() else "pending"})


async def delete_fact(
    service: Service, principal: Principal, fact_id: str, *, sources: bool, in_session: str | None
) -> ForgetReceipt:
    """Erase one fact or episode; someone else's answers like an unknown one."""
    request = ForgetRequest(fact_ids=[fact_id], sources=sources, in_session=in_session)
    receipt = await forget(service, principal, request)
    if not receipt.counts["facts"] and not receipt.counts["turns"]:
        raise NotFound("no such fact")
    return receipt


async def _held_for_all(service: Service, principal: Principal, request: ForgetRequest) -> list[str]:
    """What an agent holds for all of its users is not a user's to erase, even what this user put there."""
    if principal.user is None or request.level is None:
        return []
    agent = principal.agent if request.level == "agent" else None
    held = await service.database.read("system", partial(system.held_for_all, agent=agent))
    return [f"{name} of scope 'agent'" for name in held]


def _scope(principal: Principal, request: ForgetRequest) -> ScopeFilter:
    if request.session_id is not None:
        return session_scope(principal, request.session_id)
    if request.level is not None:
        return forget_scope(principal, request.level)
    if request.source is not None and request.source.kind == "session":
        return session_scope(principal, request.source.name)
    scope = item_scope(principal, request.in_session)
    other_agent = request.source is not None and request.source.kind == "agent" and request.source.name != scope.agent
    if other_agent and scope.reach < Reach.user:
        raise Forbidden("what another agent of the user contributed is forgotten at level 'user' only")
    return scope


def _selector(request: ForgetRequest) -> str:
    if request.source is not None:
        return f"source:{request.source.kind}"
    if request.level is not None:
        return f"level:{request.level}"
    return "session" if request.session_id is not None else "facts"


@dataclass(frozen=True)
class _Erasure:
    """One forget, as its transaction sees it."""

    scope: ScopeFilter
    selector: str
    selected: selection.Selection
    not_covered: list[str]
    dry_run: bool
    now: int

    @property
    def owner(self) -> UUID:
        return self.scope.owner

    def run(self, connection: Connection) -> ForgetReceipt:
        selection.check_unambiguous(connection, self.owner, self.selected)
        with connection.begin_nested() as savepoint:
            counts = self._erase(connection)
            left = selection.remaining(connection, self.owner, self.selected)
            left_out = selection.left_out(connection, self.scope, self.selected)
            if self.dry_run:
                savepoint.rollback()
        receipt = uuid4()
        if not self.dry_run:
            erasures.add_receipt(connection, self.owner, receipt, self.selector, counts, self.now)
            erasures.purge_needed(connection, self.now)
        return ForgetReceipt(
            receipt_id=receipt.hex,
            counts=counts,
            complete=left == 0,
            not_covered=[*self.not_covered, *left_out],
            purge="pending",
            dry_run=self.dry_run,
            at=from_micros(self.now),
        )

    def _erase(self, connection: Connection) -> dict[str, int]:
        erase.next_epoch(connection, self.owner)
        counts: Counter[str] = Counter()
        if self.selected.turns is not None:  # before the facts: their sources tell which turns
            counts += erase.blank_turns(connection, self.owner, self.selected.turns, self.now)
        if self.selected.facts is not None:
            counts += erase.erase_facts(connection, self.owner, self.selected.facts)
        if self.selected.sessions is not None:
            counts += erase.erase_sessions(connection, self.owner, self.selected.sessions, self.now)
        if self.selected.items is not None:
            counts += erase.erase_items(connection, self.owner, self.selected.items)
        if self.selected.threads is not None:
            counts += erase.erase_threads(connection, self.owner, self.selected.threads, self.now)
        if self.selected.whole_owner:
            erase.erase_owner(connection, self.owner)
        return {tier: counts[tier] for tier in TIERS}
