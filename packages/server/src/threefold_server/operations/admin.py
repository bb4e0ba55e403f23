"""Operations of administrators: memory of all owners, keys, and the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from threefold.contract import ForgetReceipt, ForgetRequest, ForgetSource, MemoryPage
from threefold.contract.admin import (
    AdminForgetRequest,
    AdminListRequest,
    AuditCheck,
    AuditPage,
    KeyInfo,
    KeyList,
    OwnerName,
    OwnerPage,
    RenameReceipt,
    RenameRequest,
    StoreUsage,
)
from threefold.errors import InvalidRequest, NotFound
from threefold_server.clock import from_micros
from threefold_server.operations.forget import Erasure, conclude, held_for_all
from threefold_server.rules.access import Principal, Reach, ScopeFilter, owner_key
from threefold_server.rules.paging import cut_page, decode_cursor, decode_key
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.erasure import forget_records, selection
from threefold_server.storage.memories import listing
from threefold_server.storage.store import audit, keys, system_audit, system_owners, system_rename


async def list_owners(service: Service, principal: Principal, cursor: str | None, limit: int) -> OwnerPage:
    """Return a page of owners and how much memory each has. The audit notes it, since it shows names."""
    after = _position(cursor)

    def read(connection: Connection) -> OwnerPage:
        rows = system_owners.owner_page(connection, after, limit + 1)
        found, next_cursor = cut_page(rows, limit)
        _note(service, principal, connection, audit.STORE, "owners", {"owners": len(found)})
        return OwnerPage(owners=found, next_cursor=next_cursor)

    return await service.database.write("system", read)


async def usage(service: Service) -> StoreUsage:
    """Return how much the whole store holds."""
    return await service.database.read("system", lambda c: system_owners.usage(c, service.clock()))


async def list_memories(service: Service, principal: Principal, request: AdminListRequest) -> MemoryPage:
    """Return memories of one owner or of all, newest first. The audit notes it, since it shows content."""
    owner = owner_of(request) if request.given else None
    after = None
    if request.cursor is not None:
        after = listing.Position(*decode_cursor(request.cursor, listing.POSITION_TYPES))
        decode_key(after.key)

    def read(connection: Connection) -> MemoryPage:
        rows, size = system_owners.memories(connection, owner, request, after, service.clock(), service.redact)
        items, cursor = cut_page(rows, size)
        _note(service, principal, connection, owner or audit.STORE, "list", {"memories": len(items)})
        return MemoryPage(items=items, next_cursor=cursor)

    return await service.database.write("system", read)


async def forget(service: Service, principal: Principal, request: AdminForgetRequest) -> ForgetReceipt:
    """Erase one owner, one source, or everything. Each owner is erased in a transaction of its own."""
    not_covered = await held_for_all(service, None) if request.user is not None else []
    erasure = Erasure(_selector(request), request.dry_run, service.clock(), audit.actor_of(principal), not_covered)
    owners = [owner_of(request)] if request.given else await _all_owners(service)
    receipts = [await _erase(service, erasure, owner, request) for owner in owners]
    total = _sum(erasure, receipts)
    return total if request.dry_run else await conclude(service, erasure.selector, total)


async def rename(service: Service, principal: Principal, request: RenameRequest) -> RenameReceipt:
    """Rename a user. The new name must not have memory yet."""
    now = service.clock()

    def move(connection: Connection) -> RenameReceipt:
        counts = system_rename.rename_user(connection, request.user, request.to, now)
        for name in (request.user, request.to):
            audit.note(connection, owner_key("user", name), audit.actor_of(principal), "rename", counts=counts, at=now)
        forget_records.require_purge(connection, now)
        return RenameReceipt(counts=counts)

    receipt = await service.database.write("system", move)
    service.wake()
    return receipt


async def list_keys(service: Service) -> KeyList:
    """Return every key of the store, oldest first."""
    now = service.clock()
    found = await service.database.read("system", keys.list_keys)
    return KeyList(keys=[key_info(key, now) for key in found])


async def revoke_key(service: Service, principal: Principal, key_id: str) -> KeyInfo:
    """Revoke a key. Raise NotFound if there is no valid key of this id."""
    now = service.clock()

    def revoke(connection: Connection) -> keys.Key | None:
        revoked = keys.revoke(connection, key_id, now, audit.actor_of(principal))
        return keys.get(connection, key_id) if revoked else None

    key = await service.database.write("system", revoke)
    if key is None:
        raise NotFound(f"no valid key has the id {key_id!r}; see `threefold keys list`")
    return key_info(key, now)


def key_info(key: keys.Key, now: int) -> KeyInfo:
    """Return a key as administrators see it."""
    return KeyInfo(
        key_id=key.key_id,
        label=key.label,
        user_grant=key.user_grant,
        user=key.user_value,
        agent_grant=key.agent_grant,
        agent=key.agent_value,
        level=key.ceiling.name,
        may_share=key.may_share,
        admin=key.admin,
        created_at=from_micros(key.created_at),
        expires_at=_time(key.expires_at),
        revoked_at=_time(key.revoked_at),
        last_used_at=_time(key.last_used_at),
        old_token_until=_time(key.old_secret_until),
        alive=key.alive(now),
    )


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


async def audit_page(service: Service, cursor: str | None, limit: int) -> AuditPage:
    """Return a page of the audit, newest entry first."""
    after = _position(cursor)
    rows = await service.database.read("system", lambda c: system_audit.page(c, after, limit + 1))
    entries, next_cursor = cut_page(rows, limit)
    return AuditPage(entries=entries, next_cursor=next_cursor)


async def verify_audit(service: Service, head: str | None) -> AuditCheck:
    """Check that the chain of the audit is whole, and that it still contains `head`."""
    try:
        known = None if head is None else system_audit.Link.parse(head)
    except ValueError as error:
        raise InvalidRequest(
            "head: not a head of this audit; use one that `threefold audit verify` printed", {"field": "head"}
        ) from error
    return await service.database.read("system", lambda c: system_audit.verify(c, known), snapshot=True)


def owner_of(named: OwnerName) -> UUID:
    """Return the key of the owner that a request names."""
    if named.user is not None:
        return owner_key("user", named.user)
    assert named.self_agent is not None
    return owner_key("self", named.self_agent)


async def _all_owners(service: Service) -> list[UUID]:
    return await service.database.read("system", system_owners.with_memory)


async def _erase(service: Service, erasure: Erasure, owner: UUID, request: AdminForgetRequest) -> ForgetReceipt:
    whole_user = ScopeFilter(owner, user=None, agent="", session=None, reach=Reach.user)
    selector = ForgetRequest(level="user")
    if request.source is not None:
        source = ForgetSource(kind=request.source.kind, name=request.source.name)
        selector = ForgetRequest(source=source, since=request.since)
    selected = selection.select_request(selector, whole_user)
    return await service.database.write(owner, lambda c: erasure.run(c, whole_user, selected))


def _sum(erasure: Erasure, receipts: Sequence[ForgetReceipt]) -> ForgetReceipt:
    counts: Counter[str] = Counter()
    left_out: list[str] = []
    for receipt in receipts:
        counts.update(receipt.counts)
        left_out += [name for name in receipt.not_covered if name not in (*left_out, *erasure.not_covered)]
    return erasure.receipt_of(dict(counts), left_out, complete=all(receipt.complete for receipt in receipts))


def _selector(request: AdminForgetRequest) -> str:
    if request.source is not None:
        return f"source:{request.source.kind}"
    return "everything" if request.everything else f"owner:{request.given[0]}"


def _note(
    service: Service,
    principal: Principal,
    connection: Connection,
    owner: UUID,
    action: audit.Action,
    counts: dict[str, int],
) -> None:
    audit.note(connection, owner, audit.actor_of(principal), action, counts=counts, at=service.clock())


def _position(cursor: str | None) -> tuple[int, UUID] | None:
    if cursor is None:
        return None
    at, key = decode_cursor(cursor, (int, str))
    return at, decode_key(key)
