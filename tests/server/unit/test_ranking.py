"""The ranking by words, meaning, windows, sessions, speakers and facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold_server.rules.candidates import Corpus, Row
from threefold_server.rules.ranking import Ranked, rank
from threefold_server.text.terms import lexical_text, query_terms, terms

CORPUS = Corpus(passages=100, average_length=6.0)


def key(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16))


def name(key: UUID) -> str:
    return key.bytes.decode().strip()


def known(
    query: str,
    source: str,
    seq: int,
    text: str,
    *,
    part: int = 0,
    speaker: str | None = None,
    at: int = 0,
    cosine: float | None = None,
) -> list[Row]:
    """Return the rows of one passage: its hits, and its cosine if it has one."""
    counts = Counter(terms(lexical_text(speaker, None, text)))
    place = Row(key(source), seq, part, speaker, at, counts.total())
    hits = [place._replace(term=term, tf=counts[term]) for term in query_terms(query) if term in counts]
    return hits if cosine is None else [*hits, place._replace(cosine=cosine)]


def order(ranked: Iterable[Ranked]) -> list[tuple[str, int]]:
    return [(name(item.source), item.seq) for item in ranked]


def by_place(ranked: Iterable[Ranked]) -> dict[tuple[str, int], Ranked]:
    return {(name(item.source), item.seq): item for item in ranked}


def test_empty_index_gives_no_results() -> None:
    assert rank("gearbox", [], CORPUS) == []


def test_single_candidate_is_ranked() -> None:
    (only,) = rank("gearbox", known("gearbox", "s", 1, "the gearbox broke"), Corpus(1, 2.0))
    assert 0 < only.score <= 1
    assert only.parts.coverage == 1
    assert only.parts.cosine is None


def test_rare_word_counts_more_than_a_common_one() -> None:
    query = "pump gearbox"
    common = [row for seq in range(1, 30, 3) for row in known(query, "s", seq, "the pump runs")]
    ranked = rank(query, [*common, *known(query, "t", 1, "the gearbox runs")], CORPUS)
    assert order(ranked)[0] == ("t", 1)
    assert ranked[0].parts.coverage > 0.5 > ranked[1].parts.coverage


def test_more_and_more_frequent_query_words_rank_higher() -> None:
    query = "red gearbox"
    texts = ["a red thing, so quiet", "a red gearbox, quiet", "a gearbox, red gearbox"]
    rows = [row for i, text in enumerate(texts) for row in known(query, f"s{i}", 1, text)]
    assert order(rank(query, rows, CORPUS)) == [("s2", 1), ("s1", 1), ("s0", 1)]


def test_word_counts_less_in_a_longer_passage() -> None:
    long = "the gearbox and many other things that somebody once saw in some workshop or garage"
    rows = [*known("gearbox", "short", 1, "a gearbox"), *known("gearbox", "long", 1, long)]
    ranked = by_place(rank("gearbox", rows, CORPUS))
    assert ranked["short", 1].parts.turn > ranked["long", 1].parts.turn


def test_ranking_by_meaning_without_shared_words() -> None:
    rows = [*known("", "s", 1, "cat", cosine=0.2), *known("", "s", 9, "dog", cosine=0.6)]
    ranked = rank("", rows, CORPUS)
    assert order(ranked) == [("s", 9), ("s", 1)]
    assert [item.parts.cosine for item in ranked] == [0.6, 0.2]
    assert [item.parts.coverage for item in ranked] == [0, 0]


def test_words_and_meaning_together_rank_highest() -> None:
    query = "broken gearbox"
    rows = [
        *known(query, "words", 1, "the gearbox broke", cosine=0.1),
        *known(query, "both", 1, "the gearbox broke", cosine=0.6),
        *known(query, "meaning", 1, "the transmission failed", cosine=0.6),
    ]
    assert order(rank(query, rows, CORPUS))[0] == ("both", 1)


def test_unknown_cosine_counts_as_the_lowest_known_one() -> None:
    query = "gearbox"
    rows = [
        *known(query, "pending", 1, "gearbox"),
        *known(query, "near", 1, "gearbox", cosine=0.6),
        *known(query, "far", 1, "gearbox", cosine=0.3),
    ]
    ranked = by_place(rank(query, rows, CORPUS))
    assert ranked["near", 1].score > ranked["pending", 1].score == ranked["far", 1].score
    assert ranked["pending", 1].parts.cosine is None


def test_answer_is_ranked_up_by_the_question_beside_it() -> None:
    query = "which gearbox"
    rows = [
        *known(query, "s", 4, "what gearbox is it", cosine=0.5),
        *known(query, "s", 5, "the blue one", cosine=0.2),
        *known(query, "s", 7, "the blue one", cosine=0.2),
        *known(query, "t", 5, "the blue one", cosine=0.2),
    ]
    ranked = rank(query, rows, CORPUS)
    assert order(ranked)[:2] == [("s", 4), ("s", 5)]
    found = by_place(ranked)
    assert found["s", 5].parts.turn == found["s", 7].parts.turn
    assert found["s", 5].parts.window > found["s", 7].parts.window == found["t", 5].parts.window


def test_unknown_neighbour_counts_as_a_weak_one() -> None:
    rows = [
        *known("", "s", 1, "cat", cosine=0.6),
        *known("", "s", 2, "dog", cosine=0.4),
        *known("", "t", 1, "cat", cosine=0.6),
        *known("", "u", 1, "cow", cosine=0.2),
    ]
    found = by_place(rank("", rows, CORPUS))
    assert found["s", 1].parts.window > found["t", 1].parts.window > found["u", 1].parts.window


def test_window_adds_the_words_of_its_turns() -> None:
    query = "red gearbox"
    rows = [
        *known(query, "s", 1, "it is red"),
        *known(query, "s", 2, "the gearbox"),
        *known(query, "t", 1, "it is red"),
        *known(query, "u", 2, "the gearbox"),
    ]
    found = by_place(rank(query, rows, CORPUS))
    assert found["s", 1].parts.window > found["t", 1].parts.window
    assert found["s", 2].parts.window > found["u", 2].parts.window


def test_turn_in_a_session_about_the_topic_ranks_higher() -> None:
    query = "gearbox repair costs"
    rows = [
        *known(query, "about", 1, "the gearbox"),
        *known(query, "about", 20, "its repair"),
        *known(query, "about", 40, "what it costs"),
        *known(query, "other", 1, "the gearbox"),
    ]
    found = by_place(rank(query, rows, CORPUS))
    assert found["about", 1].parts.session > found["other", 1].parts.session
    assert found["about", 1].score > found["other", 1].score


def test_speaker_named_in_the_query_ranks_higher() -> None:
    query = "Ana's gearbox"
    rows = [
        *known(query, "s", 1, "a gearbox", speaker="Ana", cosine=0.5),
        *known(query, "t", 1, "Ana, a gearbox", speaker="Bo", cosine=0.5),
    ]
    found = by_place(rank(query, rows, CORPUS))
    assert (found["s", 1].parts.speaker, found["t", 1].parts.speaker) == (1, 0)
    assert found["s", 1].score > found["t", 1].score


def test_fact_about_the_named_speaker_counts_like_a_turn_of_the_speaker() -> None:
    query = "Ana's gearbox"
    rows = [
        *known(query, "s", 1, "hm", speaker="Ana"),
        *known(query, "f", 0, "Ana owns a gearbox"),
        *known(query, "g", 0, "the gearbox is blue"),
    ]
    found = by_place(rank(query, rows, CORPUS))
    assert (found["f", 0].parts.speaker, found["g", 0].parts.speaker) == (1, 0)


def test_window_of_a_fact_is_the_fact() -> None:
    query = "gearbox"
    rows = [*known(query, "f", 0, "a gearbox", cosine=0.4), *known(query, "f", 1, "gearbox gearbox", cosine=0.9)]
    fact = by_place(rank(query, rows, CORPUS))["f", 0]
    assert fact.parts.window == fact.parts.turn


def test_fact_ranks_up_the_turns_it_cites() -> None:
    query = "which gearbox does Ana own"
    rows = [
        *known(query, "f", 0, "Ana does own a blue gearbox", cosine=0.7),
        *known(query, "s", 1, "the blue one", cosine=0.2),
        *known(query, "s", 9, "the blue one", cosine=0.2),
    ]
    cited = {key("f"): [(key("s"), 1), (key("s"), 500), (key("gone"), 1)], key("unknown"): [(key("s"), 9)]}
    found = by_place(rank(query, rows, CORPUS, cited=cited))
    assert found["s", 1].parts.turn == found["f", 0].parts.turn > found["s", 9].parts.turn
    assert found["s", 1].score > found["s", 9].score
    assert found["s", 9] == by_place(rank(query, rows, CORPUS))["s", 9]


def test_weak_fact_does_not_rank_its_turns_down() -> None:
    query = "gearbox"
    rows = [*known(query, "f", 0, "hm", cosine=0.1), *known(query, "s", 1, "the gearbox", cosine=0.7)]
    lifted = by_place(rank(query, rows, CORPUS, cited={key("f"): [(key("s"), 1)]}))
    assert lifted["s", 1] == by_place(rank(query, rows, CORPUS))["s", 1]


def test_long_item_scores_by_its_best_part_and_covers_with_all_parts() -> None:
    query = "red gearbox"
    rows = [
        *known(query, "long", 1, "the gearbox it is", cosine=0.3),
        *known(query, "long", 1, "painted in red", part=1, cosine=0.8),
        *known(query, "one", 1, "painted in red", cosine=0.8),
    ]
    ranked = by_place(rank(query, rows, CORPUS))
    assert len(ranked) == 2
    assert ranked["long", 1].parts.turn == ranked["one", 1].parts.turn
    assert ranked["long", 1].parts.coverage == pytest.approx(1)
    assert ranked["one", 1].parts.coverage < 1
    assert ranked["long", 1].parts.cosine == 0.8


def test_query_word_found_nowhere_lowers_the_coverage() -> None:
    (only,) = rank("gearbox warranty", known("gearbox warranty", "s", 1, "the gearbox"), CORPUS)
    assert 0 < only.parts.coverage < 0.5


def test_min_score_tests_the_larger_of_cosine_and_coverage() -> None:
    query = "gearbox warranty"
    rows = [
        *known(query, "s", 1, "gearbox warranty", cosine=0.1),
        *known(query, "t", 1, "hm", cosine=0.8),
        *known(query, "u", 1, "hm", cosine=0.3),
        *known(query, "v", 1, "the gearbox"),
    ]
    assert len(rank(query, rows, CORPUS)) == 4
    assert set(order(rank(query, rows, CORPUS, min_score=0.7))) == {("s", 1), ("t", 1)}
    assert rank(query, rows, CORPUS, min_score=1.0)[0].source == key("s")


def test_min_score_of_cosine_tests_words_only_without_a_vector() -> None:
    query = "gearbox warranty"
    rows = [
        *known(query, "words", 1, "gearbox warranty", cosine=0.29),
        *known(query, "far", 1, "gearbox warranty"),
        *known(query, "near", 1, "hm", cosine=0.31),
        *(row._replace(pending=True) for row in known(query, "new", 1, "gearbox warranty")),
        *(row._replace(pending=True) for row in known(query, "other", 1, "the red gearbox of the blue car")),
    ]
    found = set(order(rank(query, rows, CORPUS, min_score=0.3, min_score_of="cosine")))
    assert found == {("near", 1), ("new", 1), ("other", 1)}
    assert set(order(rank(query, rows, CORPUS, min_score=0.9, min_score_of="cosine"))) == {("new", 1)}
    assert len(rank(query, rows, CORPUS, min_score=0.3)) == 5


def test_min_score_tests_words_if_the_query_has_no_vector() -> None:
    rows = [*known("gearbox", "s", 1, "the gearbox"), *known("gearbox", "t", 1, "gearbox")]
    assert len(rank("gearbox", rows, CORPUS, min_score=0.3, min_score_of="cosine")) == 2


def test_best_of_only_poor_matches_is_below_min_score() -> None:
    rows = [row for seq in range(1, 20) for row in known("bye", "s", seq, "the gearbox", cosine=0.1)]
    ranked = rank("bye", rows, CORPUS)
    assert ranked[0].score > 0.3
    assert rank("bye", rows, CORPUS, min_score=0.3) == []


def test_passage_without_word_and_cosine_is_no_candidate() -> None:
    rows = [
        Row(key("s"), 1, 0, "Ana", 0, 3),
        Row(key("s"), 3, 0, None, 0, 3, "elsewhere", 1),
        *known("gearbox", "s", 2, "gearbox"),
    ]
    assert order(rank("gearbox", rows, CORPUS)) == [("s", 2)]


def test_negative_cosine_counts_as_zero() -> None:
    assert rank("gearbox", known("gearbox", "s", 1, "cat", cosine=-0.2), CORPUS) == []
    (only,) = rank("gearbox", known("gearbox", "s", 1, "gearbox", cosine=-0.2), CORPUS)
    assert only.parts.cosine == 0
    assert only.score > 0


def test_equal_scores_are_ordered_newest_first() -> None:
    rows = [
        *known("gearbox", "o", 1, "gearbox", at=1),
        *known("gearbox", "new", 1, "gearbox", at=9),
        *known("gearbox", "mid", 2, "gearbox", at=5),
        *known("gearbox", "mid", 9, "gearbox", at=5),
    ]
    ranked = rank("gearbox", rows, CORPUS)
    assert len({item.score for item in ranked if item.source != key("mid")}) == 1
    outer = [place for place in order(ranked) if place[0] != "mid"]
    assert outer == [("new", 1), ("o", 1)]
    assert [place for place in order(ranked) if place[0] == "mid"] == [("mid", 9), ("mid", 2)]


def test_longer_of_two_equal_matches_is_first() -> None:
    rows = [
        *known("", "short", 1, "yes, really", cosine=0.5, at=9),
        *known("", "long", 1, "we took the night train from Lisbon to Porto with both children", cosine=0.5),
    ]
    assert order(rank("", rows, CORPUS)) == [("long", 1), ("short", 1)]


def test_limit_applies_after_the_filter() -> None:
    query = "gearbox"
    rows = [row for seq in range(1, 9, 2) for row in known(query, "s", seq, "gearbox", cosine=seq / 10)]
    assert order(rank(query, rows, CORPUS, limit=2)) == [("s", 7), ("s", 5)]
    assert rank(query, rows, CORPUS, limit=0) == []


def test_texts_without_words_are_ranked_by_meaning() -> None:
    rows = [*known("gearbox", "s", 1, "👍", cosine=0.1), *known("gearbox", "s", 5, "🚗", cosine=0.4)]
    assert order(rank("gearbox", rows, Corpus(2, 0.0))) == [("s", 5), ("s", 1)]


WORDS = ["red", "gearbox", "ana", "the", "bo"]
passages = st.builds(
    Row,
    source=st.sampled_from([key("s"), key("t"), key("f")]),
    seq=st.integers(0, 5),
    part=st.integers(0, 2),
    speaker=st.none(),
    at=st.just(0),
    length=st.just(3),
    term=st.sampled_from([None, *WORDS]),
    tf=st.integers(1, 3),
    cosine=st.none() | st.floats(-1, 1),
    pending=st.just(False),
)


@given(
    st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join),
    st.lists(passages, max_size=20, unique_by=lambda row: (row.source, row.seq, row.part, row.term)),
    st.integers(0, 20),
)
def test_scores_are_finite_and_independent_of_the_row_order(query: str, rows: list[Row], size: int) -> None:
    cited = {key("f"): [(key("s"), 1), (key("t"), 2)]}
    ranked = rank(query, rows, Corpus(size, size / 3), cited=cited)
    assert len(by_place(ranked)) == len(ranked)
    assert [item.score for item in ranked] == sorted((item.score for item in ranked), reverse=True)
    for item in ranked:
        values = [value for value in item.parts.model_dump().values() if value is not None]
        assert all(0 <= value <= 1 + 1e-9 for value in [item.score, *values])
    shuffled = by_place(rank(query, rows[::-1], Corpus(size, size / 3), cited=cited))
    assert {place: item.score for place, item in by_place(ranked).items()} == pytest.approx(
        {place: item.score for place, item in shuffled.items()}
    )
