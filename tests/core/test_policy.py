"""Circuit breaker, counters, tails, and which errors count as outages or refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Thread

import pytest

from fixtures.fake_service import Clock
from threefold import CircuitBreaker, Policy, Stats
from threefold.contract import StorePolicy, Turn
from threefold.errors import ERRORS, CircuitOpen, NotFound, ThreefoldError, Unreachable
from threefold.graphemes import middle_cut
from threefold.policy import TAIL_CHARS, Tails
from threefold.spool import SessionKey

KEY = SessionKey("origin", "ann", "bot", "s")
REFUSALS = {
    "invalid_request",
    "too_large",
    "unauthenticated",
    "forbidden",
    "quota_exceeded",
    "conflict",
    "revision_conflict",
}


def turn(number: int, content: str = "hello") -> Turn:
    return Turn(
        id=str(number),
        seq=0,
        role="user",
        content=content,
        payload="{}",
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        tokens=1,
    )


def is_open(breaker: CircuitBreaker) -> bool:
    try:
        breaker.check()
    except CircuitOpen:
        return True
    return False


def test_two_outages_in_a_row_open_the_breaker() -> None:
    breaker = CircuitBreaker(clock=Clock())
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    assert not is_open(breaker)
    breaker.failed()
    assert is_open(breaker)


def test_one_call_is_tried_after_the_cool_down() -> None:
    clock = Clock()
    breaker = CircuitBreaker(threshold=1, cool_down=5, clock=clock)
    breaker.failed()
    clock.now += 4.9
    assert is_open(breaker)
    clock.now += 0.1
    assert [is_open(breaker), is_open(breaker)] == [False, True]
    breaker.failed()
    clock.now += 4.9
    assert is_open(breaker)
    clock.now += 0.1
    assert not is_open(breaker)
    breaker.succeeded()
    assert [is_open(breaker), is_open(breaker)] == [False, False]


def test_cancelled_probe_does_not_block_the_breaker() -> None:
    clock = Clock()
    breaker = CircuitBreaker(threshold=1, cool_down=5, clock=clock)
    breaker.failed()
    clock.now += 5
    assert not is_open(breaker)  # the result of this probe is never reported
    clock.now += 5
    assert not is_open(breaker)


def test_not_found_counts_as_success(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(breaker=CircuitBreaker(threshold=2, clock=Clock()))
    policy.breaker.failed()
    with pytest.raises(NotFound), policy.call():
        raise NotFound("no such session")
    policy.breaker.failed()
    assert not is_open(policy.breaker)
    assert (policy.stats.refusals, policy.stats.outages, caplog.records) == (0, 0, [])


@pytest.mark.parametrize("code", [code for code in ERRORS if code != "not_found"])
def test_refusals_are_not_outages(code: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(breaker=CircuitBreaker(threshold=1, clock=Clock()))
    with pytest.raises(ERRORS[code]), policy.call():
        raise ERRORS[code]("what was wrong")
    refused = code in REFUSALS
    assert (policy.stats.refusals, policy.stats.outages) == ((1, 0) if refused else (0, 1))
    assert is_open(policy.breaker) is not refused
    assert [record.levelname for record in caplog.records] == ["ERROR" if refused else "WARNING"]


def test_no_call_is_tried_while_the_breaker_is_open() -> None:
    policy, tried = Policy(breaker=CircuitBreaker(threshold=1, clock=Clock())), list[str]()

    def call(name: str) -> None:
        with policy.call():
            tried.append(name)
            raise Unreachable("down")

    with pytest.raises(Unreachable):
        call("first")
    with pytest.raises(CircuitOpen):
        call("second")
    assert (tried, policy.stats.outages) == (["first"], 2)


def test_other_errors_are_not_counted() -> None:
    policy = Policy()
    with pytest.raises(KeyError), policy.call():
        raise KeyError
    assert policy.stats == Stats()


@pytest.mark.parametrize(
    ("explicit", "store", "mode"),
    [
        (None, None, "soft"),
        (None, "strict", "strict"),
        ("soft", "strict", "soft"),
        ("strict", "soft", "strict"),
        ("strict", None, "strict"),
    ],
)
def test_explicit_mode_beats_the_mode_of_the_store(explicit: str | None, store: str | None, mode: str) -> None:
    policy = Policy(failure_mode="strict" if explicit == "strict" else "soft" if explicit else None)
    if store:
        policy.remember_store("origin", StorePolicy(failure_mode="strict" if store == "strict" else "soft"))
    assert policy.failure_mode("origin") == mode


def test_policy_of_one_store_does_not_apply_to_another() -> None:
    policy = Policy()
    policy.remember_store("one", StorePolicy(failure_mode="strict"))
    assert policy.failure_mode("other") == "soft"
    assert not policy.knows_store("other")


def test_counters_are_thread_safe() -> None:
    stats = Stats()
    threads = [Thread(target=lambda: [stats.add(outages=1, dropped=2) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (stats.outages, stats.dropped) == (4000, 8000)


def test_tails_keep_the_newest_turns_of_the_newest_sessions() -> None:
    tails = Tails(turns=3, sessions=2)
    for session_id in "abc":
        tails.extend(KEY._replace(session_id=session_id), [turn(number) for number in range(5)])
    assert tails.read(KEY._replace(session_id="a")) == []
    assert [each.id for each in tails.read(KEY._replace(session_id="c"))] == ["2", "3", "4"]


def test_tail_of_zero_turns_keeps_nothing() -> None:
    tails = Tails(turns=0)
    tails.extend(KEY, [turn(1), turn(2)])
    assert tails.read(KEY) == []


def test_tail_keeps_a_turn_once_cut_and_without_payload() -> None:
    tails = Tails()
    tails.extend(KEY, [turn(1), turn(2, "x" * 2 * TAIL_CHARS)])
    tails.extend(KEY, [turn(1)])
    first, second = tails.read(KEY)
    assert (first.id, first.payload, first.cut) == ("1", None, False)
    assert (second.id, second.cut) == ("2", True)
    assert len(second.content) <= TAIL_CHARS


def test_forgetting_a_user_clears_all_tails_of_that_user() -> None:
    tails = Tails()
    keys = [KEY, KEY._replace(agent="other"), KEY._replace(session_id="t"), KEY._replace(user="bob")]
    for key in keys:
        tails.extend(key, [turn(1)])
    tails.forget_user(KEY)
    assert [len(tails.read(key)) for key in keys] == [0, 0, 0, 1]


def test_seed_does_not_replace_a_tail() -> None:
    tails = Tails()
    tails.seed(KEY, [turn(1)])
    tails.seed(KEY, [turn(2)])
    assert [each.id for each in tails.read(KEY)] == ["1"]


@pytest.mark.parametrize("length", [0, 10, 11, 1000])
def test_cut_text_keeps_head_and_tail(length: int) -> None:
    text = "h" * (length // 2) + "t" * (length - length // 2)
    cut = middle_cut(text, 10)
    assert len(cut) <= 10
    assert (cut == text) is (length <= 10)
    assert (cut[:1], cut[-1:]) == (text[:1], text[-1:])


def test_open_breaker_says_when_it_tries_again() -> None:
    breaker = CircuitBreaker(threshold=1, cool_down=5, clock=Clock())
    breaker.failed()
    with pytest.raises(ThreefoldError, match=r"next try in 5\.0 s"):
        breaker.check()
