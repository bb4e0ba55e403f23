"""Reads that a caller tries to make too large to hold in memory: pages end by size, other answers are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import insert

from threefold import MemoryClient
from threefold.contract import Turn
from threefold.contract.items import OpResult
from threefold.errors import TooLarge
from threefold_server.local import LocalService
from threefold_server.operations import items, recall
from threefold_server.rules.access import owner_key, session_key
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import digests
from threefold_server.storage.memories import listing
from threefold_server.storage.sessions import digests as digest_store
from threefold_server.storage.sessions import sessions, turns

MOST = 10_000
TEXT = "heron " * 500


@pytest.fixture
def client(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryClient]:
    """A service whose answers may have 10,000 characters: four of the texts below."""
    for module, name in (
        (digest_store, "PAGE_CHARS"),
        (sessions, "PAGE_CHARS"),
        (listing, "PAGE_CHARS"),
        (items, "MAX_RESULT_CHARS"),
    ):
        monkeypatch.setattr(module, name, MOST)
    options: dict[str, Any] = {"embedder": "hash", "allow_admin": True, "consolidate": False}
    with (
        LocalService(database_url=database_url, **options) as service,
        service.client("ana", "support", timeout=60) as opened,
    ):
        yield opened


def add_digests(database_url: str, count: int) -> None:
    owner = owner_key("user", "ana")
    row = {"owner": owner, "session": session_key(owner, "support", "s1"), "from_seq": 1, "upto_seq": 1}
    row |= {"covered_tokens": 1, "model": "m", "tokens": 1, "trust": 1.0, "created_at": 0, "text": TEXT}
    with closing(Database(database_url)) as database:
        rows = [{**row, "version": number + 1} for number in range(count)]
        database.write_sync("system", lambda c: c.execute(insert(digests), rows))


def test_digests_come_in_pages_bounded_by_size(client: MemoryClient, database_url: str) -> None:
    client.write("s1", [{"role": "user", "content": "hello"}])
    add_digests(database_url, 11)
    found: list[int] = []
    cursor = None
    while True:
        page = client.digests("s1", cursor=cursor)
        assert len(page.digests) <= 5
        found += [digest.version for digest in page.digests]
        if (cursor := page.next_cursor) is None:
            break
    assert found == list(range(11, 0, -1))
    assert [digest.version for digest in client.digests("s1", limit=2).digests] == [11, 10]
    assert client.digests("s1", limit=0).digests == []


def test_sessions_with_state_come_in_pages_bounded_by_size(client: MemoryClient) -> None:
    for number in range(11):
        client.write(f"s{number}", [], state=f'"{TEXT}"')
    every: list[str] = []
    cursor = None
    while True:
        page = client.sessions(cursor=cursor, state=True)
        assert len(page.sessions) <= 5
        every += [session.session_id for session in page.sessions]
        if (cursor := page.next_cursor) is None:
            break
    assert sorted(every) == sorted(f"s{number}" for number in range(11))
    assert len(client.sessions().sessions) == 11


def test_memories_of_an_administrator_come_in_pages_bounded_by_size(client: MemoryClient) -> None:
    for number in range(11):
        client.save(f"{number} {TEXT}")
        client.write("s1", [{"role": "user", "content": f"{number} {TEXT}"}])
    found: list[str] = []
    cursor = None
    while True:
        page = client.admin.list(user="ana", cursor=cursor, limit=1_000)
        assert len(page.items) <= 5
        found += [item.id for item in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert len(found) == len(set(found)) == 22


ASKED: list[list[dict[str, Any]]] = [
    [{"op": "search", "prefix": [], "limit": 100}],
    [{"op": "search", "prefix": [], "limit": 100, "filter": {"kind": "heron"}}],
    [{"op": "search", "prefix": [], "limit": 100, "query": "heron"}],
    [{"op": "search", "prefix": [], "limit": 100, "query": "heron", "filter": {"kind": {"$ne": "crane"}}}],
    [{"op": "search", "prefix": [], "limit": 2}] * 3,
    [{"op": "get", "namespace": ["n"], "key": "1"}] * 8,
]


@pytest.mark.parametrize("ops", ASKED, ids=str)
def test_items_of_one_answer_are_refused_above_a_size(client: MemoryClient, ops: list[dict[str, Any]]) -> None:
    for number in range(8):
        value = {"kind": "heron", "text": TEXT}
        put = {"op": "put", "namespace": ["n"], "key": str(number), "value": value, "index": ["kind"]}
        client.items_batch([put])
    with pytest.raises(TooLarge, match="ask for fewer items"):
        client.items_batch(ops)
    fewer = [{**op, **({"limit": 1} if op["op"] == "search" else {})} for op in ops[:3]]
    results: list[OpResult] = client.items_batch(fewer).results
    assert all(result.item or result.items for result in results)


def test_second_page_of_a_window_reads_no_more_than_the_budget(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of long turns are before the short ones, and the oldest of those are one long group."""
    long = {"role": "user", "content": TEXT}
    client.write("s1", [long] * 300)
    client.write("s1", [{**long, "group": "large"}] * 50)
    client.write("s1", [{"role": "user", "content": f"short {number}"} for number in range(recall.FIRST_PAGE + 50)])
    read: list[Turn] = []

    def counted(*arguments: Any) -> list[Turn]:
        found = turns_newest(*arguments)
        read.extend(found)
        return found

    turns_newest = turns.newest
    monkeypatch.setattr(turns, "newest", counted)
    window = client.recall("heron", session_id="s1", include=["short_term"], token_budget=4_000).window
    assert window[-1].content == f"short {recall.FIRST_PAGE + 49}"
    assert len(window) > recall.FIRST_PAGE + 40
    assert sum(len(turn.content) for turn in read) < 5 * len(TEXT)


def test_second_page_of_a_window_shows_whole_groups(client: MemoryClient) -> None:
    """A newest group longer than the first page, and older groups as far as the budget goes."""
    client.write("s1", [{"role": "user", "content": f"old {number} " + "word " * 50} for number in range(9)])
    client.write("s1", [{"role": "user", "content": f"in {number}", "group": "g"} for number in range(250)])
    window = client.recall("heron", session_id="s1", include=["short_term"], token_budget=20_000).window
    assert [turn.content.split(" ")[0] for turn in window] == ["old"] * 9 + ["in"] * 250
