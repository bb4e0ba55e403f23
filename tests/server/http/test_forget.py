"""Erasure in every tier, checked on the tables and, for SQLite, on the bytes.

Users reported forgets that wiped other users, left text in other tables or caches, or reported success after a
failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, insert, select

from fixtures.talk import said
from threefold import MemoryClient
from threefold.contract import ForgetSource
from threefold.errors import Conflict, Forbidden, InvalidRequest, NotFound
from threefold_server.local import LocalService
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import facts, metadata, passages, postings

SECRET = "ZX-99-quetzal"


def rows_with(database_url: str, words: Iterable[str]) -> list[str]:
    """Return the tables that contain one of the words in any column."""
    with closing(Database(database_url)) as database:
        rows = {
            table.name: database.read_sync("system", lambda c, table=table: c.execute(select(table)).all())
            for table in metadata.sorted_tables
        }
    return [name for name, found in rows.items() if any(word in repr(found).lower() for word in words)]


def settle(memory: MemoryClient, *sessions: str) -> None:
    for session in sessions:
        memory.wait(session)


def test_forgotten_session_is_in_no_table(memory: MemoryClient, database_url: str) -> None:
    memory.write("s1", [said(f"my passport is {SECRET}", name="Quetzalina", id="turn-quetzal")])
    memory.save(f"passport {SECRET}", session_id="s1")
    memory.write("s2", [said("I like tea")])
    settle(memory, "s1", "s2")
    assert rows_with(database_url, ["quetzal"])
    receipt = memory.forget(session_id="s1")
    assert receipt.complete
    assert (receipt.counts["turns"], receipt.counts["facts"], receipt.counts["sessions"]) == (1, 1, 1)
    assert rows_with(database_url, ["quetzal", "zx-99"]) == []
    assert memory.recall("passport").memories == []
    assert [session.session_id for session in memory.sessions().sessions] == ["s2"]
    assert memory.recall("what do I like, tea?").memories


def test_fact_of_a_session_without_turns_is_forgotten_with_it(memory: MemoryClient, database_url: str) -> None:
    """A tool saves before the turns of its run are written, which may never happen."""
    memory.save(f"passport {SECRET}", session_id="s1")
    kept = memory.save("I like tea", session_id="s2")
    assert memory.forget(session_id="s1").counts["facts"] == 1
    assert rows_with(database_url, ["quetzal"]) == []
    assert [item.id for item in memory.list().items] == [kept.id]


def test_open_reader_delays_the_purge_and_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the reader with the only write connection would block all writes; the timeout here is very long."""
    monkeypatch.setattr("threefold_server.storage.engine.database.BUSY_TIMEOUT_MS", 600_000)
    with LocalService(tmp_path, embedder="hash") as service, service.client(timeout=60.0) as memory:
        memory.write("s1", [said(SECRET)])
        with closing(Database(f"sqlite:///{tmp_path / 'threefold.db'}")) as outside, outside._reader.begin() as reader:  # pyright: ignore[reportPrivateUsage]
            reader.execute(select(facts)).all()
            receipt = memory.forget(session_id="s1")
        assert (receipt.complete, receipt.purge) == (True, "pending")


def test_bytes_of_sqlite_files_contain_no_forgotten_words(tmp_path: Path) -> None:
    with LocalService(tmp_path, embedder="hash") as service, service.client() as memory:
        memory.write("s1", [said(f"the code is {SECRET}")])
        memory.save(f"keep {SECRET}")
        belief = memory.beliefs.record(SECRET, falsification=SECRET, context={SECRET: SECRET})
        experiment = memory.beliefs.open_experiment(belief.id, plan=SECRET)
        memory.beliefs.close_experiment(experiment.id, "falsified", SECRET, evidence=[SECRET])
        memory.beliefs.reverify(belief.id, SECRET, changed=SECRET)
        memory.wait("s1")
        assert memory.forget(level="agent").purge == "done"
        for path in tmp_path.iterdir():
            data = path.read_bytes().lower()
            assert b"quetzal" not in data, path
    assert b"quetzal" not in (tmp_path / "threefold.db").read_bytes().lower()


