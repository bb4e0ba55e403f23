"""Entries of the audit, written in the transaction of the audited action. People appear as pseudonyms only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid4

from sqlalchemy import Connection, insert

from threefold_server.rules.access import SHARED_POOL, Principal, derive_key
from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.tables import audit

OwnAction = Literal["forget", "refused", "verdict", "reverify"]
AdminAction = Literal["export", "import", "rename", "list", "owners"]
KeyAction = Literal["key.create", "key.rotate", "key.revoke"]
UpgradeAction = Literal["rekey"]
"""An upgrade keyed the pseudonyms and recomputed the chain."""

Action = OwnAction | AdminAction | KeyAction | UpgradeAction

STORE = SHARED_POOL
"""The owner of entries about the store itself. No key of an owner is zero."""


@dataclass(frozen=True)
class Actor:
    """The caller of an action: the keys of its owner and agent. An entry stores their pseudonyms."""

    owner: UUID | None = None
    agent: UUID | None = None
    admin: bool = False


NOBODY = Actor()
"""A caller whose identity was not accepted."""

OPERATOR = Actor(admin=True)
"""A person who works on the store with the command line."""


def actor_of(principal: Principal) -> Actor:
    """Return the verified caller of a request."""
    return Actor(principal.owner, derive_key("agent", principal.agent.encode()), principal.admin)


def note(
    connection: Connection,
    owner: UUID,
    actor: Actor,
    action: Action,
    *,
    at: int,
    target: str = "",
    counts: Mapping[str, int] | None = None,
    outcome: str = "done",
) -> None:
    """Add an entry. A worker adds it to the chain later, so that audited actions do not wait for each other."""
    pseudonym = pseudonyms(connection)
    connection.execute(
        insert(audit).values(
            owner=pseudonym(owner),
            entry=uuid4(),
            at=at,
            actor=actor.owner and pseudonym(actor.owner),
            agent=actor.agent and pseudonym(actor.agent),
            admin=actor.admin,
            action=action,
            target=target,
            counts=json.dumps(dict(counts or {}), sort_keys=True),
            outcome=outcome,
        )
    )
