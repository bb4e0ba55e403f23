"""A dict that forgets its oldest entries."""

from threefold.bounded import Bounded


def test_the_oldest_goes() -> None:
    known: Bounded[str, int] = Bounded(2)
    known["a"], known["b"], known["c"] = 1, 2, 3
    assert dict(known) == {"b": 2, "c": 3}


def test_what_is_set_again_is_new_again() -> None:
    known: Bounded[str, int] = Bounded(2)
    known["a"], known["b"], known["a"] = 1, 2, 3
    known["c"] = 4
    assert dict(known) == {"a": 3, "c": 4}
