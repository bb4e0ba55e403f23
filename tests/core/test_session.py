"""A session during and after an outage: no call stops, no turn is lost, doubled or sent for another user."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.fake_service import URL, Clock, FakeService, Fault, Twin, answer, down, refusing
from threefold import (
    AsyncMemoryClient,
    AsyncMemorySession,
    CircuitBreaker,
    DirectorySpool,
    InvalidRequest,
    MemorySession,
    MemorySpool,
    Policy,
    Stats,
    TurnIn,
    Unreachable,
    calls,
)
from threefold.contract import MAX_QUERY_CHARS, MAX_TURNS_PER_WRITE, RecallResponse, StorePolicy, WhoAmI
from threefold.errors import Conflict, Forbidden, InternalError, ServiceError, Unauthenticated, Unavailable
from threefold.render import FENCE_OPEN, join_block
from threefold.session import CATCH_UP, MAX_WRITE_CHARS, chunks


def said(*contents: str, **fields: Any) -> list[calls.TurnLike]:
    return [{"role": "user", "content": content, **fields} for content in contents]


def soft(**options: Any) -> Policy:
    """Return a soft policy whose breaker never opens in these tests."""
    return Policy(failure_mode="soft", breaker=CircuitBreaker(threshold=1000), **options)


def strict(**options: Any) -> Policy:
    return Policy(failure_mode="strict", breaker=CircuitBreaker(threshold=1000), **options)


def window(response: RecallResponse) -> list[str]:
    return [turn.content for turn in response.window]


def test_session_without_faults(twin: Twin) -> None:
    session = twin.session(soft())
    assert session.record(said("one", "two"))
    response = session.recall("q")
    assert (window(response), response.block, response.degraded) == (["one", "two"], "the block", [])
    assert twin.service.paths() == ["/v1/write", "/v1/recall"]


def test_outage_loses_no_turn(twin: Twin) -> None:
    """The run completes and reports the degradation. Afterwards every turn is stored once."""
    session = twin.session(policy := soft())
    session.record(said("before"))
    twin.service.fault = down
    assert not session.record(said("one", "two"))
    response = session.recall("q")
    assert (window(response), response.degraded) == (["before", "one", "two"], ["service"])
    assert not session.record(said("three"))
    twin.service.fault = None
    assert session.record(said("after"))
    assert twin.service.contents() == ["before", "one", "two", "three", "after"]
    assert policy.stats == Stats(outages=3, spooled=3, replayed=3)


def test_lost_answer_stores_no_turn_twice(twin: Twin) -> None:
    def lost_after_commit(request: httpx.Request) -> httpx.Response:
        twin.service.write(request)
        raise httpx.ReadError("reset", request=request)

    session = twin.session(soft())
    twin.service.fault = lost_after_commit
    assert not session.record(said("one"))
    twin.service.fault = None
    assert session.record(said("two"))
    assert twin.service.contents() == ["one", "two"]


def test_turns_keep_the_time_they_were_said(twin: Twin) -> None:
    session, told = twin.session(soft()), datetime(2020, 1, 1, tzinfo=UTC)
    twin.service.fault = down
    before = datetime.now(UTC)
    session.record([*said("one"), TurnIn(role="user", content="two", created_at=told)])
    after = datetime.now(UTC)
    twin.service.fault = None
    session.flush()
    one, two = (
        datetime.fromisoformat(turn["created_at"]) for turn in next(iter(twin.service.sessions.values())).values()
    )
    assert before <= one <= after
    assert two == told


@pytest.mark.parametrize("policy", [soft(), strict()])
def test_recall_never_raises_in_an_outage(twin: Twin, policy: Policy) -> None:
    twin.service.fault = down
    response = twin.session(policy).recall("q")
    assert response == RecallResponse(degraded=["service"], tokens=response.tokens)
    assert response.tokens.budget == StorePolicy().token_budget


def test_degraded_recall_renders_a_block_of_the_tail(twin: Twin) -> None:
    session = twin.session(soft())
    session.record(said("tea, please", name="Ann"))
    twin.service.fault = down
    block = session.recall("q").block
    assert block.startswith(FENCE_OPEN)
    assert re.search(r"- \[\d{4}-\d\d-\d\d, user Ann\] tea, please", block)
    assert session.recall("q").block == block


def test_degraded_recall_has_no_window_if_none_was_requested(twin: Twin) -> None:
    session = twin.session(soft())
    session.record(said("one"))
    twin.service.fault = down
    assert session.recall("q", include=["long_term"]).block == ""


def test_degraded_recall_fits_its_budget_with_whole_groups(twin: Twin) -> None:
    session = twin.session(soft())
    session.record(said("old " * 100))
    session.record(said("call", "result", group="g"))
    session.record(said("new"))
    twin.service.fault = down
    sizes = {budget: window(session.recall("q", token_budget=budget)) for budget in range(0, 400, 5)}
    assert {tuple(each) for each in sizes.values()} == {
        (),
        ("new",),
        ("call", "result", "new"),
        ("old " * 100, "call", "result", "new"),
    }
    assert all(session.recall("q", token_budget=budget).tokens.used <= budget for budget in sizes)


def calls_of(count: int, content: str = "found") -> list[calls.TurnLike]:
    made = [{"role": "assistant", "kind": "tool_call", "content": f"call {number}"} for number in range(count)]
    return [*made, *({"role": "tool", "kind": "tool_result", "content": f"{content} {n}"} for n in range(count))]


@pytest.mark.parametrize("count", [1, 2, 20, 101])
def test_degraded_recall_parts_no_calls_from_their_results(twin: Twin, count: int) -> None:
    """By the rule of the service, also where they name no group and are more than a tail holds."""
    session = twin.session(soft())
    session.record([*said("old", "question"), *calls_of(count)])
    twin.service.fault = down
    for budget in range(0, 5_000, 200):
        kinds = [turn.kind for turn in session.recall("q", token_budget=budget).window]
        assert kinds.count("tool_call") in (0, count)
        assert kinds.count("tool_result") == kinds.count("tool_call")
    assert len(session.recall("q", token_budget=10_000).window) >= 2 * count + 1


def test_degraded_recall_keeps_the_question_before_a_long_result(twin: Twin) -> None:
    session = twin.session(soft())
    session.record([*said("old", "question"), *calls_of(1, "degrees " * 5_000)])
    twin.service.fault = down
    recalled = session.recall("q", token_budget=400)
    assert window(recalled)[0] == "question"
    assert [turn.cut for turn in recalled.window] == [False, False, True]
    assert recalled.tokens.used <= 400


def test_recall_before_the_outage_fills_the_tail(twin: Twin) -> None:
    twin.session(soft()).record(said("from another process"))
    session = twin.session(soft())
    session.recall("q")
    twin.service.fault = down
    assert window(session.recall("q")) == ["from another process"]


@pytest.mark.parametrize("error", [Forbidden("no"), Unauthenticated("no")])
def test_refused_recall_returns_nothing(twin: Twin, error: ServiceError) -> None:
    session = twin.session(policy := soft())
    session.record(said("one"))
    twin.service.fault = refusing(error)
    assert session.recall("q") == RecallResponse(degraded=["refused"])
    assert policy.stats == Stats(refusals=1)


def test_long_prompt_with_invalid_characters_is_a_valid_query(twin: Twin) -> None:
    session = twin.session(soft())
    assert session.recall("start " + "x\x00\ud800" * MAX_QUERY_CHARS + " end?").degraded == []
    assert b'"query":"start' in twin.service.requests[0].content
    assert b' end?"' in twin.service.requests[0].content


@pytest.mark.parametrize("fault", [down, refusing(Unavailable("busy")), answer(502, "<html>")])
def test_strict_record_raises_and_does_not_keep_the_turn(twin: Twin, fault: Any) -> None:
    session = twin.session(policy := strict())
    twin.service.fault = fault
    with pytest.raises((Unreachable, Unavailable)):
        session.record(said("one"))
    twin.service.fault = None
    assert session.record(said("two"))
    assert twin.service.contents() == ["two"]
    assert policy.stats == Stats(outages=1)


@pytest.mark.parametrize("error", [Forbidden("no"), Conflict("other content"), InvalidRequest("no")])
def test_refused_write_is_dropped_and_logged_without_content(
    twin: Twin, error: ServiceError, caplog: pytest.LogCaptureFixture
) -> None:
    policies = soft(), strict()
    twin.service.fault = refusing(error)
    assert not twin.session(policies[0]).record(said("SECRET"))
    with pytest.raises(type(error)):
        twin.session(policies[1]).record(said("SECRET"))
    for policy in policies:
        assert policy.stats == Stats(refusals=1, dropped=1)
    assert {record.levelno for record in caplog.records if record.name == "threefold"} == {logging.ERROR}
    assert "SECRET" not in caplog.text


def test_refused_older_write_does_not_block_the_next(twin: Twin) -> None:
    session = twin.session(policy := soft())
    twin.service.fault = down
    session.record(said("refused later"))
    twin.service.fault, twin.service.faults = None, [refusing(Conflict("other content"))]
    assert session.record(said("two"))
    assert twin.service.contents() == ["two"]
    assert (policy.stats.dropped, policy.stats.replayed) == (1, 0)


def test_breaker_limits_the_calls_of_an_outage(twin: Twin) -> None:
    clock = Clock()
    policy = Policy(failure_mode="soft", breaker=CircuitBreaker(cool_down=5, clock=clock))
    session = twin.session(policy)
    twin.service.fault = down
    for number in range(5):
        session.record(said(str(number)))
    tried = len(twin.service.requests)
    assert tried == 2 * 3  # two calls of three attempts
    clock.now += 5
    twin.service.fault = None
    assert session.record(said("5"))
    assert twin.service.contents() == list("012345")


def test_failure_mode_defaults_to_the_mode_of_the_store(twin: Twin) -> None:
    twin.service.store = StorePolicy(failure_mode="strict", token_budget=77)
    session = twin.session(policy := Policy())
    session.record(said("one"))
    session.record(said("two"))
    assert twin.service.paths() == ["/v1/write", "/v1/whoami", "/v1/write"]
    twin.service.fault = down
    assert session.recall("q").tokens.budget == 77
    with pytest.raises(Unreachable):
        session.record(said("three"))
    assert policy.failure_mode("unknown") == "soft"


def test_unknown_store_counts_as_soft_and_is_asked_again(twin: Twin) -> None:
    session = twin.session(Policy())
    twin.service.fault = down
    assert not session.record(said("one"))
    twin.service.fault, twin.service.faults = None, [lambda r: httpx.Response(200, json=write_reply), down, down, down]
    assert session.record([])
    assert session.record(said("two"))
    assert twin.service.paths()[-1] == "/v1/whoami"


write_reply = {"appended": 1, "duplicates": 0, "erased": 0, "last_seq": 1, "revision": 1, "scheduled": False}


def test_store_that_refuses_whoami_is_not_asked_again(twin: Twin) -> None:
    session = twin.session(Policy())
    twin.service.faults = [lambda r: httpx.Response(200, json=write_reply), refusing(Forbidden("no"))]
    for text in ("one", "two"):
        session.record(said(text))
    assert twin.service.paths() == ["/v1/write", "/v1/whoami", "/v1/write"]


def test_spooled_turns_are_sent_only_under_their_own_identity(twin: Twin) -> None:
    policy = soft()
    names = [("ann", "bot", "s"), ("bob", "bot", "s"), ("ann", "other", "s"), ("ann", "bot", "t"), (None, None, "s")]
    twin.service.fault = down
    for user, agent, session_id in names:
        twin.session(policy, session_id, user=user, agent=agent).record(said(f"{user} {agent} {session_id}"))
    twin.service.fault = None
    assert twin.session(policy, user="eve").flush()
    for user, agent, session_id in names:
        assert twin.service.contents(session_id, user, agent) == [f"{user} {agent} {session_id}"]


def test_spooled_turns_are_sent_only_with_their_own_key(twin: Twin, tmp_path: Path) -> None:
    """The key is the identity if no user is named."""
    twin.service.fault = down
    twin.session(soft(spool=DirectorySpool(tmp_path)), api_key="mine").record(said("mine"))
    twin.service.fault = None
    twin.session(soft(spool=DirectorySpool(tmp_path)), api_key="other").record(said("other"))
    assert twin.service.contents() == ["other"]
    twin.session(soft(spool=DirectorySpool(tmp_path)), api_key="mine").flush()
    assert twin.service.contents() == ["other", "mine"]


def test_tail_belongs_to_one_session(twin: Twin) -> None:
    policy = soft()
    twin.session(policy, user="ann").record(said("ann's"))
    twin.service.fault = down
    assert window(twin.session(policy, user="bob").recall("q")) == []
    assert window(twin.session(policy, user="ann", session_id="t").recall("q")) == []
    assert window(twin.session(policy, user="ann").recall("q")) == ["ann's"]


def test_write_sends_part_of_what_other_sessions_left(twin: Twin) -> None:
    policy = soft()
    twin.service.fault = down
    for number in range(CATCH_UP + 5):
        twin.session(policy, f"left {number}").record(said("x"))
    twin.service.fault = None
    twin.session(policy, "mine").record(said("x"))
    assert len(twin.service.sessions) == 1 + CATCH_UP
    assert twin.session(policy, "mine").flush()
    assert len(twin.service.sessions) == 1 + CATCH_UP + 5


def test_write_after_a_long_outage_sends_part_of_the_backlog(twin: Twin) -> None:
    """Sending all of it at once delayed an agent by 39 s after an outage of 30 s."""
    session = twin.session(soft())
    twin.service.fault = down
    texts = [f"turn {number}" for number in range(3 * CATCH_UP)]
    for text in texts[:-2]:
        session.record(said(text))
    twin.service.fault = None
    assert not session.record(said(texts[-2]))
    assert twin.service.contents() == texts[: 2 * CATCH_UP]
    assert session.record(said(texts[-1]))
    assert twin.service.contents() == texts


def test_flush_during_an_outage(twin: Twin) -> None:
    policies = soft(), strict()
    twin.service.fault = down
    for policy in policies:
        assert policy.spool.put(entry_of(twin, policy))
    assert not twin.session(policies[0]).flush()
    with pytest.raises(Unreachable):
        twin.session(policies[1]).flush()


def failing_for(twin: Twin, session_id: str) -> Fault:
    """Return a fault that affects only writes of one session."""

    def answer_others(request: httpx.Request) -> httpx.Response:
        if f'"session_id":"{session_id}"'.encode() in request.content and request.url.path == "/v1/write":
            return refusing(InternalError("a fault"))(request)
        return twin.service.serve(request)

    return answer_others


def test_session_that_always_fails_does_not_block_others(twin: Twin) -> None:
    policy = soft()
    twin.service.fault = down
    for session_id in ("bad", "s", "bad", "t"):
        twin.session(policy, session_id).record(said(session_id))
    twin.service.fault = failing_for(twin, "bad")
    assert not twin.session(policy).flush()
    assert [twin.service.contents(session_id) for session_id in ("bad", "s", "t")] == [[], ["s"], ["t"]]
    asked = len(twin.service.requests)
    assert not twin.session(policy).flush()
    assert b'"bad"' in twin.service.requests[asked].content
    twin.service.fault = None
    assert twin.session(policy).flush()
    assert twin.service.contents("bad") == ["bad", "bad"]


def test_write_skips_a_failing_session_and_sends_the_others(twin: Twin) -> None:
    policy = soft()
    twin.service.fault = down
    for session_id in ("bad", "ended"):
        twin.session(policy, session_id).record(said(session_id))
    twin.service.fault = failing_for(twin, "bad")
    assert twin.session(policy).record(said("mine"))
    assert [twin.service.contents(session_id) for session_id in ("s", "bad", "ended")] == [["mine"], [], ["ended"]]
    assert not twin.session(policy, "bad").record(said("bad again"))


def test_turns_of_one_user_do_not_delay_an_erasure_by_another(twin: Twin) -> None:
    policy = soft()
    twin.service.fault = down
    twin.session(policy, "bad", user="bob").record(said("bob's"))
    twin.session(policy).record(said("ann's"))
    twin.service.fault = failing_for(twin, "bad")
    assert twin.session(policy).forget(session_id="s").counts == {"turns": 1}
    with pytest.raises(InternalError):
        twin.session(policy, user="bob").forget(session_id="s")


def entry_of(twin: Twin, policy: Policy) -> Any:
    """Return a write left by an earlier soft run."""
    spool = MemorySpool()
    twin.session(soft(spool=spool)).record(said("left"))
    (entry,) = spool.pending(twin.service.client().origin)
    return entry


def test_full_spool_drops_and_counts_writes(twin: Twin) -> None:
    session = twin.session(policy := soft(spool=MemorySpool(max_bytes=1)))
    twin.service.fault = down
    session.record(said("waits"))
    assert not session.record(said("has no room"))
    assert policy.stats == Stats(outages=2, spooled=1, dropped=1)
    twin.service.fault = None
    assert session.record(said("goes through", "at once"))
    assert twin.service.contents() == ["waits", "goes through", "at once"]


def test_broken_spool_does_not_affect_a_healthy_service(twin: Twin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    session = twin.session(soft(spool=DirectorySpool(tmp_path / "file")))
    assert session.record(said("one"))
    assert twin.service.contents() == ["one"]


def test_next_process_sends_the_spooled_writes(twin: Twin, tmp_path: Path) -> None:
    """Users reported that a run returned before its memory was saved."""
    twin.service.fault = down
    twin.session(soft(spool=DirectorySpool(tmp_path))).record(said("one"))
    twin.service.fault = None
    policy = soft(spool=DirectorySpool(tmp_path))
    twin.session(policy).record(said("two"))
    assert twin.service.contents() == ["one", "two"]
    assert policy.stats == Stats(replayed=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_recalled_text_is_not_recorded(twin: Twin) -> None:
    """Users reported that recalled text was stored again as new memory."""
    block = join_block([], ["- [2026-03-01, user] Ann likes tea"], [])
    session = twin.session(soft())
    session.record(said(f"{block}\nReal words", block, "", block[:-5]))
    assert twin.service.contents() == ["Real words", ""]


def test_recalled_text_in_a_payload_is_not_recorded(twin: Twin) -> None:
    block = join_block([], ["- the code is 4711"], [])
    payload = {"parts": [{"content": f"Fine. {block}"}, {"content": [block, 1, None]}], "text": "kept"}
    turn = {"role": "user", "content": "Fine.", "id": "1", "payload": json.dumps(payload)}
    other = {"role": "user", "content": "Good.", "id": "2", "payload": '{"kept":  "as it is"}'}
    odd = {"role": "user", "content": "Odd.", "id": "3", "payload": f"no JSON {block}"}
    twin.session().record([turn, other, odd])
    stored = [kept["payload"] for kept in twin.service.sessions["ann", "bot", "s"].values()]
    assert json.loads(stored[0]) == {"parts": [{"content": "Fine."}, {"content": ["", 1, None]}], "text": "kept"}
    assert stored[1:] == ['{"kept":  "as it is"}', "no JSON"]


def test_nothing_is_sent_if_there_is_nothing_to_record(twin: Twin) -> None:
    session = twin.session(soft())
    assert session.record(said(join_block([], ["- x"], [])))
    assert session.record([])
    assert twin.service.requests == []


def test_run_end_is_sent_without_turns(twin: Twin) -> None:
    twin.session(soft()).record([], run_end=True)
    assert b'"run_end":true' in twin.service.requests[0].content


def test_one_invalid_turn_does_not_affect_the_others(twin: Twin, caplog: pytest.LogCaptureFixture) -> None:
    bad = {"role": "user", "content": "SECRET", "payload": "SECRET\x00"}
    session = twin.session(policy := soft())
    assert not session.record([*said("one"), bad, *said("two")])
    assert twin.service.contents() == ["one", "two"]
    assert policy.stats == Stats(refusals=1, dropped=1)
    assert "SECRET" not in caplog.text
    with pytest.raises(InvalidRequest):
        twin.session(strict()).record([*said("three"), bad])
    assert twin.service.contents() == ["one", "two"]


def test_large_record_is_sent_in_parts(twin: Twin) -> None:
    texts = [str(number) for number in range(MAX_TURNS_PER_WRITE + 1)]
    assert twin.session(soft()).record(said(*texts), run_end=True)
    assert twin.service.contents() == texts
    assert [b'"run_end":true' in request.content for request in twin.service.requests] == [False, True]


@pytest.mark.parametrize("sizes", [[], [1], [MAX_WRITE_CHARS], [MAX_WRITE_CHARS // 2 + 1] * 3, [1, MAX_WRITE_CHARS, 1]])
def test_parts_contain_every_turn_within_the_limit(sizes: list[int]) -> None:
    turns = [TurnIn.model_construct(role="user", content="x" * size, payload=None) for size in sizes]
    parts = chunks(turns)
    assert [turn for part in parts for turn in part] == turns
    assert all(sum(len(turn.content) for turn in part) <= MAX_WRITE_CHARS for part in parts)
    assert len(parts) == 1 or all(parts)


def test_forget_first_sends_the_waiting_turns(twin: Twin) -> None:
    session = twin.session(soft())
    twin.service.fault = down
    session.record(said("one"))
    twin.service.fault = None
    assert session.forget(session_id="s").counts == {"turns": 1}
    assert session.flush()
    assert twin.service.contents() == []
    twin.service.fault = down
    assert window(session.recall("q")) == []


def test_dry_run_keeps_the_tail(twin: Twin) -> None:
    session = twin.session(soft())
    session.record(said("one"))
    session.forget(session_id="s", dry_run=True)
    twin.service.fault = down
    assert window(session.recall("q")) == ["one"]


@pytest.mark.parametrize("policy", [soft(), strict()])
def test_forget_always_raises_in_an_outage(twin: Twin, policy: Policy) -> None:
    twin.service.fault = down
    with pytest.raises(Unreachable):
        twin.session(policy).forget(session_id="s")


def test_save_always_raises_in_an_outage(fake: FakeService) -> None:
    fake.fault = down
    with pytest.raises(Unreachable):
        MemorySession(fake.client(), "s", policy=soft()).save("fact")
    with pytest.raises(Unreachable):
        asyncio.run(AsyncMemorySession(fake.async_client(), "s", policy=soft()).save("fact"))


def test_session_uses_names_exactly(fake: FakeService) -> None:
    client = fake.client()
    assert MemorySession(client, "s").key[1:] == ("ann", "bot", "s")
    assert MemorySession(client, " s ", user="bob", agent="b").key[1:] == ("bob", "b", " s ")
    for session_id, user, agent in (("", "ann", "bot"), ("s", "", "bot"), ("s", "ann", "*")):
        with pytest.raises(InvalidRequest):
            MemorySession(client, session_id, user=user, agent=agent)


def test_cancelled_record_loses_nothing(fake: FakeService) -> None:
    policy = soft()

    async def cancelled() -> None:
        arrived = asyncio.Event()

        async def hang(_: httpx.Request) -> httpx.Response:
            arrived.set()
            await asyncio.Event().wait()
            raise AssertionError

        session = AsyncMemorySession(fake.async_client(), "s", policy=policy)
        silent = AsyncMemoryClient(URL, user="ann", agent="bot", transport=httpx.MockTransport(hang))
        hung = AsyncMemorySession(silent, "s", policy=policy)
        assert hung.key == session.key
        task = asyncio.create_task(hung.record(said("one")))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert policy.stats == Stats(spooled=1)
        assert await session.record(said("two"))

    asyncio.run(cancelled())
    assert fake.contents() == ["one", "two"]


def test_concurrent_records_of_one_session_store_every_turn_once(fake: FakeService) -> None:
    policy, client = soft(), fake.client()

    def record(number: int) -> bool:
        return MemorySession(client, "s", policy=policy).record(said(f"{number}a", f"{number}b"))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(record, range(50)))
    found = fake.contents()
    assert sorted(found) == sorted(f"{number}{part}" for number in range(50) for part in "ab")
    assert all(found.index(f"{number}a") < found.index(f"{number}b") for number in range(50))


def test_concurrent_tasks_of_one_session_store_every_turn_once(fake: FakeService) -> None:
    session = AsyncMemorySession(fake.async_client(), "s", policy=soft())

    async def record_all() -> Sequence[bool]:
        return await asyncio.gather(*(session.record(said(str(number))) for number in range(50)))

    assert all(asyncio.run(record_all()))
    assert sorted(fake.contents()) == sorted(map(str, range(50)))


def test_whoami_counts_outages(fake: FakeService) -> None:
    policy = soft()
    session = MemorySession(fake.client(), "s", user="bob", policy=policy)
    assert session.whoami().user == "bob"
    fake.fault = down
    with pytest.raises(Unreachable):
        session.whoami()
    assert session.stats.outages == 1
    fake.fault = None
    assert asyncio.run(AsyncMemorySession(fake.async_client(), "s").whoami()).user == "ann"


def test_identity_is_requested_once_per_user_and_agent(fake: FakeService) -> None:
    policy, client = Policy(), fake.client()
    for session_id in ("s", "t"):
        known = MemorySession(client, session_id, policy=policy).identity()
        assert known is not None
        assert known.user == "ann"
    other = MemorySession(client, "s", user="bob", policy=policy).identity()
    assert other is not None
    assert other.user == "bob"
    assert fake.paths() == ["/v1/whoami"] * 2


async def both_identities(session: AsyncMemorySession) -> list[WhoAmI | None]:
    return [await session.identity(), await session.identity()]


def test_identity_is_unknown_in_an_outage(fake: FakeService) -> None:
    fake.faults = [down] * 3
    policy = Policy()
    assert MemorySession(fake.client(), "s", policy=policy).identity() is None
    first, second = asyncio.run(both_identities(AsyncMemorySession(fake.async_client(), "s", policy=policy)))
    assert first is not None
    assert first is second
