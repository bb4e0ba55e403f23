"""The ids of erased turns and checkpoints, as keyed hashes: a late write of one of them is refused."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import Connection, bindparam, delete, select

from threefold_server.storage.engine.prepared import Pending, Prepared, PreparedAmong
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.store_secrets import store_secret
from threefold_server.storage.engine.tables import erased_turns

_SECRET = "erasure_secret"


def turn_mark(secret: bytes, session: UUID, turn_id: str) -> bytes:
    """Return the keyed hash of a turn's id. It identifies the id and reveals nothing about it."""
    return hmac.digest(secret, session.bytes + turn_id.encode(), hashlib.sha256)[:16]


def erasure_secret(connection: Connection) -> bytes:
    """Return the store's secret for turn marks. It is created at the first use."""
    return store_secret(connection, _SECRET)


def send_any_erased(connection: Connection, owner: UUID) -> Pending[bool]:
    """Send for whether an owner has erased ids. Mostly it has none, and `erased_among` is not needed."""
    rows = _ANY_ERASED.send(connection, owner=owner)
    return lambda: bool(rows())


def erased_among(connection: Connection, owner: UUID, session: UUID, turn_ids: Iterable[str], now: int) -> set[str]:
    """Return those of the ids that were erased and whose marks have not expired at `now`."""
    secret = erasure_secret(connection)
    marks = {turn_mark(secret, session, turn_id): turn_id for turn_id in turn_ids}
    rows = _ERASED.all(connection, [(mark,) for mark in marks], owner=owner, now=now)
    return {marks[bytes(row.turn)] for row in rows}


def mark_erased(connection: Connection, owner: UUID, turn_ids: Iterable[tuple[UUID, str]], until: int) -> None:
    """Store marks of erased turns, which expire at `until` (microseconds).

    Args:
        turn_ids: Pairs of session and turn id.
    """
    secret = erasure_secret(connection)
    rows = [
        {"owner": owner, "turn": turn_mark(secret, session, turn_id), "until": until} for session, turn_id in turn_ids
    ]
    if rows:
        statement = insert_into(connection, erased_turns)
        connection.execute(
            statement.on_conflict_do_update(index_elements=["owner", "turn"], set_={"until": statement.excluded.until}),
            rows,
        )


def unmark_erased(connection: Connection, owner: UUID, session: UUID, turn_ids: Iterable[str]) -> None:
    """Delete the marks of a session's turns, so that they can be written again."""
    secret = erasure_secret(connection)
    marks = [{"key_owner": owner, "mark": turn_mark(secret, session, turn_id)} for turn_id in turn_ids]
    if marks:
        statement = delete(erased_turns).where(
            erased_turns.c.owner == bindparam("key_owner"), erased_turns.c.turn == bindparam("mark")
        )
        connection.execute(statement, marks)


_ANY_ERASED = Prepared(select(erased_turns.c.until).where(erased_turns.c.owner == bindparam("owner")).limit(1))
_ERASED = PreparedAmong(
    select(erased_turns.c.turn).where(
        erased_turns.c.owner == bindparam("owner"), erased_turns.c.until > bindparam("now")
    ),
    erased_turns.c.turn,
)
