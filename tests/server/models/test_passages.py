"""Sentences and passages: no text is lost, each fits the model, and there are at most 64."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold_server.text.passages import MAX_PASSAGES, PASSAGE_PIECES, split_passages, spread
from threefold_server.text.sentences import pack, sentences
from threefold_server.text.wordpiece import count_pieces

ANY_TEXT = st.text(st.characters(), max_size=300)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Version 3.5 of a.py works. Good.", ["Version 3.5 of a.py works.", "Good."]),
        ("Dr. Who met J. K. Rowling at 5 p.m. in Bath. Why?", ["Dr. Who met J. K. Rowling at 5 p.m. in Bath.", "Why?"]),
        ('He said "Never." Then he left.', ['He said "Never."', "Then he left."]),
        ("你好。「再见！」好吗？是", ["你好。", "「再见！」", "好吗？", "是"]),
        ("नमस्ते। कैसे हो? كيف حالك؟ بخير", ["नमस्ते।", "कैसे हो?", "كيف حالك؟", "بخير"]),
        ("- one\n- two\n\n1. three", ["- one", "- two", "1. three"]),
    ],
)
def test_sentence_boundaries(text: str, expected: list[str]) -> None:
    assert [sentence.strip() for sentence in sentences(text)] == expected


@given(ANY_TEXT, st.integers(1, 50))
def test_splitting_loses_no_text(text: str, limit: int) -> None:
    assert "".join(sentences(text)) == text
    assert "".join(pack(text, limit, len)) == text


@given(ANY_TEXT, st.integers(100, 150))
def test_parts_are_within_the_limit(text: str, limit: int) -> None:
    assert all(len(part) <= limit for part in pack(text, limit, len))


def test_parts_end_at_the_widest_boundary_that_fits() -> None:
    assert list(pack("Aa bb. Cc dd. Ee.", 14, len)) == ["Aa bb. Cc dd. ", "Ee."]
    assert list(pack("Aa bb cc dd. Ee.", 8, len)) == ["Aa bb ", "cc dd. ", "Ee."]
    assert list(pack("one two" + "x" * 200, 100, len)) == ["one ", "two" + "x" * 97, "x" * 100, "xxx"]


@pytest.mark.parametrize("text", ["short", " padded \n", "word " * 150])
def test_text_that_fits_is_unchanged(text: str) -> None:
    assert split_passages(text) == [text]


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_blank_text_has_no_passages(text: str) -> None:
    assert split_passages(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "This is the first of many sentences. " * 200,
        "no end in sight " * 500,
        '{"a":1,"b":[2,3]},' * 300,
        "中文没有空格" * 200,
        "!" * 3_000,
        "가나다 " * 500,
        "a" * 50_000 + " b" * 300,
    ],
    ids=["sentences", "words", "json", "chinese", "punctuation", "korean", "giant word"],
)
def test_passages_fit_the_embedder(text: str) -> None:
    passages = split_passages(text)
    assert len(passages) > 1
    assert all(0 < count_pieces(passage) <= PASSAGE_PIECES for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


@given(ANY_TEXT)
@settings(deadline=None, max_examples=50)
def test_any_text_has_passages(text: str) -> None:
    assert bool(split_passages(text * 5)) == bool(text.strip())


def test_passages_of_a_huge_text_are_limited_and_cover_both_ends() -> None:
    passages = split_passages(" ".join(f"Sentence number {i} is here." for i in range(20_000)))
    assert len(passages) == MAX_PASSAGES
    assert passages[0].startswith("Sentence number 0 is")
    assert passages[-1].endswith("Sentence number 19999 is here.")


def test_spread_is_even() -> None:
    assert spread(list("abc"), 3) == ["a", "b", "c"]
    assert spread([str(i) for i in range(101)], 5) == ["0", "25", "50", "75", "100"]