def test_forgetting_one_user_keeps_the_others(service: LocalService) -> None:
    users = ["alice", "bob", "al%", "ALICE"]
    clients = {user: service.client(user=user, agent="support") for user in users}
    for user, client in clients.items():
        for number in range(5):
            client.save(f"{user} fact {number}")
            client.write("s1", [said(f"{user} turn {number}")])
    assert clients["alice"].forget(level="user").counts["facts"] == 5
    assert clients["alice"].list().items == []
    for user in users[1:]:
        assert len(clients[user].list().items) == 10
    for client in clients.values():
        client.close()


def test_forgetting_one_agent_keeps_the_other_agents_of_the_user(service: LocalService, memory: MemoryClient) -> None:
    memory.save("of support")
    with service.client(user="ana", agent="other") as other:
        other.save("of other")
        memory.forget(level="agent")
        assert [item.text for item in other.list().items] == ["of other"]
        assert memory.list().items == []


def test_dry_run_has_the_same_counts_and_erases_nothing(memory: MemoryClient) -> None:
    memory.write("s1", [said("one"), said("two")])
    memory.save("three")
    settle(memory, "s1")
    dry = memory.forget(level="agent", dry_run=True)
    assert dry.dry_run
    assert len(memory.list().items) == 3
    assert memory.forget(level="agent").counts == dry.counts


def test_late_and_retried_writes_bring_nothing_back(memory: MemoryClient) -> None:
    memory.write("s1", [said(SECRET, id="t1")])
    memory.forget(session_id="s1")
    again = memory.write("s1", [said(SECRET, id="t1"), said("new talk", id="t2")])
    assert (again.appended, again.erased) == (1, 1)
    assert [turn.content for turn in memory.turns("s1").turns] == ["new talk"]


def test_forgotten_turn_keeps_its_number_without_content(memory: MemoryClient, database_url: str) -> None:
    memory.write("s1", [said("before", id="a"), said(f"my {SECRET}", id="b", name="Quetzalina"), said("after", id="c")])
    settle(memory, "s1")
    receipt = memory.forget(memory_ids=["b"])
    assert receipt.counts["turns"] == 1
    turns = memory.turns("s1").turns
    assert [(turn.seq, turn.content, turn.erased) for turn in turns] == [
        (1, "before", False),
        (2, "", True),
        (3, "after", False),
    ]
    assert [turn.content for turn in memory.recall("x", session_id="s1").window] == ["before", "after"]
    assert rows_with(database_url, ["quetzal"]) == []
    assert memory.write("s1", [said(f"my {SECRET}", id="b", name="Quetzalina")]).erased == 1


def test_forget_by_tool_since_a_time(memory: MemoryClient) -> None:
    """Users reported that a bad memory could not be rolled back. One call erases what a tool returned since a time."""
    cut = datetime.now(UTC) - timedelta(days=1)
    old, new = cut - timedelta(days=1), cut + timedelta(hours=1)
    for number, at in enumerate((old, new)):
        memory.write(
            "s1",
            [
                said(f"question {number}", created_at=at),
                {"role": "tool", "name": "web", "content": f"web {number}", "created_at": at},
                {"role": "tool", "name": "files", "content": f"files {number}", "created_at": at},
            ],
        )
    receipt = memory.forget(source=ForgetSource(kind="tool", name="web"), since=cut)
    assert receipt.counts["turns"] == 1
    left = [turn.content for turn in memory.turns("s1").turns if not turn.erased]
    assert left == ["question 0", "web 0", "files 0", "question 1", "files 1"]


