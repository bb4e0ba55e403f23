"""Rate limits and quotas: a clear refusal, nothing stored, and space after a forget."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fixtures.keys import make_key
from threefold import MemoryClient, MemorySession, QuotaExceeded
from threefold_server.local import LocalService
from threefold_server.rules.access import KeyPolicy


def said(*words: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": word} for word in words]


@contextmanager
def limited(database_url: str, **settings: Any) -> Generator[MemoryClient]:
    with (
        LocalService(database_url=database_url, embedder="hash", consolidate=False, **settings) as service,
        service.client("ana", "support", timeout=60) as memory,
    ):
        yield memory


def test_rate_limited_caller_is_told_when_to_retry(sqlite_url: str) -> None:
    settings: dict[str, Any] = {"embedder": "hash", "consolidate": False, "user_requests_per_minute": 1}
    with (
        LocalService(database_url=sqlite_url, **settings) as service,
        httpx.Client(base_url="http://threefold.local", transport=service.transport()) as client,
    ):
        assert client.get("/v1/whoami").status_code == 200
        refused = client.get("/v1/whoami")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert client.get("/v1/whoami", headers={"X-Threefold-User": "bob"}).status_code == 200
        assert client.get("/healthz").status_code == 200


def test_clock_that_is_set_back_refuses_no_caller(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    true_time = time.time_ns
    with limited(sqlite_url, user_requests_per_minute=10_000) as memory:
        assert memory.whoami().user == "ana"
        for hours in (1, 30):
            monkeypatch.setattr(time, "time_ns", lambda back=hours: true_time() - back * 3_600_000_000_000)
            assert memory.whoami().user == "ana"


def test_policy_of_a_key_applies(database_url: str) -> None:
    policy = KeyPolicy(failure_mode="strict", token_budget=500, top_k=1)
    token = make_key(database_url, policy=policy)
    with (
        LocalService(database_url=database_url, embedder="hash", mode="keys") as service,
        service.client(api_key=token) as memory,
    ):
        store = memory.whoami().store
        assert (store.failure_mode, store.token_budget, store.top_k) == ("strict", 500, 1)
        memory.write("s1", said("kumquats are sour", "kumquats are small"))
        recalled = memory.recall("kumquats")
        assert (len(recalled.memories), recalled.tokens.budget) == (1, 500)
        wide = memory.recall("kumquats", top_k=5, token_budget=900)
        assert (len(wide.memories), wide.tokens.budget) == (2, 900)


def test_turns_of_a_user_are_limited_by_the_quota(database_url: str) -> None:
    with limited(database_url, max_turns_per_user=3) as memory:
        memory.write("s1", said("one", "two"))
        with pytest.raises(QuotaExceeded, match="has 2 turns and the store allows 3") as refused:
            memory.write("s2", said("three", "four"))
        assert refused.value.details == {"of": "turns", "held": 2, "quota": 3}
        assert [session.session_id for session in memory.sessions().sessions] == ["s1"]
        memory.write("s2", said("three"))
        memory.forget(session_id="s1")
        memory.write("s2", said("four", "five"))


def test_repeated_turns_need_no_quota(database_url: str) -> None:
    turn = {"id": "t1", "role": "user", "content": "one"}
    with limited(database_url, max_turns_per_user=1) as memory:
        assert memory.write("s1", [turn]).appended == 1
        assert memory.write("s1", [turn]).duplicates == 1


def test_forgetting_single_turns_frees_quota(database_url: str) -> None:
    with limited(database_url, max_turns_per_user=2) as memory:
        memory.write("s1", said("the word is kumquat", "two"))
        turn = next(memory for memory in memory.list().items if "kumquat" in memory.text)
        memory.delete_fact(turn.id, sources=True)
        memory.write("s1", said("three"))


def test_facts_of_a_user_are_limited_by_the_quota(database_url: str) -> None:
    with limited(database_url, max_facts_per_user=2) as memory:
        first = memory.save("Ana likes tea.")
        second = memory.update_fact(first.id, text="Ana likes coffee.")
        for more in (lambda: memory.save("Ana is tall."), lambda: memory.update_fact(second.id, text="Ana drinks.")):
            with pytest.raises(QuotaExceeded, match="2 facts and the store allows 2"):
                more()
        assert memory.update_fact(second.id, pinned=True).pinned
        memory.delete_fact(second.id)
        memory.save("Ana is tall.")


def test_quotas_of_users_are_separate(sqlite_url: str) -> None:
    with (
        LocalService(database_url=sqlite_url, embedder="hash", consolidate=False, max_turns_per_user=1) as service,
        service.client("ana") as ana,
        service.client("bob") as bob,
    ):
        ana.write("s1", said("one"))
        bob.write("s1", said("one"))


def test_exceeded_quota_is_a_refusal_and_not_an_outage(sqlite_url: str) -> None:
    """In soft mode the agent continues, and the refused turns are not sent again."""
    with limited(sqlite_url, max_turns_per_user=1) as memory:
        session = MemorySession(memory, "s1")
        assert session.record(said("one"))
        assert not session.record(said("two"))
        assert (session.stats.refusals, session.stats.outages, session.stats.spooled) == (1, 0, 0)
