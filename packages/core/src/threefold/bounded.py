"""A dict that keeps a limited number of entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """A dict of the `most` entries that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)  # not `move_to_end`, which fails if another thread has just removed the key
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)
