"""Filters on the fields of an item's value. Pure.

Numbers are compared with numbers and text with text; a comparison of other types does not match. A missing field
matches no condition, not even `$ne`, and is not an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

from threefold.errors import InvalidRequest

Compare = Callable[[Any, Any], bool]
Condition = Mapping[str, Any]

MISSING = object()


def check_filter(condition: Condition) -> None:
    """Raise InvalidRequest for an unknown or misplaced operator at any depth."""
    for name, expected in condition.items():
        if name.startswith("$"):
            raise InvalidRequest(
                f"filter: {name!r} is an operator; put it below the name of a field", {"field": "filter"}
            )
        _check_operators(expected)


def matches(value: Mapping[str, Any], condition: Condition) -> bool:
    """Return whether every field of the condition exists and agrees. A dot in a name is part of the name."""
    return all(_agrees(value.get(name, MISSING), expected) for name, expected in condition.items())


def equal(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0, but true does not equal 1."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        mine, theirs = cast(dict[str, Any], value), cast(dict[str, Any], other)
        return mine.keys() == theirs.keys() and all(equal(mine[name], theirs[name]) for name in mine)
    if isinstance(value, list) and isinstance(other, list):
        ours, others = cast(list[Any], value), cast(list[Any], other)
        return len(ours) == len(others) and all(map(equal, ours, others))
    return value == other


def _ordered(compare: Compare) -> Compare:
    def compare_same_type(value: Any, bound: Any) -> bool:
        ordered_type = _ordered_type(value)
        return ordered_type is not None and ordered_type is _ordered_type(bound) and compare(value, bound)

    return compare_same_type


def _ordered_type(value: Any) -> type | None:
    """Return float for a number, str for a text, None for a value without an order."""
    if isinstance(value, bool):
        return None
    return float if isinstance(value, int | float) else str if isinstance(value, str) else None


OPERATORS: Mapping[str, Compare] = {
    "$eq": equal,
    "$ne": lambda value, other: not equal(value, other),
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
}


def _agrees(value: Any, expected: Any) -> bool:
    if value is MISSING:
        return False
    if _has_operators(expected):
        return all(OPERATORS[name](value, bound) for name, bound in expected.items())
    if isinstance(expected, dict):  # part of a nested value
        return isinstance(value, dict) and matches(cast(Condition, value), cast(Condition, expected))
    return equal(value, expected)


def _has_operators(expected: Any) -> bool:
    return isinstance(expected, dict) and any(name.startswith("$") for name in cast(Condition, expected))


def _check_operators(expected: Any) -> None:
    if not isinstance(expected, dict):
        return
    condition = cast(Condition, expected)
    if not _has_operators(condition):
        check_filter(condition)
    for name in condition:
        if _has_operators(condition) and name not in OPERATORS:
            known = ", ".join(OPERATORS)
            raise InvalidRequest(f"filter: unknown operator {name!r}; use one of {known}", {"field": "filter"})
