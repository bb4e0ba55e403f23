"""Opaque cursors. A cursor is a position in a fixed order, so that pages neither skip nor repeat rows."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from threefold.errors import InvalidRequest

T = TypeVar("T")

PAGE_CHARS = 16_000_000
"""Characters of states or digests after which a page ends, even if it has fewer rows than requested."""


def encode_cursor(position: Sequence[int | str]) -> str:
    """Return a position as URL-safe text."""
    return base64.urlsafe_b64encode(json.dumps(list(position)).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, types: Sequence[type]) -> list[Any]:
    """Return the position of a cursor, whose parts must have exactly these types.

    Raises:
        InvalidRequest: The cursor is not one of this service.
    """
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise bad_cursor() from error
    if not isinstance(position, list) or [type(part) for part in position] != list(types):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise bad_cursor()
    if any(isinstance(part, int) and not -(2**63) <= part < 2**63 for part in position):  # pyright: ignore[reportUnknownVariableType]
        raise bad_cursor()
    return position  # pyright: ignore[reportUnknownVariableType]


def decode_key(text: str) -> UUID:
    """Return a key that is part of a position. Raise InvalidRequest if it is not a key."""
    try:
        return UUID(text)
    except ValueError as error:
        raise bad_cursor() from error


def cut_page(rows: Sequence[tuple[Sequence[int | str], T]], limit: int) -> tuple[list[T], str | None]:
    """Return a page of `limit` items and the cursor of the next page; None on the last page.

    Args:
        rows: Positions and items, up to `limit + 1` of them.
    """
    page = [item for _, item in rows[:limit]]
    more = limit > 0 and len(rows) > limit
    return page, encode_cursor(rows[limit - 1][0]) if more else None


def fill_page(rows: Iterable[T], limit: int, size: Callable[[T], int], most: int) -> tuple[list[T], int]:
    """Take rows for a page that ends after `limit` rows, or once their sizes add up to more than `most`.

    Args:
        rows: Read only as far as needed.
        size: Returns the size of a row.

    Returns:
        The rows, with one more than the page has if there is a next page, and the number of rows of the page.
    """
    found: list[T] = []
    used = 0
    for row in rows:
        found.append(row)
        if len(found) > limit or used > most:
            return found, len(found) - 1
        used += size(row)
    return found, limit


def bad_cursor() -> InvalidRequest:
    """Return the error for a cursor that this service did not make."""
    return InvalidRequest("cursor: not a cursor of this service; start again without one", {"field": "cursor"})
