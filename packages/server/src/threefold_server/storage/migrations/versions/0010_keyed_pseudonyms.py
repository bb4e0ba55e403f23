"""Pseudonyms in the audit and in receipts become keyed hashes; the chain of the audit is recomputed."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from alembic import op

from threefold_server.storage.engine.row_security import PSEUDONYM_FUNCTION, pseudonymous_policy
from threefold_server.storage.engine.types import Key

revision = "0010"
down_revision = "0011"

STORE = sa.table("store", sa.column("name", sa.Text()), sa.column("value", sa.Text()))
RECEIPTS = sa.table("receipts", sa.column("owner", Key()))
AUDIT = sa.table(
    "audit",
    *(sa.column(name, Key()) for name in ("owner", "entry", "actor", "agent")),
    *(sa.column(name, sa.Text()) for name in ("action", "target", "counts", "outcome")),
    sa.column("at", sa.BigInteger()),
    sa.column("admin", sa.Boolean()),
    sa.column("seq", sa.BigInteger()),
    sa.column("hash", sa.LargeBinary()),
)
Entry = Mapping[Any, Any]
NOBODY = UUID(int=0)
AT_ONCE = 500
COMMENTS = {
    "receipts.owner": "a pseudonym",
    "audit.owner": "whose memory, by a pseudonym; zero: the store's own affairs",
    "audit.actor": "the caller, by a pseudonym; null: nobody whom the service has verified",
    "audit.agent": "a pseudonym of the caller's agent",
}


def upgrade() -> None:
    """Replace every pseudonym by its hash keyed with the store's new secret, and let owners add rows under theirs."""
    connection = op.get_bind()
    secret = secrets.token_bytes(32)
    connection.execute(sa.insert(STORE).values(name="pseudonym_key", value=secret.hex()))
    changed = _rekey_receipts(connection, secret) + _rekey_audit(connection, secret)
    if connection.dialect.name == "postgresql":
        op.execute(PSEUDONYM_FUNCTION)
        for policy, table in (("own_entries", "audit"), ("own_rows", "receipts")):
            op.execute(f"DROP POLICY {policy} ON {table}")
            op.execute(pseudonymous_policy(table))
        for column, comment in COMMENTS.items():
            op.execute(f"COMMENT ON COLUMN {column} IS '{comment.replace(chr(39), chr(39) * 2)}'")
        if changed and _value(connection, "purge_needed_since") is None:  # the old rows are still in the files
            connection.execute(sa.insert(STORE).values(name="purge_needed_since", value=str(_now())))


def _rekey_receipts(connection: sa.Connection, secret: bytes) -> int:
    owners = connection.execute(sa.select(RECEIPTS.c.owner).distinct()).scalars().all()
    for owner in owners:
        mine = sa.update(RECEIPTS).where(RECEIPTS.c.owner == owner)
        connection.execute(mine.values(owner=_pseudonym(secret, owner)))
    return len(owners)


def _rekey_audit(connection: sa.Connection, secret: bytes) -> int:
    """Recompute the chain. A broken link stays broken. Old hashes are dropped: names could be tested on them."""
    old = new = _link(connection, "audit_start")
    head, entries, whole = _link(connection, "audit_head"), 0, True
    for row in _chained(connection):
        entries += 1
        if (row["seq"], bytes(row["hash"])) == (old[0] + 1, _hash(old, row)):
            digest = _hash(new, _keyed(secret, row))
        else:
            whole, digest = False, hmac.digest(secret, bytes(row["hash"]), hashlib.sha256)
        old, new = (row["seq"], bytes(row["hash"])), (row["seq"], digest)
        _replace(connection, secret, row, digest)
    waiting = connection.execute(sa.select(AUDIT).where(AUDIT.c.seq.is_(None))).mappings().all()
    for row in waiting:
        _replace(connection, secret, row, None)
    if head == old:
        here = sa.update(STORE).where(STORE.c.name == "audit_head")
        connection.execute(here.values(value=f"{new[0]}:{new[1].hex()}"))
    if entries:
        _note(connection, {"entries": entries, "head": old[0]}, "done" if whole and head == old else "broken")
    return entries + len(waiting)


def _link(connection: sa.Connection, name: str) -> tuple[int, bytes]:
    seq, _, digest = (_value(connection, name) or f"0:{bytes(32).hex()}").partition(":")
    return int(seq), bytes.fromhex(digest)


def _chained(connection: sa.Connection) -> Iterator[Entry]:
    last = -1
    page = sa.select(AUDIT).where(AUDIT.c.seq > sa.bindparam("last")).order_by(AUDIT.c.seq).limit(AT_ONCE)
    while rows := connection.execute(page, {"last": last}).mappings().all():
        yield from rows
        last = rows[-1]["seq"]


def _replace(connection: sa.Connection, secret: bytes, row: Entry, digest: bytes | None) -> None:
    keyed = _keyed(secret, row)
    here = sa.update(AUDIT).where(AUDIT.c.owner == row["owner"], AUDIT.c.entry == row["entry"])
    people = {name: keyed[name] for name in ("owner", "actor", "agent")}
    connection.execute(here.values(**people, hash=digest))


def _keyed(secret: bytes, row: Entry) -> Entry:
    keyed = {name: row[name] and _pseudonym(secret, row[name]) for name in ("owner", "actor", "agent")}
    return {**row, **keyed}


def _pseudonym(secret: bytes, key: UUID) -> UUID:
    return key if key == NOBODY else UUID(bytes=hmac.digest(secret, key.bytes, hashlib.sha256)[:16])


def _hash(previous: tuple[int, bytes], entry: Entry) -> bytes:
    said = [entry[name] for name in ("at", "admin", "action", "target", "counts", "outcome")]
    who = [None if entry[name] is None else entry[name].hex for name in ("owner", "entry", "actor", "agent")]
    text = json.dumps([previous[0] + 1, *who, *said])
    return hashlib.sha256(previous[1] + text.encode()).digest()


def _note(connection: sa.Connection, counts: dict[str, int], outcome: str) -> None:
    """Record in the audit that its chain was recomputed, the number of entries, and whether it was whole before."""
    act = {"owner": NOBODY, "entry": uuid4(), "at": _now(), "admin": True, "action": "rekey", "target": ""}
    connection.execute(sa.insert(AUDIT).values(**act, counts=json.dumps(counts, sort_keys=True), outcome=outcome))


def _value(connection: sa.Connection, name: str) -> str | None:
    return connection.execute(sa.select(STORE.c.value).where(STORE.c.name == name)).scalar_one_or_none()


def _now() -> int:
    return time.time_ns() // 1_000
