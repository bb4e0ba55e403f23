"""Results of pure functions by the hash of a text, bounded in number. No text is kept. Pure.

A recall counts and searches mostly the same lines as the previous recall. The result of a pure function stays true, so
an entry is never invalidated. The texts come from the database each time, so an entry of a forgotten text is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 50_000
"""Most results in each of two generations. With numbers as results, both take at most about 20 MB."""


class Recent(Generic[T]):
    """The most recently used values, by hash. Safe to use from several threads.

    A new or used value is in the young generation. When that is full, it becomes the old generation, and the values of
    the previous old generation that were not used in the meantime are dropped.
    """

    def __init__(self, most: int) -> None:
        """Keep at most `most` values in each of two generations."""
        self._most = most
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def get(self, key: bytes) -> T | None:
        """Return the value of a key; None if it is not kept."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: bytes, value: T) -> None:
        """Keep a value under a key."""
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class Remembered(Generic[T]):
    """A pure function of a text that keeps its recent results."""

    def __init__(self, function: Callable[[str], T], most: int = MOST) -> None:
        self._function = function
        self._recent: Recent[T] = Recent(most)

    def __call__(self, text: str) -> T:
        """Return the result for a text. Call the function only if the result is not kept."""
        key = hash_of(text)
        found = self._recent.get(key)
        if found is None:
            found = self._function(text)
            self._recent.put(key, found)
        return found


def hash_of(*texts: str) -> bytes:
    """Return a collision-resistant hash of a sequence of texts: ("ab", "c") and ("a", "bc") differ."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return blake2b(b"".join(len(part).to_bytes(8) + part for part in parts), digest_size=16).digest()
