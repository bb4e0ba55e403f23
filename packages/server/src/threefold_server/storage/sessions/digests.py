"""The digest of a session, in versions that are only ever appended."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, bindparam, insert, select, true

from threefold.contract import Digest
from threefold_server.clock import from_micros
from threefold_server.rules.paging import PAGE_CHARS, fill_page
from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.tables import digests
from threefold_server.storage.engine.types import AnyRow

AT_ONCE = 50


def latest(connection: Connection, owner: UUID, session: UUID) -> Any:
    """Return the row of the newest version, or None."""
    rows = _LATEST.all(connection, owner=owner, session=session)
    return rows[0] if rows else None


def versions(
    connection: Connection, owner: UUID, session: UUID, before: int | None, limit: int
) -> tuple[list[tuple[tuple[int], Digest]], int]:
    """Return a page of the versions below `before`, newest first, with their positions; see `fill_page`."""
    older = true() if before is None else digests.c.version < before
    statement = select(digests).where(_own(owner, session), older).order_by(digests.c.version.desc()).limit(limit + 1)
    with connection.execute(statement, execution_options={"yield_per": AT_ONCE}) as rows:
        placed = (((row.version,), to_digest(row)) for row in rows)
        return fill_page(placed, limit, lambda found: len(found[1].text), PAGE_CHARS)


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
