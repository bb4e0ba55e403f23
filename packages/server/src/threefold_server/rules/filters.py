"""Filters on the fields of an item's value. Pure.

Comparisons know types: numbers are compared with numbers and text with text, anything else does not match. A field
that is missing matches nothing, `$ne` included, and fails nothing.
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
    """Refuse an operator that there is not, wherever it stands."""
    for name, wanted in condition.items():
        if name.startswith("$"):
            raise InvalidRequest(f"filter: {name!r} is an operator and stands below a field", {"field": "filter"})
        _check_operators(wanted)


def matches(value: Mapping[str, Any], condition: Condition) -> bool:
    """Whether every field of the condition is there and agrees. Names are literal: a dot in one is a dot."""
    return all(_agrees(value.get(name, MISSING), wanted) for name, wanted in condition.items())


def equal(value: Any, other: Any) -> bool:
    """Equality of JSON: 1 is 1.0, but true is not 1."""
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
    def holds(value: Any, bound: Any) -> bool:
        return _kind(value) is not None and _kind(value) is _kind(bound) and compare(value, bound)

    return holds


def _kind(value: Any) -> type | None:
    """What has an order: numbers, and text."""
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


def _agrees(value: Any, wanted: Any) -> bool:
    if value is MISSING:
        return False
    if _has_operators(wanted):
        return all(OPERATORS[name](value, bound) for name, bound in wanted.items())
    if isinstance(wanted, dict):  # part of a nested value
        return isinstance(value, dict) and matches(cast(Condition, value), cast(Condition, wanted))
    return equal(value, wanted)


def _has_operators(wanted: Any) -> bool:
    return isinstance(wanted, dict) and any(name.startswith("$") for name in cast(Condition, wanted))


def _check_operators(wanted: Any) -> None:
    if not isinstance(wanted, dict):
        return
    condition = cast(Condition, wanted)
    if not _has_operators(condition):
        check_filter(condition)
    for name in condition:
        if _has_operators(condition) and name not in OPERATORS:
            known = ", ".join(OPERATORS)
            raise InvalidRequest(f"filter: there is no operator {name!r}; there are {known}", {"field": "filter"})
