"""Marks of what was erased: keyed hashes that stop late writers, and receipts without content."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from uuid import UUID

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from threefold_server.storage.engine.prepared import Pending, Prepared, PreparedAmong
from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.store_secrets import store_secret
from threefold_server.storage.engine.tables import erased_turns, receipts, store

_SECRET = "erasure_secret"


def turn_mark(secret: bytes, session: UUID, turn_id: str) -> bytes:
    """A keyed hash of a turn's id: it recognises the id again and tells nothing about it."""
    return hmac.digest(secret, session.bytes + turn_id.encode(), hashlib.sha256)[:16]


def erasure_secret(connection: Connection) -> bytes:
    """The store's own secret for turn marks; made once."""
    return store_secret(connection, _SECRET)


def send_any_erased(connection: Connection, owner: UUID) -> Pending[bool]:
    """Whether anything of an owner was erased lately; nearly always not, which saves the closer look."""
    rows = _ANY_ERASED.send(connection, owner=owner)
    return lambda: bool(rows())


def erased_among(connection: Connection, owner: UUID, session: UUID, turn_ids: Iterable[str], now: int) -> set[str]:
    """The ids that were erased within the last days: their turns must not come back by a late write."""
    secret = erasure_secret(connection)
    marks = {turn_mark(secret, session, turn_id): turn_id for turn_id in turn_ids}
    rows = _ERASED.all(connection, [(mark,) for mark in marks], owner=owner, now=now)
    return {marks[bytes(row.turn)] for row in rows}


def mark_erased(connection: Connection, owner: UUID, turn_ids: Iterable[tuple[UUID, str]], until: int) -> None:
    """Remember erased (session, turn id) pairs until the given time."""
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
    """Let erased ids of a session be written again."""
    secret = erasure_secret(connection)
    marks = [{"key_owner": owner, "mark": turn_mark(secret, session, turn_id)} for turn_id in turn_ids]
    if marks:
        statement = delete(erased_turns).where(
            erased_turns.c.owner == bindparam("key_owner"), erased_turns.c.turn == bindparam("mark")
        )
        connection.execute(statement, marks)


def add_receipt(
    connection: Connection, owner: UUID, receipt: UUID, selector: str, counts: Mapping[str, int], at: int
) -> None:
    """Keep a receipt: what kind of selector, how many rows, when. Never a name or a text; its owner is a pseudonym."""
    whose = pseudonyms(connection)(owner)
    connection.execute(
        insert(receipts).values(owner=whose, receipt=receipt, selector=selector, counts=json.dumps(dict(counts)), at=at)
    )


_PURGE = "purge_needed_since"


def purge_needed(connection: Connection, now: int) -> None:
    """Note, on Postgres, that dead rows still lie in its files until `threefold purge` has run.

    The mark is the time of the oldest such forget, then a token of the newest one. To be called last in a transaction:
    the row stays locked until it ends.
    """
    if connection.dialect.name == "postgresql":
        row = {"name": _PURGE, "value": f"{now}:{secrets.token_hex(8)}"}
        statement = insert_into(connection, store).values(row)
        since, token = func.split_part(store.c.value, ":", 1), func.split_part(statement.excluded.value, ":", 2)
        renewed = {"value": since.concat(":").concat(token)}
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=renewed))


def note_deleted(connection: Connection, count: int, now: int) -> int:
    """Note that a purge is due if rows were deleted outside of a forget, and return their number. Call it last, too."""
    if count:
        purge_needed(connection, now)
    return count


def purge_mark(connection: Connection) -> str | None:
    """The mark that a purge is due; every forget changes it."""
    return connection.execute(select(store.c.value).where(store.c.name == _PURGE)).scalar_one_or_none()


def purge_pending_since(connection: Connection) -> int | None:
    """When the oldest forget without a purge was, in microseconds; None when every forget is purged."""
    mark = purge_mark(connection)
    return None if mark is None else int(mark.partition(":")[0])


def purged(connection: Connection, mark: str) -> None:
    """Note that a purge that began at this mark has ended. What was forgotten meanwhile has changed the mark."""
    connection.execute(delete(store).where(store.c.name == _PURGE, store.c.value == mark))


_ANY_ERASED = Prepared(select(erased_turns.c.until).where(erased_turns.c.owner == bindparam("owner")).limit(1))
_ERASED = PreparedAmong(
    select(erased_turns.c.turn).where(
        erased_turns.c.owner == bindparam("owner"), erased_turns.c.until > bindparam("now")
    ),
    erased_turns.c.turn,
)
