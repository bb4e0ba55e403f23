"""The digest of a session, in versions that are only ever appended."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, bindparam, insert, select

from threefold.contract import Digest
from threefold_server.clock import from_micros
from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.tables import digests
from threefold_server.storage.engine.types import AnyRow


def latest(connection: Connection, owner: UUID, session: UUID) -> Any:
    """Return the row of the newest version, or None."""
    rows = _LATEST.all(connection, owner=owner, session=session)
    return rows[0] if rows else None


def versions(connection: Connection, owner: UUID, session: UUID) -> list[Digest]:
    """Return all versions, newest first."""
    statement = select(digests).where(_own(owner, session)).order_by(digests.c.version.desc())
    return [to_digest(row) for row in connection.execute(statement)]


def one(connection: Connection, owner: UUID, session: UUID, version: int) -> Digest | None:
    """Return one version, or None."""
    statement = select(digests).where(_own(owner, session), digests.c.version == version)
    row = connection.execute(statement).one_or_none()
    return None if row is None else to_digest(row)


def add(connection: Connection, owner: UUID, session: UUID, values: dict[str, Any]) -> None:
    """Append a version."""
    connection.execute(insert(digests).values(owner=owner, session=session, **values))


def to_digest(row: AnyRow) -> Digest:
    """Return a row as a model of the contract."""
    return Digest(
        version=row.version,
        text=row.text,
        from_seq=row.from_seq,
        upto_seq=row.upto_seq,
        trust=row.trust,
        parent=row.parent,
        model=row.model,
        prompt=row.prompt,
        tokens=row.tokens,
        created_at=from_micros(row.created_at),
    )


def _own(owner: UUID, session: UUID) -> ColumnElement[bool]:
    return and_(digests.c.owner == owner, digests.c.session == session)


_LATEST = Prepared(
    select(digests)
    .where(digests.c.owner == bindparam("owner"), digests.c.session == bindparam("session"))
    .order_by(digests.c.version.desc())
    .limit(1)
)
