"""A read of long turns costs no more than the part that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from threefold import MemoryClient
from threefold_server.local import LocalService
from threefold_server.storage.engine import excerpts
from threefold_server.storage.memories import listing, turn_memories
from threefold_server.storage.sessions import turns
from threefold_server.text.indexed import turn_passages
from threefold_server.text.tokens import count_tokens

LONG = 200_000
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
LINES = "\n".join([BODY * 2] * 40)
PASSWORD = "hunter2-hunter2"
SECRETS = {
    "a1b2c3d4": f"sk-{'a1b2c3d4' * 6}",
    BODY: f"-----BEGIN PRIVATE KEY-----\n{LINES}\n-----END PRIVATE KEY-----",
    PASSWORD: f"password is {PASSWORD}",
}


def filled(size: int, word: str = "talk") -> str:
    return (f"{word} " * (size // (len(word) + 1) + 1))[:size]


def say(memory: MemoryClient, *texts: str, session: str = "s1") -> None:
    for text in texts:
        memory.write(session, [{"role": "user", "content": text}])


@pytest.fixture
def quiet(database_url: str) -> Iterator[MemoryClient]:
    """A service whose turns stay out of the index."""
    options: dict[str, Any] = {"embedder": "hash", "allow_user_level": True, "consolidate": False}
    with LocalService(database_url=database_url, **options) as running, running.client("ana", "support") as client:
        yield client


def test_memory_shows_head_and_tail_of_a_long_turn(memory: MemoryClient) -> None:
    text = f"zebra first {filled(LONG)} last zebra"
    say(memory, text)
    memory.end("s1", wait=30)
    [found] = [item for item in memory.recall("zebra", session_id="s2").memories if item.kind == "turn"]
    [listed] = memory.list().items
    for shown in (found, listed):
        assert shown.cut
        assert shown.text.startswith("zebra first")
        assert shown.text.endswith("last zebra")
        assert f"[… cut, {len(text):,} characters in full …]" in shown.text
        assert len(shown.text) <= turn_memories.MEMORY_CHARS + 100
    assert memory.turns("s1").turns[0].content == text


@pytest.mark.parametrize("over", [0, 1])
def test_memory_is_whole_up_to_the_limit(memory: MemoryClient, over: int) -> None:
    text = filled(turn_memories.MEMORY_CHARS + over)
    say(memory, text)
    [listed] = memory.list().items
    assert listed.cut == bool(over)
    assert over or listed.text == text


@pytest.mark.parametrize("core", SECRETS)
@pytest.mark.parametrize("offset", [-2_700, -1_000, -20, -3, 0])
def test_no_cut_leaves_half_a_secret(memory: MemoryClient, core: str, offset: int) -> None:
    """The secret lies across each place where the text is cut."""
    secret, half = SECRETS[core], turn_memories.MEMORY_CHARS // 2
    text = list(filled(LONG))
    for cut in (half, half + excerpts.MARGIN, LONG - half, LONG - half - excerpts.MARGIN):
        start = cut + offset
        text[start : start + len(secret) + 2] = f" {secret} "
    say(memory, "".join(text))
    [listed] = memory.list().items
    assert listed.cut
    assert core not in listed.text


def test_window_cuts_a_long_turn_and_names_its_full_length(memory: MemoryClient) -> None:
    text = f"first words {filled(LONG)} last words"
    say(memory, text)
    [turn] = memory.recall("talk", session_id="s1").window
    assert turn.cut
    assert turn.content.startswith("first words")
    assert turn.content.endswith("last words")
    assert f"[… cut, {count_tokens(text):,} tokens in full …]" in turn.content


def test_window_reads_a_bounded_part_of_each_turn(quiet: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    to_turn = turns.to_turn

    def noted(row: Any) -> Any:
        read.append(len(row.content) + len(getattr(row, "content_tail", "") or ""))
        return to_turn(row)

    monkeypatch.setattr(turns, "to_turn", noted)
    say(quiet, *[filled(1_000_000)] * 4)
    quiet.recall("talk", session_id="s1", token_budget=1_000)
    assert read
    assert max(read) <= 20_000 + 2 * excerpts.MARGIN


def test_recall_reads_a_bounded_part_of_what_is_not_indexed(
    quiet: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def noted(turn: Any, redact: Any) -> Any:
        read.append(len(turn.content))
        return turn_passages(turn, redact)

    monkeypatch.setattr("threefold_server.storage.memories.recall_search.turn_passages", noted)
    say(quiet, *[filled(30_000) for _ in range(12)], filled(300_000), "The zebra is called Ina.")
    answer = quiet.recall("zebra", session_id="s2")
    assert [item.text for item in answer.memories] == ["The zebra is called Ina."]
    assert 0 < sum(read) <= turn_memories.UNINDEXED_CHARS
    assert answer.pending_turns == 14
    assert answer.degraded == []


def test_list_ends_a_page_after_so_much_text(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_CHARS", 10_000)
    say(memory, *[f"{number} {filled(3_000)}" for number in range(10)])
    pages: list[list[str]] = []
    cursor = None
    while True:
        page = memory.list(limit=50, cursor=cursor)
        pages.append([item.text.split()[0] for item in page.items])
        if (cursor := page.next_cursor) is None:
            break
    assert [text for page in pages for text in page] == [str(number) for number in reversed(range(10))]
    assert max(map(len, pages)) <= 5


@pytest.mark.parametrize("limit", [1, 3, 10, 1_000])
def test_turns_end_a_page_after_so_much_text(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(turns, "PAGE_CHARS", 5_000)
    say(memory, *[f"{number} {filled(3_000 if number % 3 else 20)}" for number in range(10)], filled(9_000))
    seqs: list[int] = []
    following = 1
    while True:
        page = memory.turns("s1", from_seq=following, limit=limit)
        assert page.turns
        assert len(page.turns) <= limit
        seqs += [turn.seq for turn in page.turns]
        if page.next_cursor is None:
            break
        following = int(page.next_cursor)
    assert seqs == list(range(1, 12))


def test_page_of_no_turns_has_no_next(memory: MemoryClient) -> None:
    say(memory, "a", "b")
    page = memory.turns("s1", limit=0)
    assert (page.turns, page.next_cursor) == ([], None)
