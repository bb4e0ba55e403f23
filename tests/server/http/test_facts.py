"""Saved facts: recalled at once, superseded with history, restored, expired and shared.

Users reported metadata that planted memories for others, lists that ended after 20 rows, and corrections that added
a second fact.
"""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from threefold import MemoryClient
from threefold.errors import Conflict, Forbidden, InvalidRequest, NotFound
from threefold_server.local import LocalService


def texts(memory: MemoryClient, query: str, **options: object) -> list[str]:
    return [fact.text for fact in memory.recall(query, **options).memories]  # pyright: ignore[reportArgumentType]


def test_saved_fact_is_recalled_by_words_at_once_in_any_session(memory: MemoryClient) -> None:
    saved = memory.save("The staging password lives in the blue vault.", session_id="s1")
    assert (saved.kind, saved.user, saved.agent, saved.session_id) == ("fact", "ana", "support", "s1")
    assert (saved.origin, saved.trust) == ("user", 1.0)
    found = memory.recall("where is the staging password?", session_id="s2")
    assert [fact.id for fact in found.memories] == [saved.id]
    assert "blue vault" in found.block


def test_new_text_supersedes_the_old_version(memory: MemoryClient) -> None:
    old = memory.save("Ana lives in Lisbon.", pinned=True, metadata={"k": 1})
    new = memory.update_fact(old.id, text="Ana lives in Oslo.")
    assert new.id != old.id
    assert (new.pinned, new.metadata) == (True, {"k": 1})
    assert texts(memory, "where does Ana live?") == ["Ana lives in Oslo."]
    assert [item.text for item in memory.list(kinds=["fact"]).items] == ["Ana lives in Oslo."]
    history = memory.fact_history(new.id).versions
    assert [version.text for version in history] == ["Ana lives in Lisbon.", "Ana lives in Oslo."]
    assert history[0].superseded_by == new.id
    assert history[0].valid_to == history[1].valid_from
    assert memory.get_fact(old.id).superseded_by == new.id
    with pytest.raises(Conflict, match="superseded"):
        memory.update_fact(old.id, text="Ana lives in Rome.")


def test_restored_version_is_current_again(memory: MemoryClient) -> None:
    old = memory.save("The gate code is 1111.")
    new = memory.update_fact(old.id, text="The gate code is 2222.")
    restored = memory.restore_fact(old.id)
    assert (restored.id, restored.superseded_by, restored.valid_to) == (old.id, None, None)
    assert texts(memory, "what is the gate code?") == ["The gate code is 1111."]
    assert memory.get_fact(new.id).superseded_by == old.id
    assert memory.restore_fact(old.id).id == old.id


def test_update_without_a_new_text_keeps_the_id(memory: MemoryClient) -> None:
    saved = memory.save("Tea, not coffee.")
    changed = memory.update_fact(saved.id, pinned=True, metadata={"from": "form"})
    assert (changed.id, changed.pinned, changed.metadata) == (saved.id, True, {"from": "form"})
    assert texts(memory, "coffee or tea?") == ["Tea, not coffee."]


def test_fact_with_visibility_session_requires_a_session(memory: MemoryClient) -> None:
    """Without a session no recall would return it."""
    with pytest.raises(InvalidRequest, match="needs a session_id"):
        memory.save("Tea, not coffee.", visibility="session")
    assert memory.list().items == []


def test_deleting_a_fact_deletes_its_history(memory: MemoryClient) -> None:
    old = memory.save("Plan A is a boat.")
    new = memory.update_fact(old.id, text="Plan A is a train.")
    assert memory.delete_fact(new.id).counts["facts"] == 2
    for fact_id in (old.id, new.id):
        with pytest.raises(NotFound):
            memory.get_fact(fact_id)
    assert texts(memory, "plan A") == []


def test_fact_of_another_user_is_answered_like_an_unknown_id(service: LocalService, memory: MemoryClient) -> None:
    own = memory.save("Only ana knows this.")
    with service.client(user="mallory", agent="support") as mallory:
        answers: list[str] = []
        for fact_id in (own.id, "0" * 32, "no-such-id"):
            for act in (mallory.get_fact, mallory.fact_history, mallory.restore_fact, mallory.delete_fact):
                with pytest.raises(NotFound) as refusal:
                    act(fact_id)
                answers.append(refusal.value.message)
            with pytest.raises(NotFound) as refusal:
                mallory.update_fact(fact_id, text="mine now")
            answers.append(refusal.value.message)
    assert len(set(answers)) == 1
    assert memory.get_fact(own.id).text == "Only ana knows this."


