"""Time as the service keeps it: microseconds since 1970 in UTC. Only this module reads the system clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

MICROS = 1_000_000
"""Microseconds in a second."""
MINUTE = 60 * MICROS
"""Microseconds in a minute."""
DAY = 86_400 * MICROS
"""Microseconds in a day."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Return the microseconds from 1970 to `moment` in UTC: an exact integer without a time zone."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int, offset_minutes: int = 0) -> datetime:
    """Return the moment of `micros` in the time zone with this offset; in UTC by default."""
    moment = EPOCH + timedelta(microseconds=micros)
    return moment.astimezone(timezone(timedelta(minutes=offset_minutes))) if offset_minutes else moment


def now_micros() -> int:
    """Return the time of the system clock, in microseconds since 1970."""
    return time.time_ns() // 1_000
