"""WordPiece returns the ids of the BERT tokenizer, with which the expected ids were made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold_server.text.wordpiece import count_pieces, encode

CLS, SEP, UNK = 101, 102, 100


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("This is an example sentence", [2023, 2003, 2019, 2742, 6251]),
        ("Hello, World! it's 3.14", [7592, 1010, 2088, 999, 2009, 1005, 1055, 1017, 1012, 2403]),
        ("unaffable embeddings", [14477, 20961, 3468, 7861, 8270, 4667, 2015]),
        ("Ünïcödé naïve café ÅÉ", [27260, 15743, 7668, 29347]),
        ("東京 is 東京都", [1879, 1755, 2003, 1879, 1755, 1961]),
        (
            "가나다 한국어",
            [1455, 30006, 29992, 30006, 29993, 30006, 1469, 30006, 30021, 29991, 30014, 30020, 29999, 30008],
        ),
        ("İstanbul ΣΑΣ", [9960, 1173, 14608, 29733]),
        ("a\x00b\x0cc\ufffdd\u200be", [5925, 3207]),
        ("tab\tnew\nline\xa0nbsp\u3000wide", [21628, 2047, 2240, 1050, 5910, 2361, 2898]),
        ("😀 👍", [100, 100]),
        ("e\u0301te\u0301", [3802, 2063]),
        ("x_y-z~`$", [1060, 1035, 1061, 1011, 1062, 1066, 1036, 1002]),
        ("an unassigned \u0378 code point", [2019, 14477, 18719, 19225, 100, 3642, 2391]),
        ("¿Qué? «oui» — …", [1094, 10861, 1029, 1077, 15068, 2072, 1090, 1517, 1529]),
    ],
)
def test_ids_are_those_of_bert(text: str, ids: list[int]) -> None:
    assert encode(text, 256) == [CLS, *ids, SEP]


def test_special_tokens_in_a_text_are_plain_text() -> None:
    assert CLS not in encode("[CLS] [SEP]", 256)[1:-1]
    assert SEP not in encode("[CLS] [SEP]", 256)[1:-1]


def test_word_of_more_than_100_letters_is_unknown() -> None:
    assert encode("a" * 101, 256) == [CLS, UNK, SEP]
    assert UNK not in encode("a" * 100, 256)


def test_ids_are_limited() -> None:
    ids = encode("word " * 1_000, 16)
    assert len(ids) == 16
    assert (ids[0], ids[-1]) == (CLS, SEP)


def test_pieces_are_counted_without_special_tokens() -> None:
    assert count_pieces("") == 0
    assert count_pieces("embeddings, please") == 6


@given(st.text(st.characters(), max_size=300))
@settings(deadline=None)
def test_any_text_is_encoded(text: str) -> None:
    ids = encode(text, 1_000)
    assert len(ids) == count_pieces(text) + 2
    assert all(0 <= index < 30_522 for index in ids)
