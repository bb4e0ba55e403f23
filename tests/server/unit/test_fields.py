"""Which texts of a value are indexed for search by meaning."""

from __future__ import annotations

from typing import Any

import pytest

from threefold_server.text.item_fields import item_passages, texts_at

VALUE: dict[str, Any] = {
    "title": "Trains",
    "year": 1999,
    "seen": True,
    "none": None,
    "author": {"name": "Ana", "town": "Bern"},
    "notes": [{"text": "one", "by": "x"}, {"text": "two"}, "loose"],
}


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("title", ["Trains"]),
        ("year", ["1999"]),
        ("seen", ["True"]),
        ("author.name", ["Ana"]),
        ("author", ["name: Ana\ntown: Bern"]),
        ("notes[0].text", ["one"]),
        ("notes[-1]", ["loose"]),
        ("notes[*].text", ["one", "two"]),
        ("{title,author.town}", ["Trains", "Bern"]),
        ("author.{name,town}", ["Ana", "Bern"]),
        ("author.*", ["Ana", "Bern"]),
        ("$", ["title: Trains\nyear: 1999\nseen: True\nauthor: name: Ana\ntown: Bern\nnotes: "
               "text: one\nby: x, text: two, loose"]),
        ("none", []),
        ("missing.deep", []),
        ("notes[7]", []),
        ("title[0]", []),
        ("notes[999999999999]", []),
        ("title.deeper", []),
    ],
)  # fmt: skip
def test_texts_at_paths(path: str, texts: list[str]) -> None:
    assert texts_at(VALUE, path) == texts


def test_passages_are_distinct_and_have_words() -> None:
    assert item_passages({"a": "same", "b": "same", "c": "...", "d": ""}, ["a", "b", "c", "d"], str) == ["same"]
    assert item_passages({"a": "words"}, [], str) == []


def test_encoded_data_is_not_indexed() -> None:
    assert item_passages({"picture": "data:image/png;base64," + "A" * 500}, ["$"], str) == ["picture:"]


def test_long_text_is_split_into_a_limited_number_of_passages() -> None:
    long = {"story": "Every evening the old train to Bern was late again. " * 2_000}
    assert 1 < len(item_passages(long, ["story"], str)) <= 64
    many = {"rows": [f"row number {n}" for n in range(500)]}
    assert len(item_passages(many, ["rows[*]"], str)) == 64
