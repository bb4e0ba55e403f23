"""Head and tail of long texts, for readers that cannot use a whole turn.

The database cuts the text, so that the middle never reaches Python. Redaction also sees a margin beyond each cut, which
is dropped afterwards, so that half a secret is never shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, case, func

MARGIN = 8_000
"""Characters beyond a cut that are read but not shown: more than the length of the largest private key."""

COLUMNS = ("content", "content_tail", "content_size")


def columns(text: ColumnElement[str], most: Any, end: Any) -> list[ColumnElement[Any]]:
    """Return the three columns (named `COLUMNS`) that `shown` makes a text of.

    Args:
        text: The column of the text.
        most: Texts up to this many characters are read whole: a number, or a parameter of type integer.
        end: Characters read of each end of a longer text: `end_of(most)`.
    """
    size = func.length(text)
    values = (
        case((size <= most, text), else_=func.substr(text, 1, end)),
        case((size > most, func.substr(text, size - end + 1))),
        size,
    )
    return [value.label(name) for value, name in zip(values, COLUMNS, strict=True)]


def end_of(most: int) -> int:
    """Return how many characters are read of each end of a text that is longer than `most`."""
    return most // 2 + MARGIN


def is_cut(row: Any) -> bool:
    """Return whether the middle of the row's text was left out."""
    return row.content_tail is not None


def shown(row: Any, clean: Callable[[str], str]) -> str:
    """Return the row's text after `clean` (redaction), with a mark where the middle was left out."""
    if not is_cut(row):
        return clean(row.content)
    head = clean(row.content)
    head = head[: max(0, len(head) - MARGIN)].rstrip()
    return f"{head}\n[… cut, {row.content_size:,} characters in full …]\n{clean(row.content_tail)[MARGIN:].lstrip()}"