def test_visibility_limits_recall(service: LocalService, memory: MemoryClient) -> None:
    """Users reported that a read for the user returned facts that were private to a session or an agent."""
    memory.save("colour one", visibility="session", session_id="s1")
    memory.save("colour two", visibility="agent", session_id="s1")
    memory.save("colour three", visibility="user", session_id="s1")
    everything = {"colour one", "colour two", "colour three"}
    assert set(texts(memory, "colour", session_id="s1")) == everything
    assert set(texts(memory, "colour", session_id="s1", level="session")) == everything
    assert set(texts(memory, "colour", session_id="s2")) == everything - {"colour one"}
    assert texts(memory, "colour", session_id="s2", level="session") == []
    with service.client(user="ana", agent="other") as other:
        assert texts(other, "colour") == []
        assert texts(other, "colour", level="user") == ["colour three"]


def test_shared_facts_are_read_by_all_and_name_their_writer(service: LocalService, memory: MemoryClient) -> None:
    memory.save("The office closes at six.", shared=True, session_id="private-session")
    with service.client(user="bob", agent="sales") as bob:
        assert texts(bob, "when does the office close?") == []
        [shared] = bob.recall("when does the office close?", include=["shared"]).memories
        assert (shared.text, shared.shared, shared.user, shared.agent) == (
            "The office closes at six.",
            True,
            "ana",
            "support",
        )
        assert (shared.session_id, shared.sources) == (None, [])
        with pytest.raises(NotFound):
            bob.delete_fact(shared.id)
        assert [item.text for item in bob.list(include=["shared"]).items] == ["The office closes at six."]
        assert memory.forget(level="agent").counts["facts"] == 1
        assert bob.recall("when does the office close?", include=["shared"]).memories == []


def test_store_can_turn_off_shared_facts(database_url: str) -> None:
    with (
        LocalService(database_url=database_url, embedder="hash", reads_shared=False) as service,
        service.client() as memory,
        pytest.raises(Forbidden, match="shared"),
    ):
        memory.list(include=["shared"])


def test_expiry_is_set_by_the_fact_or_by_the_store(database_url: str) -> None:
    with LocalService(database_url=database_url, embedder="hash", fact_expiry_days=15) as service:
        with service.client() as memory:
            usual, short = memory.save("a"), memory.save("b", expires_in_days=0.5)
        assert usual.expires_at is not None
        assert short.expires_at is not None
        assert usual.expires_at - usual.created_at == timedelta(days=15)
        assert short.expires_at - short.created_at == timedelta(hours=12)


@pytest.mark.parametrize("key", ["user_id", "agent", "session_id", "trust", "created_at", "scope", "tenant"])
def test_metadata_cannot_set_reserved_fields(http: httpx.Client, key: str) -> None:
    answer = http.post("/v1/facts", json={"text": "x", "metadata": {key: "mallory"}})
    assert answer.status_code == 422
    assert key in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [{"text": " "}, {"text": "x" * 10_001}, {"expires_in_days": 0}, {"trust": 1}, {"metadata": {"k": "v" * 20_000}}],
)
def test_invalid_facts_are_refused(http: httpx.Client, change: dict[str, object]) -> None:
    assert http.post("/v1/facts", json={"text": "x", **change}).status_code == 422


def test_all_of_257_facts_are_listed_by_paging_and_forgotten(memory: MemoryClient) -> None:
    for number in range(257):
        memory.save(f"fact number {number}")
    listed = [item.text for item in memory.iter_memories(kinds=["fact"], limit=20)]
    assert sorted(listed) == sorted(f"fact number {number}" for number in range(257))
    assert memory.forget(level="agent").counts["facts"] == 257
    assert memory.list().items == []


def test_pages_miss_no_turns_of_the_same_time(memory: MemoryClient) -> None:
    """Users reported that a list ended at its first page. Turns of one write have the same time, and a page may end
    among them."""
    for session in ("s1", "s2"):
        memory.write(session, [{"role": "user", "content": f"kumquat {number}"} for number in range(7)])
    assert len({item.id for item in memory.iter_memories(limit=2)}) == 14
