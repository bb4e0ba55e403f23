"""Migrations that remove text and recognisable names from rows of earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, delete, insert, select, text, update

from threefold.contract.admin import AuditCheck
from threefold_server.clock import EPOCH
from threefold_server.rules.access import derive_key, owner_key, session_key
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.tables import audit, owners, receipts, tasks
from threefold_server.storage.erasure.forget_records import purge_pending_since
from threefold_server.storage.store import system_audit
from threefold_server.storage.store.audit import STORE, Actor, note

ANA, BOB = owner_key("user", "ana"), owner_key("user", "bob")
SUPPORT = derive_key("agent", b"support")
SAID = "my passport is ZX-99"


def upgrade_to(connection: Connection, revision: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@pytest.fixture
def earlier(blank_database_url: str) -> Iterator[Database]:
    """A database without the schema."""
    with closing(Database(blank_database_url)) as database:
        yield database


def test_old_failure_reasons_lose_their_text_and_keep_the_status(earlier: Database, blank_database_url: str) -> None:
    reasons = [
        (f"the model's server answered 400: cannot process '{SAID}'", None),
        (None, f"chat refused: I must not talk about '{SAID}'"),
        (f"the model's server answered 503: {SAID}", f"the model's server answered 4291 {SAID}"),
        (None, None),
    ]

    def begin(connection: Connection) -> None:
        upgrade_to(connection, "0008")
        connection.execute(insert(owners).values(owner=ANA, kind="user", name="ana", created_at=0))
        for number, (failure, parked) in enumerate(reasons):
            subject = session_key(ANA, "support", str(number))
            row = {"owner": ANA, "subject": subject, "kind": "fold", "upto": number}
            connection.execute(insert(tasks).values(**row, failure=failure, parked=parked))

    earlier.write_sync("system", begin)
    migrate.upgrade(blank_database_url)
    found = earlier.read_sync("system", lambda c: c.execute(select(tasks).order_by(tasks.c.upto)).all())
    assert "ZX-99" not in repr(found)
    assert found[0].failure == "the model's server answered 400"
    assert found[2].failure == "the model's server answered 503"
    assert [row.parked is not None for row in found] == [False, True, True, False]
    pending = earlier.read_sync("system", purge_pending_since)
    assert (pending is not None) is not earlier.is_sqlite, "old row versions lie in the files of Postgres"


def audited(connection: Connection) -> None:
    """A store before pseudonyms were keyed, with an audit of two people and a receipt."""
    upgrade_to(connection, "0009")
    connection.execute(insert(owners).values(owner=ANA, kind="user", name="ana", created_at=0))
    for number, (owner, actor) in enumerate([(ANA, ANA), (BOB, ANA), (STORE, None), (ANA, BOB), (BOB, BOB)]):
        act = {"owner": owner, "entry": uuid4(), "at": number, "actor": actor, "agent": actor and SUPPORT}
        connection.execute(
            insert(audit).values(**act, admin=False, action="forget", target="session", counts="{}", outcome="done")
        )
        if number == 3:
            system_audit.chain(connection, 10)
    receipt = {"owner": ANA, "receipt": uuid4(), "selector": "session", "counts": "{}", "at": 1}
    connection.execute(insert(receipts).values(**receipt))


def checked(database: Database, head: str | None = None) -> AuditCheck:
    known = None if head is None else system_audit.Link.parse(head)
    return database.read_sync("system", lambda c: system_audit.verify(c, known))


def test_pseudonyms_of_earlier_rows_become_keyed(earlier: Database, blank_database_url: str) -> None:
    """Old and new rows of one person match, and the chain is whole before and after new entries are added."""
    earlier.write_sync("system", audited)
    head = checked(earlier).head
    migrate.upgrade(blank_database_url)
    found = earlier.read_sync("system", lambda c: c.execute(select(audit).order_by(audit.c.at)).all())
    keyed = earlier.read_sync("system", pseudonyms)
    assert [row.owner for row in found[:5]] == [keyed(ANA), keyed(BOB), STORE, keyed(ANA), keyed(BOB)]
    assert [row.actor for row in found[:5]] == [keyed(ANA), keyed(ANA), None, keyed(BOB), keyed(BOB)]
    assert {row.agent for row in found[:5]} == {keyed(SUPPORT), None}
    [receipt] = earlier.read_sync("system", lambda c: c.execute(select(receipts)).all())
    assert receipt.owner == keyed(ANA)
    assert {ANA, BOB, SUPPORT}.isdisjoint({key for row in found for key in (row.owner, row.actor, row.agent)})
    [rekey] = [row for row in found if row.action == "rekey"]
    assert (rekey.counts, rekey.outcome) == ('{"entries": 4, "head": 4}', "done")
    assert checked(earlier).ok
    earlier.write_sync("system", lambda c: note(c, ANA, Actor(ANA), "forget", at=9))
    earlier.write_sync("system", lambda c: system_audit.chain(c, 10))
    after = checked(earlier)
    assert (after.ok, after.entries, after.waiting) == (True, 7, 0)
    assert checked(earlier, after.head).ok
    old = checked(earlier, head)
    assert (old.ok, "noted before the upgrade" in str(old.problem)) == (False, True)
    names = earlier.read_sync("system", lambda c: system_audit.page(c, None, 10))
    assert [entry.owner_name for _, entry in names if entry.at == EPOCH] == ["ana"]


TAMPERINGS: dict[str, Callable[[Connection], object]] = {
    "a changed entry": lambda c: c.execute(update(audit).where(audit.c.seq == 2).values(outcome="x")),
    "another owner": lambda c: c.execute(update(audit).where(audit.c.seq == 2).values(owner=SUPPORT)),
    "a missing entry": lambda c: c.execute(delete(audit).where(audit.c.seq == 2)),
    "the newest missing": lambda c: c.execute(delete(audit).where(audit.c.seq == 4)),
    "two swapped": lambda c: c.execute(update(audit).where(audit.c.seq > 2).values(seq=7 - audit.c.seq)),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_chain_that_was_broken_stays_broken(earlier: Database, blank_database_url: str, tampering: str) -> None:
    """The upgrade does not vouch for entries that were changed before it."""
    earlier.write_sync("system", audited)
    earlier.write_sync("system", TAMPERINGS[tampering])
    before = checked(earlier).problem
    assert before
    migrate.upgrade(blank_database_url)
    assert checked(earlier).problem == before
    [rekey] = earlier.read_sync("system", lambda c: c.execute(select(audit).where(audit.c.action == "rekey")).all())
    assert rekey.outcome == "broken"
    hashes = earlier.read_sync("system", lambda c: c.execute(select(audit.c.hash)).scalars().all())
    assert len(hashes) == len(set(hashes) - {None}) + hashes.count(None)


def test_old_hashes_are_not_kept(earlier: Database, blank_database_url: str) -> None:
    """Otherwise a list of names could be tested on them, because the row holds everything else that was hashed."""
    hashes = select(audit.c.hash).where(audit.c.hash.is_not(None))
    earlier.write_sync("system", audited)
    earlier.write_sync("system", TAMPERINGS["a changed entry"])
    before = set(earlier.read_sync("system", lambda c: c.execute(hashes).scalars().all()))
    migrate.upgrade(blank_database_url)
    after = set(earlier.read_sync("system", lambda c: c.execute(hashes).scalars().all()))
    assert before
    assert before.isdisjoint(after)


def test_a_chain_that_lost_its_oldest_entries_stays_whole(earlier: Database, blank_database_url: str) -> None:
    earlier.write_sync("system", audited)
    earlier.write_sync("system", lambda c: system_audit.drop_old(c, 2))
    migrate.upgrade(blank_database_url)
    assert checked(earlier).ok


def test_an_empty_audit_gets_no_entry(earlier: Database, blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url)
    assert earlier.read_sync("system", lambda c: c.execute(select(audit)).all()) == []
    assert earlier.read_sync("system", purge_pending_since) is None
