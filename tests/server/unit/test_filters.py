"""Filters of items: comparisons respect types and missing fields."""

from __future__ import annotations

from typing import Any

import pytest

from threefold.errors import InvalidRequest
from threefold_server.rules.filters import check_filter, matches

VALUE: dict[str, Any] = {
    "n": 9,
    "x": 1.0,
    "yes": True,
    "text": "9",
    "none": None,
    "tags": ["x", "y"],
    "d": {"k": 1, "l": {"m": 2}},
    "d.k": "dotted",
}


@pytest.mark.parametrize(
    "condition",
    [
        {},
        {"n": 9},
        {"n": 9.0},
        {"x": 1},
        {"yes": True},
        {"none": None},
        {"tags": ["x", "y"]},
        {"d": {"k": 1}},
        {"d": {"l": {"m": {"$gt": 1}}}},
        {"d": {}},
        {"d.k": "dotted"},
        {"n": {"$gt": 8, "$lt": 10}},
        {"n": {"$lt": 10}},  # compared as text, "9" would be more than "10"
        {"text": {"$gt": "10"}},
        {"n": {"$gte": 9, "$lte": 9}, "text": {"$eq": "9"}},
        {"n": {"$ne": 8}},
        {"d": {"$eq": {"k": 1, "l": {"m": 2}}}},
        {"d": {"$ne": {"k": 1}}},
    ],
)
def test_matching_filters(condition: dict[str, Any]) -> None:
    check_filter(condition)
    assert matches(VALUE, condition)


@pytest.mark.parametrize(
    "condition",
    [
        {"n": "9"},
        {"text": 9},
        {"n": {"$gt": "8"}},
        {"text": {"$gt": 8}},
        {"yes": 1},
        {"x": True},
        {"yes": {"$gt": 0}},
        {"missing": None},
        {"missing": {"$ne": 1}},
        {"missing": {"$gt": 4}},
        {"none": {"$gt": 4}},
        {"tags": {"$gt": 4}},
        {"tags": ["x"]},
        {"tags": ["y", "x"]},
        {"d": {"k": 2}},
        {"d": {"z": 1}},
        {"n": {"k": 1}},
        {"n": {}},
        {"d": {"$eq": {"k": 1}}},
        {"n": {"$gt": 8, "$lt": 9}},
        {"n": 9, "text": "8"},
    ],
)
def test_filters_that_do_not_match(condition: dict[str, Any]) -> None:
    check_filter(condition)
    assert not matches(VALUE, condition)


@pytest.mark.parametrize(
    "condition",
    [
        {"n": {"$in": [1]}},
        {"n": {"$gt": 1, "k": 1}},
        {"$or": [{"n": 1}]},
        {"d": {"l": {"m": {"$regex": "."}}}},
    ],
)
def test_unknown_operator_is_refused_at_any_depth(condition: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="filter"):
        check_filter(condition)
