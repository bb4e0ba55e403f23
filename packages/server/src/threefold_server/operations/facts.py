"""Facts that callers save, change and restore. No model is asked."""

from __future__ import annotations

import json
from typing import Any, TypeVar
from uuid import UUID, uuid4

from threefold.contract import FactHistory, Memory, SaveFactRequest, UpdateFactRequest
from threefold.errors import Conflict, Forbidden, NotFound
from threefold_server.clock import DAY
from threefold_server.rules.access import (
    Principal,
    Reach,
    ScopeFilter,
    check_may_share,
    check_quota,
    item_scope,
    session_scope,
)
from threefold_server.rules.trust import TRUST, noted_origin
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow, parse_key
from threefold_server.storage.memories import facts, index
from threefold_server.storage.sessions import sessions, tasks
from threefold_server.text.indexed import fact_passages
from threefold_server.text.redaction import redact_value

R = TypeVar("R", SaveFactRequest, UpdateFactRequest)


async def save_fact(service: Service, principal: Principal, request: SaveFactRequest) -> Memory:
    """Save one fact. Searches by words find it as soon as this returns."""
    if request.shared:
        check_may_share(principal)
    now = service.clock()
    request = _clean(service, request)
    values = _new_fact(service, principal, request, now)

    def save(connection: Connection) -> Memory:
        sessions.ensure_owner(connection, principal, now)
        facts.touch_owner(connection, principal.owner)
        _check_fact_quota(connection, service, principal)
        facts.add(connection, values)
        return _stored(connection, principal, values["fact"], now)

    saved = await service.database.write(principal.owner, save)
    service.wake()
    return saved


async def get_fact(service: Service, principal: Principal, fact_id: str) -> Memory:
    """Return one fact by id, superseded or not."""
    now = service.clock()

    def read(connection: Connection) -> Memory:
        row = _find(connection, item_scope(principal), fact_id, now)
        return facts.to_memories(connection, [row], principal.user)[0]

    return await service.database.read(principal.owner, read)


async def update_fact(service: Service, principal: Principal, fact_id: str, request: UpdateFactRequest) -> Memory:
    """Change a fact. A new text makes a new version with its own id; the old version stays in the history."""
    now = service.clock()
    request = _clean(service, request)

    def update(connection: Connection) -> Memory:
        facts.touch_owner(connection, principal.owner)
        row = _find_to_change(connection, principal, fact_id, now)
        if row.valid_to is not None:
            raise Conflict(
                "this version of the fact was superseded; change the current version",
                {"superseded_by": row.superseded_by.hex},
            )
        _check_trust(request, row)
        changes = _changes(request, now)
        if request.text is None or request.text == row.text:
            if not changes:
                return facts.to_memories(connection, [row], principal.user)[0]
            facts.change(connection, row.owner, row.fact, **changes)
            row = facts.get(connection, row.owner, row.fact)
            index.update_fact(connection, row)
            return facts.to_memories(connection, [row], principal.user)[0]
        _check_fact_quota(connection, service, principal)
        return _supersede(connection, principal, row, {**changes, "text": request.text}, now)

    updated = await service.database.write(principal.owner, update)
    service.wake()
    return updated


async def fact_history(service: Service, principal: Principal, fact_id: str) -> FactHistory:
    """Return every version of a fact, oldest first."""
    now = service.clock()

    def read(connection: Connection) -> FactHistory:
        row = _find(connection, item_scope(principal), fact_id, now)
        versions = facts.history(connection, row.owner, row.root)
        return FactHistory(versions=facts.to_memories(connection, versions, principal.user))

    return await service.database.read(principal.owner, read)


async def restore_fact(service: Service, principal: Principal, fact_id: str) -> Memory:
    """Make a superseded version current again. The version that replaced it becomes history."""
    now = service.clock()

    def restore(connection: Connection) -> Memory:
        facts.touch_owner(connection, principal.owner)
        row = _find_to_change(connection, principal, fact_id, now)
        if row.valid_to is None:
            return facts.to_memories(connection, [row], principal.user)[0]
        for version in facts.history(connection, row.owner, row.root):
            if version.valid_to is None:
                facts.change(connection, row.owner, version.fact, valid_to=now, superseded_by=row.fact)
                index.remove(connection, row.owner, [version.fact])
        facts.change(connection, row.owner, row.fact, valid_to=None, superseded_by=None, event_at=now)
        return _stored(connection, principal, row.fact, now)

    restored = await service.database.write(principal.owner, restore)
    service.wake()
    return restored


