"""Time as the service keeps it: microseconds since 1970 in UTC. The only place that reads the system clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

MICROS = 1_000_000
"""Microseconds in a second."""
MINUTE_MICROS = 60 * MICROS
DAY_MICROS = 86_400 * MICROS


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 in UTC: exact, portable, and free of time zones."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int, offset_minutes: int = 0) -> datetime:
    """The moment again, shown in the time zone it was given in."""
    moment = EPOCH + timedelta(microseconds=micros)
    return moment.astimezone(timezone(timedelta(minutes=offset_minutes))) if offset_minutes else moment


def now_micros() -> int:
    """The server's clock, in microseconds since 1970."""
    return time.time_ns() // 1_000