def test_forget_by_another_agent_requires_level_user(database_url: str) -> None:
    with LocalService(database_url=database_url, embedder="hash") as service, service.client() as memory:
        with pytest.raises(Forbidden, match="level 'user'"):
            memory.forget(source=ForgetSource(kind="agent", name="other"))
        with pytest.raises(Forbidden):
            memory.forget(level="user")
        with pytest.raises(Forbidden):
            memory.forget(level="store")


def test_ten_thousand_facts_are_forgotten_in_one_call(memory: MemoryClient, database_url: str) -> None:
    memory.save("bulkword zero")
    ids = multiply_fact(database_url, 9_999)
    assert len(memory.recall("bulkword").memories) == 1
    receipt = memory.forget(memory_ids=ids)
    assert (receipt.counts["facts"], receipt.complete) == (9_999, True)
    assert memory.forget(level="agent").counts["facts"] == 1
    assert rows_with(database_url, ["bulkword"]) == []


def multiply_fact(database_url: str, copies: int) -> list[str]:
    """Copy the only fact with its index and return the ids of the copies."""

    def copy(connection: Connection) -> list[str]:
        [fact] = connection.execute(select(facts)).mappings().all()
        ids = [uuid4() for _ in range(copies)]
        connection.execute(insert(facts), [{**fact, "fact": key, "root": key} for key in ids])
        for table in (passages, postings):
            rows = connection.execute(select(table)).mappings().all()
            connection.execute(insert(table), [{**row, "source": key} for row in rows for key in ids])
        return [key.hex for key in ids]

    with closing(Database(database_url)) as database:
        return database.write_sync("system", copy)


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"session_id": "s", "level": "agent"},
        {"memory_ids": ["a"], "level": "agent"},
        {"session_id": "s", "sources": True},
        {"session_id": "s", "since": datetime(2026, 1, 1, tzinfo=UTC)},
        {"memory_ids": []},
        {"level": "everything"},
        {"session_id": "*"},
    ],
)
def test_forget_requires_exactly_one_selector(memory: MemoryClient, selector: dict[str, Any]) -> None:
    memory.write("s", [said("stays")])
    with pytest.raises(InvalidRequest):
        memory.forget(**selector)
    assert memory.turns("s").turns


def test_forgetting_something_unknown_returns_zero_counts(memory: MemoryClient) -> None:
    receipt = memory.forget(session_id="never")
    assert receipt.complete
    assert set(receipt.counts.values()) == {0}
    with pytest.raises(NotFound):
        memory.delete_fact("never")


def test_turn_id_in_two_sessions_requires_in_session(memory: MemoryClient) -> None:
    for session in ("s1", "s2"):
        memory.write(session, [said(f"first of {session}", id="1")])
    with pytest.raises(Conflict, match="in_session"):
        memory.delete_fact("1")
    with pytest.raises(Conflict, match="in_session"):
        memory.forget(memory_ids=["1"])
    assert memory.delete_fact("1", in_session="s2").counts["turns"] == 1
    assert memory.turns("s1").turns[0].content == "first of s1"
    assert memory.turns("s2").turns[0].erased
    assert memory.delete_fact("1").counts["turns"] == 1


def test_late_write_does_not_restore_the_session(memory: MemoryClient, database_url: str) -> None:
    memory.write("s-quetzal", [said(SECRET, id="t1")])
    memory.forget(level="user")
    assert memory.write("s-quetzal", [said(SECRET, id="t1")]).erased == 1
    assert memory.sessions().sessions == []
    assert rows_with(database_url, ["quetzal", "ana"]) == []


def test_window_after_a_large_forget_has_the_remaining_turns(memory: MemoryClient) -> None:
    memory.write("s1", [{"role": "user", "content": f"Turn {number}.", "id": f"t{number}"} for number in range(1, 251)])
    memory.forget(memory_ids=[f"t{number}" for number in range(21, 251)])
    window = memory.recall("turn", session_id="s1", include=["short_term"]).window
    assert [turn.content for turn in window] == [f"Turn {number}." for number in range(1, 21)]
