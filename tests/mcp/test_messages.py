"""A lone surrogate in a message is replaced by a mark; other text is unchanged."""

from __future__ import annotations

import json

import pytest

from threefold_server.mcp.messages import replace_surrogates


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"caf\u00e9 \ud83d\ude00", "café 😀"),
        (r"cut \ud83d", "cut �"),
        (r"\uDE00 cut", "� cut"),
        (r"\ud83d\ud83d\ude00", "�😀"),
        (r"\ud83d\n\"\ude00", '�\n"�'),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\ud83d", "\\�"),
        ("😀 ud83d", "😀 ud83d"),
    ],
)
def test_only_lone_surrogates_are_replaced(escaped: str, text: str) -> None:
    assert json.loads(replace_surrogates(f'"{escaped}"')) == text
