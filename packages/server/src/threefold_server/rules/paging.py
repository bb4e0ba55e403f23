"""Opaque cursors: a position in a fixed order, so that pages neither skip nor repeat while rows are added."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from threefold.errors import InvalidRequest

T = TypeVar("T")


def encode_cursor(position: Sequence[int | str]) -> str:
    """A position as URL-safe text."""
    return base64.urlsafe_b64encode(json.dumps(list(position)).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """The position again; `kinds` are the types of its parts. Anything else is refused."""
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise bad_cursor() from error
    if not isinstance(position, list) or [type(part) for part in position] != list(kinds):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise bad_cursor()
    if any(isinstance(part, int) and not -(2**63) <= part < 2**63 for part in position):  # pyright: ignore[reportUnknownVariableType]
        raise bad_cursor()
    return position  # pyright: ignore[reportUnknownVariableType]


def decode_key(text: str) -> UUID:
    """A key that is part of a position."""
    try:
        return UUID(text)
    except ValueError as error:
        raise bad_cursor() from error


def cut_page(rows: Sequence[tuple[Sequence[int | str], T]], limit: int) -> tuple[list[T], str | None]:
    """The page and the cursor of the next one, from up to `limit + 1` rows with their positions."""
    page = [item for _, item in rows[:limit]]
    more = limit > 0 and len(rows) > limit
    return page, encode_cursor(rows[limit - 1][0]) if more else None


def bad_cursor() -> InvalidRequest:
    """The refusal of a cursor that is not ours."""
    return InvalidRequest("cursor: not one that this service gave out; start without a cursor", {"field": "cursor"})
