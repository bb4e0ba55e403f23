"""Reports on slow models and updates: the service keeps answering, and updated or expired facts are gone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from fixtures.talk import said
from threefold import MemoryClient
from threefold_server.local import LocalService
from threefold_server.models.extractive import ExtractiveSummarizer
from threefold_server.models.hashing import HashEmbedder


def test_updated_fact_is_found_only_by_its_new_text(memory: MemoryClient) -> None:
    """Reported: an updated item was still found by its old text."""
    fact = memory.save("My favourite animal is the zebra.")
    memory.update_fact(fact.id, text="My favourite animal is the dog.")
    [current] = memory.recall("animal dog").memories
    assert current.text == "My favourite animal is the dog."
    assert "zebra" not in memory.recall("zebra").block
    assert current.score_parts.coverage > 0
    assert memory.recall("zebra", min_score=0.3).memories == []


def test_hanging_summarizer_blocks_no_write_and_no_recall(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported: the service stalled when a model was slow. Thirty folds wait here without holding a thread or a
    connection."""
    marks: dict[str, Any] = {"token_budget": 200, "compaction_trigger": 50, "compaction_target": 20}
    started: list[object] = []

    async def hang(*_: object) -> str:
        started.append(1)
        await anyio.sleep_forever()
        return ""

    monkeypatch.setattr(ExtractiveSummarizer, "fold", hang)
    monkeypatch.setattr("threefold_server.consolidation.worker.GRACE_SECONDS", 0)
    with (
        LocalService(database_url=database_url, embedder="hash", **marks) as service,
        service.client() as memory,
    ):
        for number in range(30):
            turns = [said(f"the heron of session {number} lands {turn} times") for turn in range(8)]
            memory.write(f"s{number}", turns)
        for number in range(30):
            memory.write(f"s{number}", [said("and again")])
            recalled = memory.recall("heron", session_id=f"s{number}")
            assert recalled.window[-1].content == "and again"
            assert recalled.degraded == []
        while memory.status("s29").indexed_upto < 9:
            pass  # turns are indexed although no fold finishes
        assert len(started) == 2


def test_hanging_embedder_delays_no_write_and_no_window(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported: the service stalled when a model was slow, and new turns stayed invisible without any signal.

    Turns without a vector are found by their words and counted as pending.
    """

    async def hang(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(HashEmbedder, "embed", hang)
    monkeypatch.setattr("threefold_server.consolidation.worker.GRACE_SECONDS", 0)
    with (
        LocalService(database_url=database_url, embedder="hash", tier_deadline=2) as service,
        service.client(timeout=30.0) as memory,
    ):
        for number in range(10):
            memory.write(f"s{number}", [said(f"the heron number{number} lands")])
        recalled = memory.recall("number7", session_id="s3")
        assert recalled.degraded == ["embedder"]
        assert [fact.text for fact in recalled.memories] == ["the heron number7 lands"]
        assert [turn.content for turn in recalled.window] == ["the heron number3 lands"]
        assert recalled.pending_turns == 10


def test_saved_fact_is_recalled_at_once(memory: MemoryClient) -> None:
    """Reported: a fact was recalled only after its session had grown past the window."""
    memory.save("The launch is on Tuesday.", session_id="s1")
    [fact] = memory.recall("when is the launch?", session_id="s2").memories
    assert (fact.text, fact.kind) == ("The launch is on Tuesday.", "fact")


def test_pinned_fact_does_not_expire(memory: MemoryClient) -> None:
    """It expires once it is no longer pinned."""
    fact = memory.save("The launch is on Tuesday.", pinned=True, expires_in_days=1e-9)
    other = memory.save("The launch is on Friday.", expires_in_days=1e-9)
    assert [item.id for item in memory.list().items] == [fact.id]
    assert [found.id for found in memory.recall("launch").memories] == [fact.id]
    assert memory.get_fact(fact.id).pinned
    memory.update_fact(fact.id, pinned=False)
    assert memory.recall("launch").memories == memory.list().items == []
    assert other.id != fact.id
