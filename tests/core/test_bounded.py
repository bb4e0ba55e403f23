"""A dict that forgets its oldest entries."""

from threefold.bounded import Bounded


def test_oldest_entry_is_dropped() -> None:
    known: Bounded[str, int] = Bounded(2)
    known["a"], known["b"], known["c"] = 1, 2, 3
    assert dict(known) == {"b": 2, "c": 3}


def test_entry_that_is_set_again_counts_as_new() -> None:
    known: Bounded[str, int] = Bounded(2)
    known["a"], known["b"], known["a"] = 1, 2, 3
    known["c"] = 4
    assert dict(known) == {"a": 3, "c": 4}


def test_key_dropped_by_another_thread_is_still_set() -> None:
    class Key(str):
        looked_up = 0

        def __hash__(self) -> int:
            self.looked_up += 1
            if self.looked_up == 2:
                known.clear()
            return super().__hash__()

    known: Bounded[str, int] = Bounded(2)
    again = Key("a")
    known["a"], known["b"], known[again] = 1, 2, 3
    assert dict(known) == {"a": 3}
