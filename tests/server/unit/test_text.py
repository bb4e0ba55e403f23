"""Text analysis: terms in many languages, identifiers, indexed texts, and the speakers that a query names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold_server.text.terms import (
    MAX_QUERY_TERMS,
    MAX_TERM_CHARS,
    STOPWORDS,
    dense_text,
    lexical_text,
    query_terms,
    speakers_named,
    terms,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("adopted", "adopting"),
        ("CAMPING", "camped"),
        ("Caroline's", "caroline"),
        ("Caroline’s", "Caroline's"),
        ("Straße", "STRASSE"),
        ("München", "munchen"),
        ("niños", "nino"),
        ("José", "jose"),
        ("ＺＸ９９", "zx99"),
        ("ﬁle", "files"),
        ("l'homme", "l homme"),
        ("İzmir", "izmir"),
        ("Привет", "привет"),
    ],
)
def test_spellings_of_one_word_are_one_term(one: str, other: str) -> None:
    assert terms(one) == terms(other)
    assert terms(one) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ZX-99", ["zx", "99", "zx-99"]),
        ("2.3.1", ["2", "3", "1", "2.3.1"]),
        ("Anna@host.org", ["anna", "host", "org", "anna@host.org"]),
        ("user_id", ["user", "id", "user_id"]),
        ("self-made", ["self", "made"]),
        ("end.Next", ["end", "next"]),
    ],
)
def test_identifier_is_found_complete_and_by_its_parts(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京都", ["東京", "京都"]),
        ("猫", ["猫"]),
        ("한국어", ["한국", "국어"]),
        ("ガス", ["ガス"]),
        ("v2東京", ["v2", "東京"]),
        ("हिन्दी", ["हनद"]),
    ],
)
def test_scripts_without_spaces_are_split_into_pairs(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_terms_repeat_as_in_the_text() -> None:
    assert terms("a cat saw the cats") == ["cat", "saw", "cat"]


def test_function_words_and_small_talk_are_left_out() -> None:
    assert terms("Hello, what did you do about the gearbox? Thanks, bye! It wasn't mine.") == ["gearbox"]
    assert terms("Wo ist das Ersatzteil? ¿Dónde está la pieza?") == ["ersatzteil", "pieza"]


def test_names_and_words_of_other_languages_are_kept() -> None:
    assert STOPWORDS.isdisjoint({"will", "may", "die", "war", "hat", "son", "con", "un", "after", "before"})


def test_text_of_function_words_keeps_them() -> None:
    assert terms("To be or not to be") == ["to", "be", "or", "not", "to", "be"]
    assert terms("To be or not to be, Hamlet") == ["hamlet"]
    assert terms("...!") == []


def test_query_has_each_term_once_up_to_a_limit() -> None:
    assert query_terms("red, blue and blue") == ["blue", "red"]
    assert len(query_terms(" ".join(f"word{i}" for i in range(1_000)))) == MAX_QUERY_TERMS


def test_long_term_is_cut() -> None:
    assert [len(term) for term in terms("x" * 100_000)] == [MAX_TERM_CHARS]


@given(st.text())
def test_terms_of_any_text_can_be_stored(text: str) -> None:
    for term in terms(text):
        assert 0 < len(term) <= MAX_TERM_CHARS
        assert term.encode()


def test_terms_are_the_same_in_many_threads() -> None:
    texts = [f"running {i} adopted agencies considered nationally {i}" for i in range(300)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(terms, texts)) == [terms(text) for text in texts]


def test_indexed_texts_name_the_speaker_and_the_day() -> None:
    said = datetime(2023, 3, 23, 9, 5, tzinfo=UTC)
    assert lexical_text("Caroline", said, "I ran.") == "[23 March 2023] Caroline: I ran."
    assert lexical_text(None, None, "I ran.") == "I ran."
    assert dense_text("Caroline", "I ran.") == "Caroline: I ran."
    assert dense_text(None, "I ran.") == "I ran."


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What is Caroline's plan?", {"Caroline"}),
        ("did MELANIE call Caroline", {"Caroline", "Melanie"}),
        ("what does Schmidt want", {"Anna Schmidt"}),
        ("田中さんは?", {"田中"}),
        ("what about Carol?", set[str]()),
        ("", set[str]()),
    ],
)
def test_speakers_are_recognised_by_any_of_their_words(query: str, expected: set[str]) -> None:
    assert speakers_named(query, ["Caroline", "Melanie", "Anna Schmidt", "田中"]) == expected


@given(st.text(alphabet="ab c\n\té\u0301中1-", max_size=400))
def test_long_text_in_pieces_has_the_same_terms(content: str) -> None:
    whole = terms(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threefold_server.text.terms.PIECE_CHARS", 10)
        patch.setattr("threefold_server.text.terms.STEMS_AT_ONCE", 3)
        assert terms(content) == whole
