"""The chain of hashes over all audit entries: append, verify, list, and delete old entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, and_, delete, func, select, tuple_, update

from threefold.contract.admin import AuditCheck, AuditEntry
from threefold_server.clock import from_micros
from threefold_server.storage.engine.pseudonyms import known_names
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import audit, store
from threefold_server.storage.engine.types import AnyRow, row_value
from threefold_server.storage.store.audit import STORE

AT_ONCE = 1_000

_HEAD, _START = "audit_head", "audit_start"


class Link(NamedTuple):
    """The number of an entry in the chain, and its hash."""

    seq: int
    hash: bytes

    @classmethod
    def parse(cls, text: str) -> Link:
        """Return the link of a text; raise ValueError if the text has another form."""
        seq, _, digest = text.partition(":")
        link = cls(int(seq), bytes.fromhex(digest))
        if len(link.hash) != len(ORIGIN.hash):
            raise ValueError("not the hash of an entry")
        return link

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


ORIGIN = Link(0, bytes(32))


def chain(connection: Connection, limit: int) -> int:
    """Append up to `limit` new entries to the chain, in the order of their times; return their number.

    The head is locked, so that two workers append one after another.
    """
    head = _locked_head(connection)
    fresh = select(audit).where(audit.c.seq.is_(None)).order_by(audit.c.at, audit.c.entry).limit(limit)
    rows = connection.execute(fresh).all()
    for row in rows:
        head = _follow(head, row)
        here = and_(audit.c.owner == row.owner, audit.c.entry == row.entry)
        connection.execute(update(audit).where(here).values(seq=head.seq, hash=head.hash))
    _keep(connection, _HEAD, head)
    return len(rows)


def verify(connection: Connection, known: Link | None) -> AuditCheck:
    """Compute the chain again from start to head, and compare. `known` is an earlier head that must be part of it."""
    rekeyed = connection.execute(select(func.max(audit.c.counts)).where(audit.c.action == "rekey")).scalar_one()
    walk = _Walk(_link(connection, _START), known, 0 if rekeyed is None else json.loads(rekeyed)["head"])
    walk.compare()  # what was noted may be where the chain starts now
    chained = select(audit).where(audit.c.seq.is_not(None)).order_by(audit.c.seq)
    for row in connection.execute(chained, execution_options={"yield_per": AT_ONCE}):
        walk.step(row)
    head = _link(connection, _HEAD)
    waiting = connection.execute(select(func.count()).select_from(audit).where(audit.c.seq.is_(None))).scalar_one()
    problem = walk.problem or walk.unmet(head)
    return AuditCheck(ok=problem is None, problem=problem, entries=walk.entries, waiting=waiting, head=str(head))


def page(
    connection: Connection, after: tuple[int, UUID] | None, limit: int
) -> list[tuple[tuple[int, str], AuditEntry]]:
    """Return entries, newest first, each with its position, and with names that the store still has."""
    statement = select(audit).order_by(audit.c.at.desc(), audit.c.entry.desc()).limit(limit)
    if after is not None:
        statement = statement.where(tuple_(audit.c.at, audit.c.entry) < row_value(*after))
    rows = connection.execute(statement).all()
    people = {key for row in rows for key in (row.owner, row.actor) if key is not None}
    names: dict[UUID | None, str] = {**known_names(connection, people)}
    return [((row.at, row.entry.hex), _entry(row, names)) for row in rows]


def drop_old(connection: Connection, before: int) -> int:
    """Delete the chained entries from before a time, and start the chain after them; return their number."""
    _locked_head(connection)
    kept = connection.execute(select(func.min(audit.c.seq)).where(audit.c.at >= before)).scalar_one()
    chained = audit.c.seq.is_not(None) if kept is None else audit.c.seq < kept
    ends = select(audit.c.seq, audit.c.hash).where(chained).order_by(audit.c.seq.desc())
    last = connection.execute(ends.limit(1)).first()
    if last is None:
        return 0
    _keep(connection, _START, Link(*last))
    return connection.execute(delete(audit).where(audit.c.seq <= last.seq)).rowcount


@dataclass
class _Walk:
    """The state of one verification of the chain."""

    last: Link
    known: Link | None
    rekeyed: int = 0
    """Heads up to this entry may have been noted before an upgrade computed the chain again."""

    entries: int = 0
    problem: str | None = None

    def step(self, row: AnyRow) -> None:
        """Compare the next entry with its expected number and hash."""
        expected = _follow(self.last, row)
        self.entries += 1
        if self.problem is None and (row.seq, bytes(row.hash)) != expected:
            self.problem = f"entry {expected.seq} is missing or was changed"
        self.last = Link(row.seq, bytes(row.hash))
        self.compare()

    def compare(self) -> None:
        """Compare the current link with the known head if it has the same number."""
        if self.known is None or self.known.seq != self.last.seq:
            return
        known, self.known = self.known, None
        if known != self.last and self.problem is None:
            self.problem = f"entry {known.seq} is not the one that was noted: the chain was rewritten"
            if known.seq <= self.rekeyed:
                self.problem += (
                    f", or noted before the upgrade that keyed the pseudonyms up to entry {self.rekeyed}; "
                    "a head from before it shows nothing any more"
                )

    def unmet(self, head: Link) -> str | None:
        """Return the problem that shows at the end of the chain, or None."""
        if self.last != head:
            return f"the chain ends at entry {self.last.seq}, not at its head {head.seq}: entries are missing"
        if self.known is not None:
            return f"entry {self.known.seq} is not in the chain: it was dropped after its time, or never there"
        return None


def _follow(previous: Link, row: AnyRow) -> Link:
    """Return the link of an entry: its hash covers its columns, its number, and the hash before it."""
    said = [getattr(row, name) for name in ("at", "admin", "action", "target", "counts", "outcome")]
    who = [None if key is None else key.hex for key in (row.owner, row.entry, row.actor, row.agent)]
    text = json.dumps([previous.seq + 1, *who, *said])
    return Link(previous.seq + 1, hashlib.sha256(previous.hash + text.encode()).digest())


def _link(connection: Connection, name: str) -> Link:
    value = connection.execute(select(store.c.value).where(store.c.name == name)).scalar_one_or_none()
    return ORIGIN if value is None else Link.parse(value)


def _locked_head(connection: Connection) -> Link:
    connection.execute(insert_into(connection, store).values(name=_HEAD, value=str(ORIGIN)).on_conflict_do_nothing())
    value = connection.execute(select(store.c.value).where(store.c.name == _HEAD).with_for_update()).scalar_one()
    return Link.parse(value)


def _keep(connection: Connection, name: str, link: Link) -> None:
    statement = insert_into(connection, store).values(name=name, value=str(link))
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": str(link)}))


def _entry(row: AnyRow, names: Mapping[UUID | None, str]) -> AuditEntry:
    return AuditEntry(
        at=from_micros(row.at),
        action=row.action,
        target=row.target,
        counts=json.loads(row.counts),
        outcome=row.outcome,
        owner=None if row.owner == STORE else row.owner.hex,
        owner_name=names.get(row.owner),
        actor=None if row.actor is None else row.actor.hex,
        actor_name=names.get(row.actor),
        agent=None if row.agent is None else row.agent.hex,
        admin=row.admin,
        seq=row.seq,
    )
