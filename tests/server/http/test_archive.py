"""Export and import: the memory of one owner as JSON lines, complete and valid in another store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, select

from fixtures.command_line import Run
from fixtures.keys import make_key
from fixtures.sample_memory import MARKS, answers, fill_memory
from threefold import MemoryClient
from threefold.errors import Conflict, Forbidden, InvalidRequest, NotFound
from threefold_server.local import LocalService
from threefold_server.rules.access import SHARED_POOL, owner_key
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import (
    TENANT_TABLES,
    audit,
    clearances,
    erased_turns,
    model_use,
    owners,
    passages,
    postings,
    receipts,
    tasks,
)
from threefold_server.storage.store.archive import ARCHIVED

DERIVED = {passages, postings, tasks, clearances}
ABOUT = {owners, erased_turns, receipts, audit, model_use}
"""The head of an archive names its owner. The other tables hold what was erased, done or spent."""

EXTRACTED = {"fact_sources", "barred_sources"}
"""Filled by an extraction only."""


def started(**settings: Any) -> LocalService:
    return LocalService(embedder="hash", allow_user_level=True, allow_admin=True, **MARKS, **settings)


@pytest.fixture
def here(database_url: str) -> Iterator[LocalService]:
    with started(database_url=database_url) as service:
        yield service


@pytest.fixture
def there() -> Iterator[LocalService]:
    with started() as service:
        yield service


@pytest.fixture
def ana(here: LocalService) -> Iterator[MemoryClient]:
    with here.client(user="ana", agent="support", timeout=60.0) as client:
        fill_memory(client)
        yield client


def rows_of(database_url: str, table: Table, owner: Any) -> int:
    with closing(Database(database_url)) as database:
        statement = select(table).where(table.c.owner == owner)
        return len(database.read_sync("system", lambda c: c.execute(statement).all()))


def content(archive: list[str]) -> list[str]:
    """Return the rows of an archive without the time of the export."""
    return archive[1:-1]


def test_every_table_is_in_an_archive_or_listed_as_left_out(ana: MemoryClient, database_url: str) -> None:
    assert {*ARCHIVED} | DERIVED | ABOUT == {*TENANT_TABLES}
    held = {table.name: rows_of(database_url, table, owner_key("user", "ana")) for table in ARCHIVED}
    assert 0 not in [count for name, count in held.items() if name not in EXTRACTED], held
    lines = [json.loads(line) for line in ana.admin.export(user="ana")]
    assert {name: sum(line.get("table") == name for line in lines) for name in held} == held


def test_imported_memory_answers_the_same_in_another_store(
    ana: MemoryClient, here: LocalService, there: LocalService
) -> None:
    """The memory is exported, erased, and imported into another store and into the first one."""
    before = answers(ana)
    archive = list(ana.admin.export(user="ana"))
    assert ana.admin.forget(user="ana").complete
    with pytest.raises(NotFound):
        list(ana.admin.export(user="ana"))
    with there.client(user="ana", agent="support", timeout=60.0) as moved:
        receipt = moved.admin.load(archive, trust_archive=True)
        assert (receipt.added, receipt.present) == (len(archive) - 2, 0)
        for session in ("s1", "s2", "s3"):
            moved.wait(session)
        assert answers(moved) == before
        assert content(list(moved.admin.export(user="ana"))) == content(archive)
        again = moved.admin.load(archive, trust_archive=True)
        assert (again.added, again.present) == (0, len(archive) - 2)
        assert content(list(moved.admin.export(user="ana"))) == content(archive)
        last = moved.turns("s1").turns[-1].seq
        assert moved.write("s1", [{"role": "user", "content": "and on it goes"}]).last_seq == last + 1
    with here.client(user="ana", agent="support", timeout=60.0) as back:
        back.admin.load(archive, trust_archive=True)
        for session in ("s1", "s2", "s3"):
            back.wait(session)
        assert answers(back) == before


def test_archive_contains_no_other_owner(ana: MemoryClient, here: LocalService) -> None:
    with here.client(user="bob", agent="support") as bob:
        bob.write("s1", [{"role": "user", "content": "bob's quetzal"}])
        bob.save("bob's quetzal", shared=True)
    assert "quetzal" not in "".join(ana.admin.export(user="ana"))


def test_interrupted_import_can_be_repeated(ana: MemoryClient, there: LocalService) -> None:
    archive = list(ana.admin.export(user="ana"))
    with there.client(user="ana", agent="support", timeout=60.0) as moved:
        for row in content(archive)[:9]:
            moved.admin.load_rows([json.loads(row)], user="ana", trust_archive=True)
        receipt = moved.admin.load(archive, trust_archive=True)
        assert (receipt.added, receipt.present) == (len(archive) - 11, 9)
        assert content(list(moved.admin.export(user="ana"))) == content(archive)


def test_damaged_archive_is_refused_completely(ana: MemoryClient, there: LocalService) -> None:
    archive = list(ana.admin.export(user="ana"))
    with there.client() as moved:
        for torn in (
            [],
            archive[:-1],
            [*archive[:3], *archive[4:]],
            [line.replace("gate 7", "gate 8") for line in archive],
            ["{}", *archive[1:]],
            [archive[0].replace("ana", "bob"), *archive[1:]],
        ):
            with pytest.raises(InvalidRequest, match="archive"):
                moved.admin.load(torn)
        assert moved.admin.owners().owners == []


def test_batch_with_an_invalid_row_is_refused_completely(ana: MemoryClient, there: LocalService) -> None:
    rows = [json.loads(line) for line in content(list(ana.admin.export(user="ana")))]
    session, turn, fact, item, thread, checkpoint = (
        next(row for row in rows if row["table"] == name)
        for name in ("sessions", "turns", "facts", "items", "threads", "checkpoints")
    )
    key = "0" * 32

    def changed(row: Any, **values: Any) -> Any:
        return {**row, "row": row["row"] | values}

    bad: list[tuple[list[Any], type[Exception]]] = [
        ([session, {"table": "api_keys", "row": {}}], InvalidRequest),
        ([session, {"table": "turns", "row": {}}], InvalidRequest),
        ([session, changed(turn, color="red")], InvalidRequest),
        ([session, changed(turn, role="king")], InvalidRequest),
        ([session, changed(turn, seq="1")], InvalidRequest),
        ([session, changed(turn, seq=2**40)], InvalidRequest),
        ([session, changed(turn, content="a\0b")], InvalidRequest),
        ([session, changed(turn, session="no key")], InvalidRequest),
        ([session, changed(turn, session=5)], InvalidRequest),
        ([session, changed(turn, seq=0)], InvalidRequest),
        ([session, changed(turn, seq=None)], InvalidRequest),
        ([session, changed(turn, turn_id="")], InvalidRequest),
        ([session, changed(turn, event_at=2**62)], InvalidRequest),
        ([session, changed(turn, utc_offset=32_000)], InvalidRequest),
        ([changed(session, created_at=-(2**62))], InvalidRequest),
        ([changed(session, agent="other")], InvalidRequest),
        ([changed(fact, session=key)], InvalidRequest),
        ([changed(fact, writer="bob")], InvalidRequest),
        ([changed(fact, agent="*")], InvalidRequest),
        ([changed(fact, metadata="{")], InvalidRequest),
        ([changed(fact, metadata="[1]")], InvalidRequest),
        ([changed(fact, trust=1.5)], InvalidRequest),
        ([changed(item, item=key)], InvalidRequest),
        ([changed(item, pool=key)], InvalidRequest),
        ([changed(item, for_all=True)], InvalidRequest),
        ([changed(item, value="[1]")], InvalidRequest),
        ([changed(item, fields="{}")], InvalidRequest),
        ([changed(item, ttl=-1.0)], InvalidRequest),
        ([changed(thread, thread=key)], InvalidRequest),
        ([thread, changed(checkpoint, versions="1")], InvalidRequest),
        ([turn], Conflict),
        ([session, turn, changed(turn, seq=99)], Conflict),
    ]
    with there.client() as moved:
        for batch, error in bad:
            with pytest.raises(error):
                moved.admin.load_rows(batch, user="ana")
        with pytest.raises(InvalidRequest, match="somebody else"):
            moved.admin.load_rows([session], user="bob")
        assert moved.admin.owners().owners == []


def test_untrusted_archive_is_capped_and_otherwise_unchanged(ana: MemoryClient, there: LocalService) -> None:
    """An archive does not set origin, trust and pins; turns, texts, histories and ids are the same."""
    archive = list(ana.admin.export(user="ana"))
    with there.client(user="ana", agent="support", timeout=60.0) as moved:
        assert moved.admin.load(archive).added == len(archive) - 2
        for session in ("s1", "s2", "s3"):
            moved.wait(session)
        listed = list(moved.iter_memories(include=["long_term", "shared"]))
        assert {memory.origin for memory in listed} == {"import"}
        assert {memory.trust for memory in listed if memory.role not in ("tool", "assistant")} == {0.8}
        assert max(memory.trust for memory in listed) == 0.8
        assert not any(memory.pinned for memory in listed)
        assert moved.recall("heron", min_trust=0.9).memories == []
        assert moved.recall("heron", min_trust=0.8).memories != []
        capped = {"trust", "origin", "pinned"}
        assert [memory.model_dump(exclude=capped) for memory in listed] == [
            memory.model_dump(exclude=capped) for memory in ana.iter_memories(include=["long_term", "shared"])
        ]
        exported = list(moved.admin.export(user="ana"))
        assert len(exported) == len(archive)
        assert moved.admin.load(archive).added == moved.admin.load(exported).added == 0
        assert content(list(moved.admin.export(user="ana"))) == content(exported)


def test_shared_facts_are_imported_only_with_the_right_to_share(ana: MemoryClient, database_url: str) -> None:
    archive = list(ana.admin.export(user="ana"))
    ana.admin.forget(user="ana")
    settings: dict[str, Any] = {"database_url": database_url, "mode": "keys", "embedder": "hash"}
    tokens = [make_key(database_url, admin=True, may_share=share) for share in (False, True)]
    with (
        LocalService(**settings) as service,
        service.client(api_key=tokens[0], timeout=60.0) as admin,
        service.client(api_key=tokens[1], timeout=60.0) as sharing,
    ):
        with pytest.raises(Forbidden, match="may not save shared facts"):
            admin.admin.load(archive)
        with pytest.raises(Forbidden, match="--may-share"):
            admin.admin.load_rows([], user="ana", trust_archive=True)
        with pytest.raises(Forbidden):
            admin.admin.load(archive, trust_archive=True)
        assert admin.list().items == []
        sharing.admin.load(archive)
        [shared] = sharing.list(include=["shared"], kinds=["fact"]).items
        assert (shared.trust, shared.origin, shared.user) == (0.8, "import", "ana")


def test_import_does_not_overwrite_a_different_session(ana: MemoryClient, there: LocalService) -> None:
    archive = list(ana.admin.export(user="ana"))
    with there.client(user="ana", agent="support") as other:
        other.write("s1", [{"role": "user", "content": "quite another talk"}])
        with pytest.raises(Conflict, match="another"):
            other.admin.load(archive)
        assert [turn.content for turn in other.turns("s1").turns] == ["quite another talk"]


def test_exports_and_imports_are_audited(ana: MemoryClient, there: LocalService) -> None:
    archive = list(ana.admin.export(user="ana"))
    [entry] = [entry for entry in ana.admin.audit().entries if entry.action == "export"]
    assert (entry.owner_name, entry.counts) == ("ana", {"rows": len(archive) - 2})
    with there.client() as moved:
        moved.admin.load(archive)
        [entry] = [entry for entry in moved.admin.audit().entries if entry.action == "import"]
        assert entry.counts == {"added": len(archive) - 2, "present": 0}


def test_agent_without_a_user_is_exported_and_imported(here: LocalService, there: LocalService) -> None:
    with here.client() as admin:
        with pytest.raises(NotFound):
            list(admin.admin.export(self_agent="support"))
        with pytest.raises(InvalidRequest):
            admin.admin.export(user="ana", self_agent="support")
    with there.client(agent="support") as other:
        item: dict[str, Any] = {"op": "put", "namespace": ["n"], "key": "k", "value": {}}
        other.items_batch([item], scope="agent")
        archive = list(other.admin.export(self_agent="support"))
    with here.client(agent="support") as admin:
        admin.admin.load(archive)
        found = admin.items_batch([{"op": "get", "namespace": ["n"], "key": "k"}], scope="agent")
        assert found.results[0] is not None


def test_user_is_renamed_in_every_table(ana: MemoryClient, here: LocalService, database_url: str) -> None:
    before = answers(ana)
    counts = ana.admin.rename("ana", "ana-maria").counts
    assert all(counts[table.name] for table in ARCHIVED if table.name not in EXTRACTED)
    with here.client(user="ana-maria", agent="support", timeout=60.0) as renamed:
        assert answers(renamed) == before
        assert [item.user for item in renamed.list(include=["shared"]).items] == ["ana-maria"]
        renamed.write("s2", [{"role": "user", "content": "and on it goes"}])
        renamed.wait("s2")
    assert ana.list().items == []
    assert [owner.name for owner in ana.admin.owners().owners] == ["ana-maria"]
    for table in {*TENANT_TABLES} - ABOUT:
        assert rows_of(database_url, table, owner_key("user", "ana")) == 0, table.name
    entries = [entry for entry in ana.admin.audit().entries if entry.action == "rename"]
    assert {entry.owner_name for entry in entries} == {None, "ana-maria"}


def test_rename_replaces_every_key_of_the_owner(ana: MemoryClient, database_url: str) -> None:
    """All keys derived from the key of the owner are replaced, in every table."""
    assert ana
    with closing(Database(database_url)) as database:

        def keys(user: str) -> set[Any]:
            found: set[Any] = set()
            for table in {*TENANT_TABLES} - ABOUT:
                rows = select(table).where(table.c.owner == owner_key("user", user))
                for row in database.read_sync("system", lambda c, rows=rows: c.execute(rows).mappings().all()):
                    found |= {value for name, value in row.items() if name in KEYS}
            return found - {None, SHARED_POOL}

        old = keys("ana")
        ana.admin.rename("ana", "ana-maria")
        assert not old & keys("ana-maria")
        assert len(old) == len(keys("ana-maria"))


KEYS = ("owner", "session", "pool", "subject", "thread", "item")
"""Columns with keys derived from the owner. The key of a fact is random and stays."""


def test_rename_does_not_merge_two_memories(ana: MemoryClient, here: LocalService) -> None:
    with here.client(user="bob", agent="support") as bob:
        bob.save("bob is here")
        with pytest.raises(Conflict, match="not merged"):
            ana.admin.rename("ana", "bob")
        with pytest.raises(Conflict):
            ana.admin.rename("ana", "ana")
        with pytest.raises(NotFound):
            ana.admin.rename("nobody", "carol")
        assert len(bob.list().items) == 1
    assert ana.list().items


def test_commands_for_archives_and_administration(
    run: Run, ana: MemoryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served_admin: str
) -> None:
    file = tmp_path / "ana.jsonl"
    file.write_text("".join(f"{line}\n" for line in ana.admin.export(user="ana")))
    monkeypatch.setenv("THREEFOLD_URL", served_admin)
    assert run("import", file, "--trust-archive").code == 0
    assert "0 rows added" in run("import", file).out
    copy = tmp_path / "copy.jsonl"
    assert run("admin", "export", "--of", "ana", "--output", copy).code == 0
    assert content(copy.read_text().splitlines()) == content(file.read_text().splitlines())
    assert run("admin", "rename", "ana", "ana-maria", "--json").json["counts"]["facts"] == 4
    assert "ana-maria" in run("admin", "owners").out
    assert run("admin", "usage", "--json").json["owners"] == 1
    assert run("admin", "list", "--of", "ana-maria", "--json").json["items"]
    assert run("admin", "forget", "--of", "ana-maria", "--dry-run").code == 0
    assert run("admin", "forget", "--of", "ana-maria", "--yes", "--json").json["complete"]
    assert "rename" in run("audit", "list").out
    assert run("audit", "verify", "--json").json["ok"]
    assert run("audit", "verify", "--head", "nothing").code == 2
