"""How often callers may call: per user and per key, counted in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import ceil

from threefold.errors import RateLimited
from threefold_server.clock import MICROS, MINUTE
from threefold_server.rules.access import Principal
from threefold_server.settings import Settings

MAX_ENTRIES = 10_000
"""Before those that mean nothing any more are dropped."""


class Rates:
    """A bucket for each subject: it holds a minute's requests, and fills up evenly."""

    def __init__(self, settings: Settings, ticks: Callable[[], int]) -> None:
        self._settings = settings
        self._ticks = ticks
        self._full_at: dict[Hashable, float] = {}

    def check(self, principal: Principal) -> None:
        """Count a request, or refuse it. The user goes first, so that one user's refusals do not use up the key."""
        of_user, of_key = self._settings.user_requests_per_minute, self._settings.key_requests_per_minute
        if of_user is not None:
            self._take("user", principal.owner, of_user)
        if principal.key is not None and (own := principal.policy.requests_per_minute or of_key) is not None:
            self._take("key", principal.key, own)

    def _take(self, kind: str, subject: Hashable, per_minute: int) -> None:
        """Of a bucket it is enough to know when it will be full again (the generic cell rate algorithm)."""
        now = self._ticks()
        full_at = max(self._full_at.get((kind, subject), now), now) + MINUTE / per_minute
        if full_at - now > MINUTE:
            wait = ceil((full_at - now - MINUTE) / MICROS)
            raise RateLimited(
                f"more than {per_minute} requests in a minute for this {kind}; wait {wait} s",
                {"retry_after": wait, "limit": per_minute, "of": kind},
            )
        if len(self._full_at) >= MAX_ENTRIES:
            self._full_at = {entry: moment for entry, moment in self._full_at.items() if moment > now}
        self._full_at[kind, subject] = full_at
