"""The rows of a fold: the turns that no digest covers, and the next version of the digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, literal, select, update

from threefold.contract import Turn
from threefold_server.storage.engine.tables import sessions
from threefold_server.storage.engine.tables import turns as turn_table
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.sessions import digests, turns
from threefold_server.storage.sessions.sessions import find_session, own_session

OUTLINE = 2_000
"""Turns read for one fold, without their content. The next fold reads further ones."""


@dataclass(frozen=True)
class FoldInput:
    """The part of a session that its digest does not cover."""

    last_seq: int
    undigested: int
    """Tokens of all turns that no digest covers."""
    digest: AnyRow | None
    outline: list[Turn]
    """The oldest of these turns, with empty content."""


def read_input(connection: Connection, owner: UUID, session: UUID) -> FoldInput:
    """Return the turns after the newest digest, oldest first; without turns if the session does not exist."""
    row = find_session(connection, owner, session)
    if row is None:
        return FoldInput(0, 0, None, [])
    digest = digests.latest(connection, owner, session)
    statement = (
        select(
            *(column for column in turn_table.c if column.name not in ("content", "payload")),
            literal("").label("content"),
        )
        .where(
            turn_table.c.owner == owner,
            turn_table.c.session == session,
            turn_table.c.seq > (digest.upto_seq if digest else 0),
        )
        .order_by(turn_table.c.seq)
        .limit(OUTLINE)
    )
    outline = [turns.to_turn(found) for found in connection.execute(statement)]
    return FoldInput(row.last_seq, row.tokens - row.digested_tokens, digest, outline)


def add_version(connection: Connection, session: AnyRow, values: dict[str, Any]) -> None:
    """Append a digest to a session whose row is locked, and update what it covers. Version numbers are never reused."""
    version = session.digest_version + 1
    digests.add(connection, session.owner, session.session, {"version": version, **values})
    connection.execute(
        update(sessions)
        .where(own_session(session.owner, session.session))
        .values(digest_version=version, digested_tokens=values["covered_tokens"])
    )
