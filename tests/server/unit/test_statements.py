"""The rules that compare two statements without a model; undecided pairs get no relation."""

from __future__ import annotations

import pytest

from threefold_server.rules.statements import relation_by_rule


@pytest.mark.parametrize(
    ("new", "known", "relation"),
    [
        ("Ana likes tea.", "ana likes  TEA", "same"),
        ("Ana's email is a2@example.org.", "Ana's email is a1@example.org.", "excludes"),
        ("My budget is 500.", "My budget is 400.", "excludes"),
        ("The price of the boat is 14.", "The price of the boat is 12.", "excludes"),
        ("The staging host changed to h2.", "The staging host is h1.", "excludes"),
        ("The price of the boat is 14.", "The price of the car is 12.", None),
        ("The price is 14.", "The price is 12.", None),
        ("My friend is Bo.", "My friend is Cy.", None),
        ("My budget is maybe 500.", "My budget is 400.", None),
        ("My city is Oslo.", "My city is a good place.", None),
        ("Ana likes coffee.", "Ana likes tea.", None),
    ],
)
def test_relation_of_two_statements(new: str, known: str, relation: str | None) -> None:
    assert relation_by_rule(new, known) == relation
    assert relation_by_rule(known, new) == relation
