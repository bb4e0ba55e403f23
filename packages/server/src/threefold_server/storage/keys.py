"""API keys: only a hash of the secret is stored. The table holds no memory and is read before any scope exists."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, insert, select, update

from threefold_server.access import Reach
from threefold_server.storage.tables import api_keys
from threefold_server.storage.types import AnyRow

UserGrant = Literal["fixed", "named", "self"]
AgentGrant = Literal["name", "prefix"]


@dataclass(frozen=True)
class Key:
    """What a key grants. Times are microseconds since 1970."""

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
    expires_at: int | None = None
    revoked_at: int | None = None

    def alive(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def create(connection: Connection, key: Key) -> str:
    """Store a key and return its token, which cannot be shown again."""
    secret = secrets.token_urlsafe(32)
    values = {field: getattr(key, field) for field in Key.__dataclass_fields__} | {"ceiling": int(key.ceiling)}
    connection.execute(insert(api_keys).values(**values, secret_hash=_hash(secret)))
    return f"tf_{key.key_id}_{secret}"


def new_key_id() -> str:
    """A short public name for a key."""
    return secrets.token_hex(6)


def verify(connection: Connection, token: str, now: int) -> Key | None:
    """The live key that a token proves, or None."""
    prefix, _, rest = token.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != "tf" or not secret:
        return None
    row = connection.execute(select(api_keys).where(api_keys.c.key_id == key_id)).one_or_none()
    if row is None or not hmac.compare_digest(row.secret_hash, _hash(secret)):
        return None
    key = _to_key(row)
    return key if key.alive(now) else None


def list_keys(connection: Connection) -> list[Key]:
    """All keys, oldest first."""
    return [_to_key(row) for row in connection.execute(select(api_keys).order_by(api_keys.c.created_at))]


def revoke(connection: Connection, key_id: str, now: int) -> bool:
    """Refuse a key from now on; False if there is no such live key."""
    statement = update(api_keys).where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
    return connection.execute(statement.values(revoked_at=now)).rowcount == 1


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
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
