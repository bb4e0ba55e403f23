"""Beliefs that callers record, change and read. Verdicts come from experiments only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from threefold.contract import ForgetReceipt, ForgetRequest, Level
from threefold.contract.beliefs import (
    Belief,
    BeliefHistory,
    BeliefPage,
    RecordBeliefRequest,
    Standing,
    UpdateBeliefRequest,
    Verdict,
)
from threefold.errors import Conflict, InvalidRequest, NotFound, RevisionConflict
from threefold_server.operations.forget import forget
from threefold_server.rules.access import Principal, Reach, item_scope, read_scope, session_scope
from threefold_server.rules.paging import cut_page, decode_cursor, decode_key
from threefold_server.rules.trust import TRUST, noted_origin
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow, parse_key
from threefold_server.storage.knowledge import belief_standing, beliefs
from threefold_server.storage.knowledge.belief_standing import Change
from threefold_server.storage.knowledge.beliefs import Wanted
from threefold_server.storage.sessions import sessions
from threefold_server.text.redaction import redact_value


class ListBeliefs(NamedTuple):
    """What a request for a list of beliefs asks for."""

    verdict: Verdict | None
    standing: Standing | None
    as_of: int | None
    level: Level | None
    session_id: str | None
    cursor: str | None
    limit: int


async def record_belief(service: Service, principal: Principal, request: RecordBeliefRequest) -> Belief:
    """Record a belief. Raise InvalidRequest if it names a support that the caller cannot read."""
    now = service.clock()
    values = _new_belief(service, principal, request, now)
    sets = [[_key(f"support.{number}", name) for name in names] for number, names in enumerate(request.support)]

    def record(connection: Connection) -> Belief:
        sessions.ensure_owner(connection, principal, now)
        sessions.lock_owner(connection, principal.owner)
        _check_support(connection, principal, values, sets)
        standing = {"supported": belief_standing.is_supported(connection, principal.owner, sets)}
        row = beliefs.add(connection, values | standing, sets, Change(now, "recorded", agent=principal.agent))
        return beliefs.to_beliefs(connection, [row], principal.user)[0]

    return await service.database.write(principal.owner, record)


async def get_belief(service: Service, principal: Principal, belief_id: str) -> Belief:
    """Return one belief by id."""

    def read(connection: Connection) -> Belief:
        return beliefs.to_beliefs(connection, [find(connection, principal, belief_id)], principal.user)[0]

    return await service.database.read(principal.owner, read)


async def update_belief(service: Service, principal: Principal, belief_id: str, request: UpdateBeliefRequest) -> Belief:
    """Change a belief at the revision that was read.

    Raises:
        RevisionConflict: It has another revision.
        Conflict: Its statement or falsification would change, but an experiment has judged it.
    """
    now = service.clock()
    changes = request.model_dump(exclude={"revision"}, exclude_none=True)
    changes = redact_value(changes, service.redact)

    def update(connection: Connection) -> Belief:
        sessions.lock_owner(connection, principal.owner)
        row = find(connection, principal, belief_id)
        if row.revision != request.revision:
            raise RevisionConflict(
                f"the belief is at revision {row.revision}, not {request.revision}; read it again",
                {"revision": row.revision},
            )
        if row.verdict != "pending" and changes.keys() & {"statement", "falsification"}:
            raise Conflict(
                f"the belief is {row.verdict}: a judged statement does not change; record another belief",
                {"verdict": row.verdict},
            )
        if any(getattr(row, name) != value for name, value in changes.items()):
            change = Change(now, "changed", agent=principal.agent)
            belief_standing.update_rows(connection, row.owner, [row.belief], changes, change)
        return beliefs.to_beliefs(connection, [beliefs.get(connection, row.owner, row.belief)], principal.user)[0]

    return await service.database.write(principal.owner, update)


async def belief_history(service: Service, principal: Principal, belief_id: str) -> BeliefHistory:
    """Return every change of a belief, oldest first."""

    def read(connection: Connection) -> BeliefHistory:
        row = find(connection, principal, belief_id)
        return BeliefHistory(events=beliefs.history(connection, row.owner, row.belief))

    return await service.database.read(principal.owner, read)


async def belief_dependents(service: Service, principal: Principal, belief_id: str) -> BeliefPage:
    """Return the beliefs that rest on a belief, directly or through others."""

    def read(connection: Connection) -> BeliefPage:
        row = find(connection, principal, belief_id)
        rows = beliefs.visible_dependents(connection, item_scope(principal), row.belief)
        return BeliefPage(beliefs=beliefs.to_beliefs(connection, rows, principal.user))

    return await service.database.read(principal.owner, read)


async def list_beliefs(service: Service, principal: Principal, request: ListBeliefs) -> BeliefPage:
    """Return one page of the beliefs that are visible at a level, the newest first."""
    scope = read_scope(principal, request.level, request.session_id)
    after = None
    if request.cursor is not None:
        created_at, key = decode_cursor(request.cursor, (int, str))
        after = (created_at, decode_key(key))
    wanted = Wanted(request.verdict, request.standing, request.as_of, after, request.limit)

    def read(connection: Connection) -> BeliefPage:
        rows = beliefs.page(connection, scope, wanted)
        page, cursor = cut_page([((row.created_at, row.belief.hex), row) for row in rows], request.limit)
        found = beliefs.to_beliefs(connection, page, principal.user, request.as_of)
        return BeliefPage(beliefs=found, next_cursor=cursor)

    return await service.database.read(principal.owner, read)


async def delete_belief(service: Service, principal: Principal, belief_id: str) -> ForgetReceipt:
    """Erase one belief with its history. Raise NotFound for an unknown id and for an id of another owner."""
    await get_belief(service, principal, belief_id)
    return await forget(service, principal, ForgetRequest(memory_ids=[belief_id]))


def find(connection: Connection, principal: Principal, belief_id: str) -> AnyRow:
    """Return the row of a belief that the caller may read by id. Raise NotFound for an unknown id."""
    key = parse_key(belief_id)
    row = None if key is None else beliefs.find(connection, item_scope(principal), [key]).get(key)
    if row is None:
        raise NotFound("no such belief")
    return row


def _key(where: str, belief_id: str) -> UUID:
    key = parse_key(belief_id)
    if key is None:
        raise _no_support(where, belief_id)
    return key


def _no_support(where: str, belief_id: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: no such belief: {belief_id}", {"field": "support", "belief_id": belief_id})


def _check_support(
    connection: Connection, principal: Principal, values: Mapping[str, Any], sets: Sequence[Sequence[UUID]]
) -> None:
    """Raise InvalidRequest for a support that does not exist, that the caller cannot read, or that has fewer readers.

    Readers of a belief learn the ids and the standing of its supports.
    """
    found = beliefs.find(connection, item_scope(principal), {key for keys in sets for key in keys})
    for number, keys in enumerate(sets):
        for key in keys:
            if key not in found:
                raise _no_support(f"support.{number}", key.hex)
            row = found[key]
            same_session = row.visibility > int(Reach.session) or row.session == values["session"]
            if row.visibility < values["visibility"] or not same_session:
                raise InvalidRequest(
                    f"support.{number}: {key.hex} has visibility '{Reach(row.visibility).name}', so that not all "
                    "readers of the new belief may read it; give the new belief at most this visibility",
                    {"field": "support", "belief_id": key.hex},
                )


def _new_belief(service: Service, principal: Principal, request: RecordBeliefRequest, now: int) -> dict[str, Any]:
    origin = noted_origin("assistant" if principal.user is None else "user", request.noted_by)
    session = None if request.session_id is None else session_scope(principal, request.session_id).session
    texts = {name: getattr(request, name) for name in ("statement", "falsification", "context")}
    clean = redact_value(texts, service.redact)
    return {
        "owner": principal.owner,
        "belief": uuid4(),
        "agent": principal.agent,
        "session": session,
        "session_id": request.session_id,
        "visibility": int(Reach[request.visibility or "user"]),
        **clean,
        "context": json.dumps(clean["context"], ensure_ascii=False, sort_keys=True),
        "confidence": request.confidence,
        "assumption": request.kind == "assumption",
        "verdict": "pending",
        "origin": origin,
        "trust": TRUST[origin],
        "revision": 1,
        "created_at": now,
        "updated_at": now,
        "valid_from": now,
    }
