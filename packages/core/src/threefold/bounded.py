"""A dict that forgets: what a process has seen, as far as it may cost memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """The `most` entries that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)  # not `move_to_end`, which fails where another thread has just dropped the key
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)
