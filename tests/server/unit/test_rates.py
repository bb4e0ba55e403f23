"""Rate limits: the requests of a minute may come at once, then refill evenly, and each caller has its own limit."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.consolidation import SECOND, Clock
from threefold.errors import RateLimited
from threefold_server.http.rates import MAX_ENTRIES, Rates
from threefold_server.rules.access import KeyPolicy, Principal, Reach
from threefold_server.settings import Settings


def rates(clock: Clock, **settings: Any) -> Rates:
    return Rates(Settings(**settings), clock)


def caller(user: str = "ana", agent: str = "support", **fields: Any) -> Principal:
    return Principal(user=user, agent=agent, ceiling=Reach.agent, **fields)


def allowed(rates: Rates, principal: Principal, tries: int) -> int:
    """Return how many of these requests are allowed."""
    passed = 0
    for _ in range(tries):
        try:
            rates.check(principal)
        except RateLimited:
            continue
        passed += 1
    return passed


def test_no_limit_by_default() -> None:
    assert allowed(rates(Clock()), caller(key="k"), 1_000) == 1_000


def test_requests_of_a_minute_may_come_at_once_and_refill_evenly() -> None:
    clock = Clock()
    limited = rates(clock, user_requests_per_minute=6)
    assert allowed(limited, caller(), 10) == 6
    clock.now += 10 * SECOND
    assert allowed(limited, caller(), 10) == 1
    clock.now += 3_600 * SECOND
    assert allowed(limited, caller(), 10) == 6


def test_refusal_says_how_long_to_wait() -> None:
    clock = Clock()
    limited = rates(clock, user_requests_per_minute=6)
    assert allowed(limited, caller(), 6) == 6
    clock.now += 4 * SECOND
    with pytest.raises(RateLimited, match="6 requests in a minute for this user; wait 6 s") as refused:
        limited.check(caller())
    assert refused.value.details == {"retry_after": 6, "limit": 6, "of": "user"}
    clock.now += 6 * SECOND
    limited.check(caller())


def test_users_and_agents_without_a_user_are_counted_separately() -> None:
    limited = rates(Clock(), user_requests_per_minute=2)
    assert allowed(limited, caller("ana"), 3) == 2
    assert allowed(limited, caller("ana", "another agent"), 3) == 0
    assert allowed(limited, caller("bob"), 3) == 2
    assert allowed(limited, Principal(user=None, agent="ana", ceiling=Reach.agent), 3) == 2


def test_refused_user_does_not_use_up_the_limit_of_the_key() -> None:
    limited = rates(Clock(), user_requests_per_minute=2, key_requests_per_minute=5)
    assert allowed(limited, caller("ana", key="backend"), 100) == 2
    assert allowed(limited, caller("bob", key="backend"), 100) == 2
    assert allowed(limited, caller("carol", key="backend"), 100) == 1
    assert allowed(limited, caller("dave", key="other"), 100) == 2


def test_key_may_have_its_own_rate() -> None:
    limited = rates(Clock(), key_requests_per_minute=5)
    assert allowed(limited, caller(key="batch", policy=KeyPolicy(requests_per_minute=50)), 100) == 50


def test_full_buckets_are_dropped() -> None:
    clock = Clock()
    limited = rates(clock, user_requests_per_minute=2)
    for number in range(MAX_ENTRIES):
        limited.check(caller(f"user {number}"))
    clock.now += 60 * SECOND
    limited.check(caller())
    assert len(vars(limited)["_full_at"]) == 1
