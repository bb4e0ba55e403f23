"""Text is cut between characters as readers see them; the rule is compared with the `regex` package."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from threefold.graphemes import LONGEST, MARK, boundary_after, boundary_before, head, middle_cut

CLUSTERS = {
    "latin": "e\u0301",
    "vietnamese": "o\u031b\u0301",
    "devanagari": "क्षि",
    "bengali": "ক্ষো",
    "tamil": "நி",
    "telugu": "స్త్రీ",
    "malayalam": "ക്ഷ",
    "thai": "กำ",
    "lao": "ກຳ",
    "khmer": "ស្ត្រី",
    "myanmar": "ကျွ",
    "tibetan": "རྐྱེ",
    "hebrew": "שָּׁ",
    "arabic": "بِّ",
    "arabic number": "\u06dd١",
    "hangul jamo": "\u1112\u1161\u11ab",
    "hangul syllable": "각\u11a8",
    "half-width kana": "ｶﾞ",
    "flag": "🇩🇪",
    "subdivision": "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "skin tone": "👍🏽",
    "family": "👨‍👩‍👧‍👦",
    "profession": "👩🏾‍💻",
    "rainbow": "🏳️‍🌈",
    "keycap": "1️⃣",
    "heart": "❤️",
    "enclosed": "a\u20dd",
    "line end": "\r\n",
    "non-joiner": "ن\u200c",
}
pieces = st.one_of(
    st.sampled_from([char for cluster in CLUSTERS.values() for char in cluster]),
    st.sampled_from(list(CLUSTERS.values())),
    st.characters(exclude_categories=["Cs", "Cn"]),
)
texts = st.lists(pieces, max_size=30).map("".join)


def boundaries(text: str) -> set[int]:
    """Return the positions between clusters in the `regex` package, and both ends."""
    return {0, *(match.end() for match in regex.finditer(r"\X", text))}


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_cut_falls_inside_a_cluster(name: str) -> None:
    cluster = CLUSTERS[name]
    text = f"x {cluster}{cluster}{cluster} y"
    size = len(cluster)
    starts = {2, 2 + size, 2 + 2 * size, 2 + 3 * size}
    for at in range(len(text) + 1):
        for place in (boundary_before(text, at), boundary_after(text, at)):
            assert place in starts or place <= 1 or place > 2 + 3 * size


@given(texts, st.integers(0, 40))
def test_cut_is_at_a_unicode_boundary(text: str, at: int) -> None:
    before, after = boundary_before(text, at), boundary_after(text, at)
    assert before <= min(at, len(text)) <= after
    assert {before, after} <= boundaries(text)


@given(texts, st.integers(0, 40))
def test_cut_text_consists_of_clusters_of_its_start_and_end(text: str, limit: int) -> None:
    cut = middle_cut(text, limit)
    assert len(cut) <= limit or cut == text
    if cut != text and MARK in cut:
        beginning, _, end = cut.partition(MARK)
        own, first, last = (regex.findall(r"\X", part) for part in (text, beginning, end))
        assert first == own[: len(first)]
        assert last == own[len(own) - len(last) :]


@pytest.mark.parametrize("limit", range(12))
def test_limit_below_the_mark_keeps_only_the_start(limit: int) -> None:
    text = "🇩🇪🇫🇷abcdefghijkl"
    assert len(middle_cut(text, limit)) <= limit
    assert head(text, 3) == "🇩🇪"
    assert middle_cut("abcdefgh", 4) == "abcd"


def test_plain_text_is_cut_at_the_requested_position() -> None:
    text = "Grüße, ça va? 日本語 και ελληνικά и русский"
    assert all(boundary_before(text, at) == boundary_after(text, at) == at for at in range(len(text) + 1))


def test_endless_cluster_is_cut_with_limited_work(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "e" + "\u0301" * 100_000
    looked: list[str] = []
    category = unicodedata.category

    def look(char: str) -> str:
        looked.append(char)
        return category(char)

    monkeypatch.setattr(unicodedata, "category", look)
    assert boundary_before(text, 50_000) == boundary_after(text, 50_000) == 50_000
    assert len(looked) <= 4 * LONGEST
