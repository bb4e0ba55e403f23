"""Parsing of the dumps that CrewAI makes of tasks and conversations."""

from __future__ import annotations

import pytest

from threefold_crewai.dumps import parse_exchange


@pytest.mark.parametrize(
    ("text", "asked", "role", "said"),
    [
        ("Task: a\nAgent: b\nResult: c", "a", "b", "c"),
        ("Input: a\nb\nAgent: c\nResult: d\ne", "a\nb", "c", "d\ne"),
        ("Task: a\nAgent: b\nExpected result: c\nResult: d", "a", "b", "d"),
        ("Task: a\nAgent: b\nExpected result: c\nc\nResult: d\nResult: e", "a", "b", "d\nResult: e"),
        ("Task: \nAgent: \nResult: ", "", "", ""),
        ("Task: a\nAgent: b\nAgent: c\nResult: d", "a", "b\nAgent: c", "d"),
    ],
)
def test_dump_is_parsed(text: str, asked: str, role: str, said: str) -> None:
    found = parse_exchange(text, None)
    assert found is not None
    assert (found.question, found.role, found.answer, found.by_user) == (asked, role, said, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Task: a",
        "Task: a\nAgent: b",
        "a\nAgent: b\nResult: c",
        "Task: a\nResult: c\nAgent: b",
        "x Task: a\nAgent: b\nResult: c",
    ],
)
def test_other_text_is_no_dump(text: str) -> None:
    assert parse_exchange(text, None) is None


@pytest.mark.parametrize("unit", ["\nAgent: ", "\nAgent: a\nExpected result: b", "\nExpected result: "])
def test_dump_is_parsed_in_linear_time(unit: str) -> None:
    """A pattern with three wildcards took cubic time: minutes for this text."""
    assert parse_exchange(f"Task: {unit * 50_000}", None) is None
