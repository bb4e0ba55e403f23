"""Request rates per user and per key, counted in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import ceil

from threefold.errors import RateLimited
from threefold_server.clock import MICROS, MINUTE
from threefold_server.rules.access import Principal
from threefold_server.settings import Settings

MAX_ENTRIES = 10_000
"""Entries above which those of full buckets are dropped."""


class Rates:
    """A bucket per user and per key. It holds the requests of a minute and fills evenly."""

    def __init__(self, settings: Settings, ticks: Callable[[], int]) -> None:
        self._settings = settings
        self._ticks = ticks
        self._full_at: dict[Hashable, float] = {}

    def check(self, principal: Principal) -> None:
        """Count a request. Raise RateLimited if its user or key is above the rate.

        The user is checked first, so that refused requests of one user do not use up the key's rate.
        """
        user_rate, default_key_rate = self._settings.user_requests_per_minute, self._settings.key_requests_per_minute
        if user_rate is not None:
            self._take("user", principal.owner, user_rate)
        key_rate = principal.policy.requests_per_minute or default_key_rate
        if principal.key is not None and key_rate is not None:
            self._take("key", principal.key, key_rate)

    def _take(self, of: str, subject: Hashable, per_minute: int) -> None:
        """Take one request from a bucket, which is stored as the time at which it will be full again (GCRA)."""
        now = self._ticks()
        full_at = max(self._full_at.get((of, subject), now), now) + MINUTE / per_minute
        if full_at - now > MINUTE:
            wait = ceil((full_at - now - MINUTE) / MICROS)
            raise RateLimited(
                f"more than {per_minute} requests in a minute for this {of}; wait {wait} s",
                {"retry_after": wait, "limit": per_minute, "of": of},
            )
        if len(self._full_at) >= MAX_ENTRIES:
            self._full_at = {entry: moment for entry, moment in self._full_at.items() if moment > now}
        self._full_at[of, subject] = full_at
