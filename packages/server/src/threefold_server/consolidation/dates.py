"""Relative dates ("last Friday") into days of the calendar, counted from when they were said. Pure."""

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
_STEPS = {"last": -1, "this": 0, "next": 1}

_RELATIVE = re.compile(
    rf"\b(?:(?P<day>{'|'.join(sorted(_DAYS, key=len, reverse=True))})"
    rf"|(?P<step>last|this|next) (?P<unit>week|month|year|{'|'.join(_WEEKDAYS)})"
    rf"|(?P<count>\d{{1,3}}|{'|'.join(_NUMBERS)}) (?P<units>day|week|month|year)s? ago)\b",
    re.IGNORECASE,
)
_ABSOLUTE = re.compile(rf"\b(?:\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?(?:{'|'.join(_MONTHS)}))\b", re.IGNORECASE)


def ground_dates(text: str, said: datetime) -> str:
    """`text` with the day, week, month or year after each relative date; unchanged where it has a date already."""
    if _ABSOLUTE.search(text):
        return text
    with suppress(OverflowError):  # a clock that was never set: before the first day of the calendar
        return _RELATIVE.sub(lambda found: f"{found[0]} ({_meant(found, said.date())})", text)
    return text


def _meant(found: re.Match[str], said: date) -> str:
    if found["day"]:
        return _day(said + timedelta(days=_DAYS[found["day"].lower()]))
    if found["count"]:
        count = found["count"].lower()
        return _moved(said, found["units"].lower(), -(_NUMBERS.get(count) or int(count)))
    unit, step = found["unit"].lower(), _STEPS[found["step"].lower()]
    if unit == "week":
        monday = said - timedelta(days=said.weekday()) + timedelta(weeks=step)
        return f"{_day(monday)} to {_day(monday + timedelta(days=6))}"
    return _day(_weekday(said, unit, step)) if unit in _WEEKDAYS else _moved(said, unit, step)


def _moved(said: date, unit: str, count: int) -> str:
    """A day, week, month or year so many units away, as exactly as it was said."""
    if unit in ("day", "week"):
        return _day(said + timedelta(days=count if unit == "day" else 7 * count))
    months = 12 * said.year + said.month - 1 + count * (12 if unit == "year" else 1)
    return str(months // 12) if unit == "year" else f"{_MONTHS[months % 12].title()} {months // 12}"


def _weekday(said: date, name: str, step: int) -> date:
    """ "Last Friday" is before the day it is said, "next Friday" after it; "this Friday" may be today."""
    distance = (_WEEKDAYS.index(name) - said.weekday()) % 7
    if step < 0:
        return said + timedelta(days=distance - 7)
    return said + timedelta(days=distance or 7 * step)


def _day(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1].title()} {day.year}"
