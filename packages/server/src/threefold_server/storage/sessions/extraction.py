"""The rows that an extraction reads: the turns after its watermark, and a few before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, and_, exists, select

from threefold_server.storage.engine import excerpts
from threefold_server.storage.engine.tables import barred_sources, turns
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.sessions import digests
from threefold_server.storage.sessions.sessions import find_session

TURNS = 200
"""Turns read for one batch. How many of them the model gets depends on `BATCH_TOKENS`."""

BEFORE = 10
"""Turns before the watermark, for context."""

TURN_CHARS = 40_000
"""Characters read of one turn: more than the model gets of it (see `BATCH_TOKENS`)."""

_COLUMNS = [column for column in turns.c if column.name not in ("content", "payload")]
_CONTENT = excerpts.columns(turns.c.content, TURN_CHARS, excerpts.end_of(TURN_CHARS))


@dataclass(frozen=True)
class ExtractionInput:
    """The turns of a session after the watermark of its extraction, with the digest and the turns before them."""

    session: AnyRow | None
    digest: str | None
    before: Sequence[AnyRow]
    turns: Sequence[AnyRow]


def read_input(connection: Connection, owner: UUID, session: UUID, after: int) -> ExtractionInput:
    """Return the turns after a watermark and a few before it, both oldest first.

    Each row has the column `barred`: whether no fact may be extracted from the turn.
    """
    row = find_session(connection, owner, session)
    if row is None:
        return ExtractionInput(None, None, [], [])
    digest = digests.latest(connection, owner, session)
    of_session = and_(turns.c.owner == owner, turns.c.session == session)
    statement = select(*_COLUMNS, *_CONTENT, _barred().label("barred")).where(of_session)
    fresh = connection.execute(statement.where(turns.c.seq > after).order_by(turns.c.seq).limit(TURNS)).all()
    older = connection.execute(statement.where(turns.c.seq <= after).order_by(turns.c.seq.desc()).limit(BEFORE)).all()
    return ExtractionInput(row, digest.text if digest else None, older[::-1], fresh)


def _barred() -> Any:
    return exists().where(
        barred_sources.c.owner == turns.c.owner,
        barred_sources.c.session == turns.c.session,
        barred_sources.c.from_seq <= turns.c.seq,
        barred_sources.c.upto_seq >= turns.c.seq,
    )
