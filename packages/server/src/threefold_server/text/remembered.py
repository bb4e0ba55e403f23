"""Results by the hash of a text, bounded in number. No text is kept. Pure.

A recall counts and searches mostly the same lines as the recall before it. What a pure function of a text returned
stays true, so nothing has to be invalidated; and the text itself comes from the database each time, so a text that was
forgotten is never asked about again.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 50_000
"""Counts in one generation; the two generations of them take at most some 20 MB."""


class Recent(Generic[T]):
    """The values that were used last, by hash. Any thread may use it.

    New and used values are in the young generation. Once it is full, it becomes the old one, and values that were not
    used since the last time are dropped.
    """

    def __init__(self, most: int) -> None:
        """Keep at most `most` values in each of two generations."""
        self._most = most
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def get(self, key: bytes) -> T | None:
        """Return a value, None if it is not there."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: bytes, value: T) -> None:
        """Keep a value."""
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class Remembered(Generic[T]):
    """A pure function of a text that is not called again for a text that it was called for lately."""

    def __init__(self, function: Callable[[str], T], most: int = MOST) -> None:
        self._function = function
        self._recent: Recent[T] = Recent(most)

    def __call__(self, text: str) -> T:
        """Return the result for a text."""
        key = hash_of(text)
        found = self._recent.get(key)
        if found is None:
            found = self._function(text)
            self._recent.put(key, found)
        return found


def hash_of(*texts: str) -> bytes:
    """Return a hash of texts of which nobody can find two alike."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return blake2b(b"".join(len(part).to_bytes(8) + part for part in parts), digest_size=16).digest()
