"""The records of a forget: its receipt, and on Postgres the mark that a purge is due."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Connection, delete, func, insert, select

from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import receipts, store

_PURGE = "purge_needed_since"


def add_receipt(
    connection: Connection, owner: UUID, receipt: UUID, selector: str, counts: Mapping[str, int], at: int
) -> None:
    """Store a receipt: the kind of selector, the counts and the time, without names or texts, under a pseudonym."""
    row = {"owner": pseudonyms(connection)(owner), "receipt": receipt, "selector": selector, "at": at}
    connection.execute(insert(receipts).values(**row, counts=json.dumps(dict(counts))))


def require_purge(connection: Connection, now: int) -> None:
    """Set the mark that a purge is due: on Postgres, the files contain deleted rows until `threefold purge` has run.

    The mark consists of the time of the oldest such forget and a token of the newest one. Call this last in a
    transaction, because the row stays locked until its end.
    """
    if connection.dialect.name == "postgresql":
        row = {"name": _PURGE, "value": f"{now}:{secrets.token_hex(8)}"}
        statement = insert_into(connection, store).values(row)
        since, token = func.split_part(store.c.value, ":", 1), func.split_part(statement.excluded.value, ":", 2)
        values = {"value": since.concat(":").concat(token)}
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


def note_deleted(connection: Connection, count: int, now: int) -> int:
    """Set the mark that a purge is due if rows were deleted outside of a forget; return their number.

    Call this last in a transaction, as `require_purge`.
    """
    if count:
        require_purge(connection, now)
    return count


def purge_mark(connection: Connection) -> str | None:
    """Return the mark that a purge is due, or None. Every forget changes it."""
    return connection.execute(select(store.c.value).where(store.c.name == _PURGE)).scalar_one_or_none()


def purge_pending_since(connection: Connection) -> int | None:
    """Return the time of the oldest forget without a purge (microseconds); None if no purge is due."""
    mark = purge_mark(connection)
    return None if mark is None else int(mark.partition(":")[0])


def complete_purge(connection: Connection, mark: str) -> None:
    """Delete the mark that a purge read when it started. A forget meanwhile has changed it, so it stays."""
    connection.execute(delete(store).where(store.c.name == _PURGE, store.c.value == mark))
