"""Rows of API keys, with a hash of the secret only. The table has no memory and is read before a scope is known."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sqlalchemy import Connection, bindparam, func, insert, select, update

from threefold.errors import Conflict
from threefold_server.clock import from_micros
from threefold_server.rules.access import NO_POLICY, KeyPolicy, Reach
from threefold_server.storage.engine.tables import api_keys
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.store import audit

UserGrant = Literal["fixed", "named", "self"]
AgentGrant = Literal["name", "prefix"]


@dataclass(frozen=True)
class Key:
    """An API key and what it grants. Times are microseconds since 1970."""

    key_id: str
    label: str
    user_grant: UserGrant
    user_value: str | None
    agent_grant: AgentGrant
    agent_value: str
    ceiling: Reach
    may_share: bool
    created_at: int
    admin: bool = False
    policy: KeyPolicy = NO_POLICY
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    old_secret_until: int | None = None

    def alive(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def create(connection: Connection, key: Key) -> str:
    """Store a key and return its token, which cannot be shown again."""
    secret = _new_secret()
    values = {field: getattr(key, field) for field in Key.__dataclass_fields__} | {"ceiling": int(key.ceiling)}
    own = {name: value for name, value in asdict(key.policy).items() if value is not None}
    values |= {"policy": json.dumps(own), "secret_hash": _hash(secret)}
    connection.execute(insert(api_keys).values(**values))
    _note(connection, "key.create", key.key_id, key.created_at)
    return _token(key.key_id, secret)


def rotate(connection: Connection, key_id: str, now: int, grace_until: int) -> str | None:
    """Give a valid key a new secret and return the new token; return None if there is no such key.

    The old token works until `grace_until`. A key has two secrets at most: while an old one works, only a rotation
    without grace is possible.
    """
    row = connection.execute(select(api_keys).where(api_keys.c.key_id == key_id).with_for_update()).one_or_none()
    if row is None or not _to_key(row).alive(now):
        return None
    if grace_until > now and row.old_secret_until is not None and row.old_secret_until > now:
        at = from_micros(row.old_secret_until).isoformat(timespec="seconds")
        raise Conflict(
            f"the token before the last rotation works until {at}, and another one would end it; "
            "rotate again after that, or with --grace-days 0, which ends every token but the new one"
        )
    secret = _new_secret()
    values = {"secret_hash": _hash(secret), "old_secret_hash": row.secret_hash, "old_secret_until": grace_until}
    connection.execute(update(api_keys).where(api_keys.c.key_id == key_id).values(**values))
    _note(connection, "key.rotate", key_id, now)
    return _token(key_id, secret)


def note_uses(connection: Connection, uses: Mapping[str, int]) -> None:
    """Store when keys were last used, except where another process has stored a later use."""
    latest = func.coalesce(api_keys.c.last_used_at, 0) < bindparam("at")
    statement = update(api_keys).where(api_keys.c.key_id == bindparam("key"), latest)
    # One order for all processes prevents deadlocks.
    rows = [{"key": key_id, "at": uses[key_id]} for key_id in sorted(uses)]
    connection.execute(statement.values(last_used_at=bindparam("at")), rows)


def new_key_id() -> str:
    """Return a new random id for a key."""
    return secrets.token_hex(6)


def verify(connection: Connection, token: str, now: int) -> Key | None:
    """Return the valid key of a token, or None."""
    prefix, _, rest = token.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != "tf" or not secret:
        return None
    row = connection.execute(select(api_keys).where(api_keys.c.key_id == key_id)).one_or_none()
    key = None if row is None else _proven(row, _hash(secret))
    return key if key is not None and key.alive(now) else None


def get(connection: Connection, key_id: str) -> Key | None:
    """Return the key with this id, or None."""
    row = connection.execute(select(api_keys).where(api_keys.c.key_id == key_id)).one_or_none()
    return None if row is None else _to_key(row)


def list_keys(connection: Connection) -> list[Key]:
    """Return all keys, oldest first."""
    return [_to_key(row) for row in connection.execute(select(api_keys).order_by(api_keys.c.created_at))]


def revoke(connection: Connection, key_id: str, now: int, actor: audit.Actor = audit.OPERATOR) -> bool:
    """Revoke a key; return False if there is no such key or it is revoked already."""
    statement = update(api_keys).where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
    revoked = connection.execute(statement.values(revoked_at=now)).rowcount == 1
    if revoked:
        audit.note(connection, audit.STORE, actor, "key.revoke", target=key_id, at=now)
    return revoked


def _note(connection: Connection, action: audit.Action, key_id: str, now: int) -> None:
    audit.note(connection, audit.STORE, audit.OPERATOR, action, target=key_id, at=now)


def _proven(row: AnyRow, secret_hash: bytes) -> Key | None:
    """Return the key if the secret is right. With the secret before the last rotation it expires after the grace."""
    key = _to_key(row)
    if hmac.compare_digest(row.secret_hash, secret_hash):
        return key
    if key.old_secret_until is None or not hmac.compare_digest(row.old_secret_hash, secret_hash):
        return None
    return replace(key, expires_at=min(key.old_secret_until, key.expires_at or key.old_secret_until))


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _token(key_id: str, secret: str) -> str:
    return f"tf_{key_id}_{secret}"


def _hash(secret: str) -> bytes:
    # The secret has 256 random bits: a slow hash would add cost to every request and no safety.
    return hashlib.sha256(secret.encode()).digest()


def _to_key(row: AnyRow) -> Key:
    return Key(
        key_id=row.key_id,
        label=row.label,
        user_grant=row.user_grant,
        user_value=row.user_value,
        agent_grant=row.agent_grant,
        agent_value=row.agent_value,
        ceiling=Reach(row.ceiling),
        may_share=row.may_share,
        created_at=row.created_at,
        admin=row.admin,
        policy=KeyPolicy(**json.loads(row.policy)),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        old_secret_until=row.old_secret_until,
    )
