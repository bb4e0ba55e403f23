"""Calendar dates for relative ones ("last Friday"), counted from the day they were said. Pure."""

from __future__ import annotations

import re
from calendar import day_name
from contextlib import suppress
from datetime import date, datetime, timedelta

_WEEKDAYS = [name.lower() for name in day_name]
_MONTHS = "january february march april may june july august september october november december".split()
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_DAYS = {
    "the day before yesterday": -2,
    "yesterday": -1,
    "last night": -1,
    "today": 0,
    "tonight": 0,
    "this morning": 0,
    "tomorrow": 1,
    "the day after tomorrow": 2,
}
_OFFSETS = {"last": -1, "this": 0, "next": 1}

_RELATIVE = re.compile(
    rf"\b(?:(?P<day>{'|'.join(sorted(_DAYS, key=len, reverse=True))})"
    rf"|(?P<offset>last|this|next) (?P<unit>week|month|year|{'|'.join(_WEEKDAYS)})"
    rf"|(?P<count>\d{{1,3}}|{'|'.join(_NUMBERS)}) (?P<units>day|week|month|year)s? ago)\b",
    re.IGNORECASE,
)
_ABSOLUTE = re.compile(rf"\b(?:\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?(?:{'|'.join(_MONTHS)}))\b", re.IGNORECASE)


def ground_dates(text: str, said_at: datetime) -> str:
    """Return `text` with the calendar day, week, month or year in brackets after each relative date.

    A text that contains an absolute date already is returned unchanged.
    """
    if _ABSOLUTE.search(text):
        return text
    with suppress(OverflowError):  # `said_at` of a clock that was never set: the result is before year 1
        return _RELATIVE.sub(lambda found: f"{found[0]} ({_calendar_date(found, said_at.date())})", text)
    return text


def _calendar_date(found: re.Match[str], said_at: date) -> str:
    if found["day"]:
        return _day(said_at + timedelta(days=_DAYS[found["day"].lower()]))
    if found["count"]:
        count = found["count"].lower()
        return _shifted(said_at, found["units"].lower(), -(_NUMBERS.get(count) or int(count)))
    unit, offset = found["unit"].lower(), _OFFSETS[found["offset"].lower()]
    if unit == "week":
        monday = said_at - timedelta(days=said_at.weekday()) + timedelta(weeks=offset)
        return f"{_day(monday)} to {_day(monday + timedelta(days=6))}"
    return _day(_weekday(said_at, unit, offset)) if unit in _WEEKDAYS else _shifted(said_at, unit, offset)


def _shifted(said_at: date, unit: str, count: int) -> str:
    """Return the date `count` units away, as a day, month or year according to the unit."""
    if unit in ("day", "week"):
        return _day(said_at + timedelta(days=count if unit == "day" else 7 * count))
    months = 12 * said_at.year + said_at.month - 1 + count * (12 if unit == "year" else 1)
    return str(months // 12) if unit == "year" else f"{_MONTHS[months % 12].title()} {months // 12}"


def _weekday(said_at: date, name: str, offset: int) -> date:
    """Return the day that a weekday means.

    "Last Friday" is before the day it was said, "next Friday" is after it, and "this Friday" may be the same day.
    """
    distance = (_WEEKDAYS.index(name) - said_at.weekday()) % 7
    if offset < 0:
        return said_at + timedelta(days=distance - 7)
    return said_at + timedelta(days=distance or 7 * offset)


def _day(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1].title()} {day.year}"