def _clean(service: Service, request: R) -> R:
    """Return the request without secrets in its text and metadata."""
    values = {name: getattr(request, name) for name in ("text", "metadata")}
    return request.model_copy(update=redact_value(values, service.redact))


def _check_fact_quota(connection: Connection, service: Service, principal: Principal) -> None:
    quota = service.settings.max_facts_per_user
    if quota is not None:
        check_quota("facts", facts.count(connection, principal.owner), 1, quota)


def _find(connection: Connection, scope: ScopeFilter, fact_id: str, now: int) -> AnyRow:
    key = parse_key(fact_id)
    row = None if key is None else facts.find(connection, scope, key, now)
    if row is None:
        raise NotFound("no such fact")
    return row


def _find_to_change(connection: Connection, principal: Principal, fact_id: str, now: int) -> AnyRow:
    row = _find(connection, item_scope(principal), fact_id, now)
    if row.shared:  # another key of the same user may lack the right to share
        check_may_share(principal)
    return row


def _check_trust(request: UpdateFactRequest, row: AnyRow) -> None:
    """Raise Forbidden for a change that is noted by a role with less trust than the fact has."""
    if request.noted_by is not None and TRUST[request.noted_by] < row.trust:
        raise Forbidden(
            f"noted_by: what the {request.noted_by} notes (trust {TRUST[request.noted_by]}) cannot change a fact of "
            f"trust {row.trust}; save another fact",
            {"field": "noted_by", "trust": row.trust},
        )


def _new_fact(service: Service, principal: Principal, request: SaveFactRequest, now: int) -> dict[str, Any]:
    key = uuid4()
    session = None if request.session_id is None else session_scope(principal, request.session_id).session
    origin = noted_origin("assistant" if principal.user is None else "user", request.noted_by)
    days = request.expires_in_days or service.settings.fact_expiry_days
    return {
        "owner": principal.owner,
        "fact": key,
        "root": key,
        "agent": principal.agent,
        "session": session,
        "session_id": request.session_id,
        "visibility": int(Reach[request.visibility or "user"]),
        "shared": request.shared,
        "writer": principal.user if request.shared else None,
        "text": request.text,
        "origin": origin,
        "trust": TRUST[origin],
        "metadata": json.dumps(request.metadata),
        "created_at": now,
        "event_at": now,
        "valid_from": now,
        "expires_at": expiry(days, now),
        "pinned": request.pinned,
    }


def _changes(request: UpdateFactRequest, now: int) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if request.pinned is not None:
        changes["pinned"] = request.pinned
    if request.expires_in_days is not None:
        changes |= {"expires_at": expiry(request.expires_in_days, now), "extended": False}
    if request.metadata is not None:
        changes["metadata"] = json.dumps(request.metadata)
    return changes


def _supersede(connection: Connection, principal: Principal, old: AnyRow, changes: dict[str, Any], now: int) -> Memory:
    new = uuid4()
    values = {**facts.values_of(old), **changes, "fact": new, "created_at": now, "event_at": now, "valid_from": now}
    facts.add(connection, {**values, "access_count": 0})
    facts.copy_sources(connection, old.owner, old.fact, new)
    facts.change(connection, old.owner, old.fact, valid_to=now, superseded_by=new)
    index.remove(connection, old.owner, [old.fact])
    return _stored(connection, principal, new, now)


def _stored(connection: Connection, principal: Principal, fact: UUID, now: int) -> Memory:
    """Index the words of a fact that became current, schedule its embedding, and return it."""
    row = facts.get(connection, principal.owner, fact)
    index.add_fact(connection, row, fact_passages(row.text))
    tasks.schedule(connection, row.owner, row.owner, "embed", now)
    return facts.to_memories(connection, [row], principal.user)[0]


def expiry(days: float | None, now: int) -> int | None:
    """Return when a fact that is saved now expires; None if never."""
    return None if days is None else now + int(days * DAY)
