"""Field cases K11, operation: slow models, updates and outages, as far as they touch the service."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from threefold import MemoryClient
from threefold_server.local import LocalService
from threefold_server.models.extractive import ExtractiveSummarizer
from threefold_server.models.hashing import HashEmbedder


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def test_an_updated_fact_is_found_by_its_new_text_only(memory: MemoryClient) -> None:
    """Field case 1114."""
    fact = memory.save("My favourite animal is the zebra.")
    memory.update_fact(fact.id, text="My favourite animal is the dog.")
    [current] = memory.recall("animal dog").facts
    assert current.text == "My favourite animal is the dog."
    assert "zebra" not in memory.recall("zebra").block
    assert current.score_parts.coverage > 0
    assert memory.recall("zebra", min_score=0.3).facts == []


def test_a_summarizer_that_hangs_stops_nobody(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 1103: thirty sessions to fold, and neither a thread nor a connection is held by the wait."""
    marks: dict[str, Any] = {"token_budget": 200, "compaction_trigger": 50, "compaction_target": 20}
    started: list[object] = []

    async def hang(*_: object) -> str:
        started.append(1)
        await anyio.sleep_forever()
        return ""

    monkeypatch.setattr(ExtractiveSummarizer, "fold", hang)
    monkeypatch.setattr("threefold_server.consolidation.worker.GRACE_SECONDS", 0)
    with (
        LocalService(database_url=database_url, embedder="hash", tier_deadline=30, **marks) as service,
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
            pass  # words and vectors come all the same
        assert len(started) == 2


def test_an_embedder_that_hangs_delays_no_write_and_no_window(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case 1103, and 1111: what has no vector yet is found by its words, and counted as pending."""

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
        assert [fact.text for fact in recalled.facts] == ["the heron number7 lands"]
        assert [turn.content for turn in recalled.window] == ["the heron number3 lands"]
        assert recalled.pending_turns == 10


def test_a_fact_is_there_at_once_in_a_session_of_any_size(memory: MemoryClient) -> None:
    """T7: what was saved explicitly does not wait for a session to overflow."""
    memory.save("The launch is on Tuesday.", session_id="s1")
    [fact] = memory.recall("when is the launch?", session_id="s2").facts
    assert (fact.text, fact.kind) == ("The launch is on Tuesday.", "fact")


def test_a_pinned_fact_outlives_its_expiry(memory: MemoryClient) -> None:
    """It is shown as long as it is pinned, and gone once it is not."""
    fact = memory.save("The launch is on Tuesday.", pinned=True, expires_in_days=1e-9)
    other = memory.save("The launch is on Friday.", expires_in_days=1e-9)
    assert [item.id for item in memory.list().items] == [fact.id]
    assert [found.id for found in memory.recall("launch").facts] == [fact.id]
    assert memory.get_fact(fact.id).pinned
    memory.update_fact(fact.id, pinned=False)
    assert memory.recall("launch").facts == memory.list().items == []
    assert other.id != fact.id
