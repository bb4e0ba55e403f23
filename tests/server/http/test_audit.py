"""The audit: which actions are recorded, without content, and a hash chain that shows every change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import Connection, delete, insert, select, update

from fixtures.keys import make_key
from fixtures.talk import said
from threefold import MemoryClient
from threefold.contract.admin import AuditEntry
from threefold.errors import Forbidden, InvalidRequest
from threefold_server.clock import now_micros
from threefold_server.local import LocalService
from threefold_server.rules.access import owner_key
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.pseudonyms import pseudonyms
from threefold_server.storage.engine.tables import audit
from threefold_server.storage.store import audit as entries
from threefold_server.storage.store import keys, system_audit


@pytest.fixture
def guarded(database_url: str) -> Iterator[LocalService]:
    with LocalService(database_url=database_url, embedder="hash", mode="keys", consolidate=False) as running:
        yield running


@pytest.fixture
def operator(guarded: LocalService, database_url: str) -> Iterator[MemoryClient]:
    key = make_key(database_url, user_grant="self", user_value=None, agent_value="operator", admin=True)
    with guarded.client(api_key=key) as client:
        yield client


@pytest.fixture
def ana(guarded: LocalService, database_url: str) -> Iterator[MemoryClient]:
    with guarded.client(api_key=make_key(database_url, user_value="ana-quetzal")) as client:
        client.write("s-quetzal", [said("my passport is quetzal")])
        yield client


def rows(database_url: str) -> list[Any]:
    with closing(Database(database_url)) as database:
        return list(database.read_sync("system", lambda c: c.execute(select(audit).order_by(audit.c.at)).all()))


def pseudonym_of(database_url: str, user: str) -> UUID:
    with closing(Database(database_url)) as database:
        return database.read_sync("system", lambda c: pseudonyms(c)(owner_key("user", user)))


def acts(operator: MemoryClient, action: str) -> list[AuditEntry]:
    return [entry for entry in operator.admin.audit().entries if entry.action == action]


def test_forget_is_recorded_without_content(operator: MemoryClient, ana: MemoryClient, database_url: str) -> None:
    """Users reported that the audit of deletions held the personal data itself. It says who, whose, how much and
    when."""
    fact = ana.save("the quetzal is blue").id
    ana.forget(memory_ids=[fact])
    ana.forget(session_id="s-quetzal", dry_run=True)
    ana.forget(level="agent")
    assert [(entry.target, entry.outcome) for entry in acts(operator, "forget")] == [
        ("level:agent", "done"),
        ("facts", "done"),
    ]
    [level, single] = acts(operator, "forget")
    assert level.counts["turns"] == single.counts["facts"] == 1
    assert level.owner == level.actor == pseudonym_of(database_url, "ana-quetzal").hex
    assert level.owner_name == "ana-quetzal"
    assert not level.admin
    assert "quetzal" not in repr(rows(database_url))


def test_audit_of_an_erased_user_has_no_name(operator: MemoryClient, ana: MemoryClient, database_url: str) -> None:
    assert ana
    operator.admin.forget(user="ana-quetzal")
    [entry] = acts(operator, "forget")
    assert (entry.target, entry.outcome, entry.counts["turns"]) == ("owner:user", "done", 1)
    assert entry.admin
    assert entry.owner == pseudonym_of(database_url, "ana-quetzal").hex
    assert entry.owner_name is None
    assert "quetzal" not in operator.admin.audit().model_dump_json()


def test_reads_of_an_administrator_are_recorded(operator: MemoryClient, ana: MemoryClient) -> None:
    assert ana
    operator.admin.list(user="ana-quetzal")
    operator.admin.owners()
    [read] = acts(operator, "list")
    assert (read.owner_name, read.counts, read.admin) == ("ana-quetzal", {"memories": 1}, True)
    [names] = acts(operator, "owners")
    assert (names.owner, names.counts) == (None, {"owners": 1})


def test_changes_of_keys_are_recorded(operator: MemoryClient, database_url: str) -> None:
    with closing(Database(database_url)) as database:
        [key] = database.read_sync("system", keys.list_keys)
        assert database.write_sync("system", lambda c: keys.rotate(c, key.key_id, now_micros(), 0))
        assert database.write_sync("system", lambda c: keys.revoke(c, key.key_id, now_micros()))
        assert not database.write_sync("system", lambda c: keys.revoke(c, key.key_id, now_micros()))
    noted = [(row.action, row.target, row.admin) for row in rows(database_url)]
    assert noted == [(action, key.key_id, True) for action in ("key.create", "key.rotate", "key.revoke")]


def test_repeated_refusals_are_recorded_once_with_their_number(database_url: str) -> None:
    """Recorded when the process writes its counts, at the latest when it ends."""
    key = make_key(database_url)
    with (
        LocalService(database_url=database_url, embedder="hash", mode="keys") as service,
        service.client(api_key=key) as client,
        httpx.Client(base_url="http://threefold.local", transport=service.transport()) as nobody,
    ):
        for _ in range(3):
            with pytest.raises(Forbidden):
                client.recall("kumquat", level="user")
            assert nobody.get("/v1/whoami").status_code == 401
            assert nobody.get("/v1/sessions", headers={"Authorization": "Bearer forged"}).status_code == 401
    noted = {(row.target, row.outcome): row for row in rows(database_url) if row.action == "refused"}
    assert set(noted) == {
        ("post_recall", "forbidden"),
        ("get_whoami", "unauthenticated"),
        ("get_sessions", "unauthenticated"),
    }
    assert {row.counts for row in noted.values()} == {'{"times": 3}'}
    assert noted["post_recall", "forbidden"].owner == pseudonym_of(database_url, "ana")
    assert noted["get_whoami", "unauthenticated"].actor is None


def write_chain(database: Database, *actions: entries.Action) -> None:
    def write(connection: Connection) -> None:
        for number, action in enumerate(actions):
            entries.note(connection, owner_key("user", "ana"), entries.OPERATOR, action, at=number)
        while system_audit.chain(connection, 2) == 2:
            pass

    database.write_sync("system", write)


@pytest.fixture
def chained(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url)) as database:
        write_chain(database, "forget", "list", "export", "rename", "owners")
        yield database


def check(database: Database, head: str | None = None) -> tuple[bool, str | None]:
    known = None if head is None else system_audit.Link.parse(head)
    found = database.read_sync("system", lambda c: system_audit.verify(c, known))
    return found.ok, found.problem


def test_chain_is_complete_and_in_order(chained: Database) -> None:
    found = chained.read_sync("system", lambda c: system_audit.verify(c, None))
    assert (found.ok, found.entries, found.waiting) == (True, 5, 0)
    order = chained.read_sync(
        "system", lambda c: c.execute(select(audit.c.action).order_by(audit.c.seq)).scalars().all()
    )
    assert order == ["forget", "list", "export", "rename", "owners"]
    write_chain(chained, "forget")
    assert check(chained, found.head) == (True, None)


TAMPERINGS: dict[str, Callable[[Connection], object]] = {
    "a changed count": lambda c: c.execute(update(audit).where(audit.c.seq == 3).values(counts='{"turns": 1}')),
    "a changed actor": lambda c: c.execute(
        update(audit).where(audit.c.seq == 3).values(actor=owner_key("user", "bob"))
    ),
    "a changed owner": lambda c: c.execute(
        update(audit).where(audit.c.seq == 1).values(owner=owner_key("user", "bob"))
    ),
    "a deleted entry": lambda c: c.execute(delete(audit).where(audit.c.seq == 2)),
    "the newest entry deleted": lambda c: c.execute(delete(audit).where(audit.c.seq == 5)),
    "all entries deleted": lambda c: c.execute(delete(audit)),
    "two entries swapped": lambda c: c.execute(update(audit).where(audit.c.seq > 3).values(seq=9 - audit.c.seq)),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_every_change_is_detected(chained: Database, tampering: str) -> None:
    chained.write_sync("system", TAMPERINGS[tampering])
    ok, problem = check(chained)
    assert not ok
    assert problem


def test_rewritten_chain_does_not_contain_an_earlier_head(chained: Database) -> None:
    head = chained.read_sync("system", lambda c: system_audit.verify(c, None)).head
    again = update(audit).where(audit.c.seq == 2).values(action="list", seq=None, at=1)
    chained.write_sync("system", lambda c: c.execute(again))
    chained.write_sync("system", lambda c: c.execute(update(audit).values(seq=None, hash=None)))
    chained.write_sync("system", lambda c: c.exec_driver_sql("DELETE FROM store WHERE name = 'audit_head'"))
    chained.write_sync("system", lambda c: c.execute(delete(audit).where(audit.c.action == "export")))
    write_chain(chained, "owners", "owners")
    assert check(chained) == (True, None)
    ok, problem = check(chained, head)
    assert not ok
    assert problem is not None
    assert "rewritten" in problem


def test_chain_without_its_oldest_entries_is_valid(chained: Database) -> None:
    assert chained.write_sync("system", lambda c: system_audit.drop_old(c, 2)) == 2
    found = chained.read_sync("system", lambda c: system_audit.verify(c, None))
    assert (found.ok, found.entries) == (True, 3)
    chained.write_sync("system", lambda c: c.execute(delete(audit).where(audit.c.seq == 3)))
    assert not check(chained)[0]
    assert chained.write_sync("system", lambda c: system_audit.drop_old(c, 99)) == 2
    assert chained.write_sync("system", lambda c: system_audit.drop_old(c, 99)) == 0


def test_head_may_be_the_start_of_the_chain(chained: Database) -> None:
    """The head before the first entry, or that of the last entry deleted since."""
    assert check(chained, str(system_audit.ORIGIN)) == (True, None)
    head = chained.read_sync("system", lambda c: system_audit.verify(c, None)).head
    assert chained.write_sync("system", lambda c: system_audit.drop_old(c, 99)) == 5
    assert check(chained, head) == (True, None)
    assert check(chained, str(system_audit.Link(5, bytes(32))))[0] is False


def test_worker_extends_the_chain_and_applies_the_retention(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        database.write_sync("system", lambda c: entries.note(c, entries.STORE, entries.OPERATOR, "key.create", at=1))
        database.write_sync("system", lambda c: system_audit.chain(c, 10))
    with (
        LocalService(database_url=database_url, embedder="hash", allow_admin=True, audit_retention_days=1) as service,
        service.client(user="ana", timeout=60.0) as client,
    ):
        client.write("s1", [said("hello")])
        client.forget(session_id="s1")
        while (found := client.admin.verify_audit()).waiting or found.entries != 1:
            time.sleep(0.05)
        [entry] = client.admin.audit().entries
        assert (entry.action, entry.seq, found.ok) == ("forget", 2, True)


def test_invalid_head_is_refused(operator: MemoryClient) -> None:
    for head in ("", "7", "x:00", "7:xyz"):
        with pytest.raises(InvalidRequest, match="head"):
            operator.admin.verify_audit(head)


def test_audit_is_listed_page_by_page(operator: MemoryClient, ana: MemoryClient) -> None:
    for _ in range(5):
        ana.forget(level="agent")
    found: list[AuditEntry] = []
    cursor, more = None, True
    while more:
        page = operator.admin.audit(limit=2, cursor=cursor)
        found += page.entries
        cursor, more = page.next_cursor, page.next_cursor is not None
    assert [entry.action for entry in found] == ["forget"] * 5 + ["key.create"] * 2
    assert [entry.at for entry in found] == sorted((entry.at for entry in found), reverse=True)


def test_tenant_adds_audit_entries_and_cannot_read_or_change_them(postgres_url: str) -> None:
    owner = owner_key("user", "ana")
    with closing(Database(postgres_url)) as database:
        database.write_sync(owner, lambda c: entries.note(c, owner, entries.NOBODY, "forget", at=1))
        assert database.read_sync(owner, lambda c: c.execute(select(audit)).all()) == []
        assert database.write_sync(owner, lambda c: c.execute(update(audit).values(outcome="x")).rowcount) == 0
        assert database.write_sync(owner, lambda c: c.execute(delete(audit)).rowcount) == 0
        assert len(rows(postgres_url)) == 1


def test_tenant_cannot_add_an_entry_about_another_owner(postgres_url: str) -> None:
    with closing(Database(postgres_url)) as database, pytest.raises(Exception, match="row-level security"):
        database.write_sync(
            owner_key("user", "ana"),
            lambda c: c.execute(
                insert(audit).values(
                    owner=owner_key("user", "bob"),
                    entry=owner_key("user", "x"),
                    at=1,
                    admin=False,
                    action="forget",
                    target="",
                    counts="{}",
                    outcome="done",
                )
            ),
        )
