"""Texts and paths of a caller cost at most linear work."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold.contract import common
from threefold.errors import InvalidRequest
from threefold_server.consolidation.candidates import grounded
from threefold_server.consolidation.dates import ground_dates
from threefold_server.mcp.messages import replace_surrogates
from threefold_server.models.lines import parts
from threefold_server.models.standing_rules import read_reply
from threefold_server.models.wrapping import unwrap
from threefold_server.rules.statements import relation_by_rule
from threefold_server.text import item_fields as fields
from threefold_server.text.indexed import own_words
from threefold_server.text.item_fields import Work, item_passages, routes, stored_passages, texts_at
from threefold_server.text.passages import split_passages
from threefold_server.text.redaction import redact
from threefold_server.text.sentences import sentences
from threefold_server.text.terms import terms
from threefold_server.text.tokens import count_tokens
from threefold_server.text.wordpiece import count_pieces

SMALL, GROWTH = 6_000, 8
NOTICEABLE = 0.05  # seconds of work below which a ratio means nothing
LINEAR = 3.5  # times GROWTH: quadratic work grows by 8 times GROWTH

READERS: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "terms": terms,
    "own_words": partial(own_words, redact=str),
    "sentences": lambda text: list(sentences(text)),
    "parts": lambda text: list(parts(text)),
    "split_passages": split_passages,
    "count_pieces": count_pieces,
    "count_tokens": count_tokens,
    "ground_dates": partial(ground_dates, said_at=datetime(2024, 1, 1, tzinfo=UTC)),
    "relation_by_rule": lambda text: relation_by_rule(text, f"{text}x"),
    "grounded": lambda text: grounded(text, []),
    "read_reply": read_reply,
    "unwrap": unwrap,
    "replace_surrogates": replace_surrogates,
    "check_json": lambda text: common.check_json({"a": text}, 8, 10_000_000),
    "routes": lambda text: _outcome(text),
}
FRAGMENTS = [
    *("a", "A1 ", " ", "\n", "0", "-", ". ", "!", '"', "(", "[", "{", "<", "/", "\\", "\\u0000", "\\ud83d", "é"),
    *("\u0301 ", "\u200b ", "中", "。", "👍", "\r\n", "never ", "? ", "1. ", "what ", "if ", "pretend ", "my name is "),
    *("1 day ago ", "last week ", "<think>", "</think>", "```\n", "[1] a: ", "withdrawn: [1] ", '" by [1]', ': "'),
    *("password=", "pin is ", "token ", "sk-", "eyJaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "xoxb-", "4111 ", "://a:"),
    *("data:", "A" * 60, "data:a/b;base64,", "*", "[*]", "[0]", "{a,b}", ".", "$"),
]  # fmt: skip
fragments = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3).map("".join)


def _outcome(path: str) -> object:
    try:
        return routes(path)
    except InvalidRequest as refusal:
        return refusal


def work(function: Callable[[str], object], text: str) -> float:
    """Return the lowest processor time of this thread in three runs, in seconds."""
    taken: list[float] = []
    for _ in range(3):
        start = time.thread_time()
        function(text)
        taken.append(time.thread_time() - start)
    return min(taken)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    start=st.sampled_from(["", "Task: ", "withdrawn: [1] ", "what ", "```a\n"]), unit=fragments, size=st.integers(1, 9)
)
def test_work_grows_linearly_with_the_text(name: str, start: str, unit: str, size: int) -> None:
    length = SMALL + size * 100
    short, long = (start + unit * (n // len(unit)) for n in (length, length * GROWTH))
    before, after = work(READERS[name], short), work(READERS[name], long)
    assert after < NOTICEABLE or after < before * GROWTH * LINEAR


@pytest.mark.parametrize("unit", ["\u200b ", "\u0301 ", " \n", "\u200b\n", "\x01 "])
def test_text_of_invisible_characters_is_cut_in_linear_time(unit: str) -> None:
    """Joining the pieces one by one copied the text for each piece: minutes for this text."""
    split_passages(unit * (1_000_000 // len(unit)))


def test_reply_is_parsed_in_linear_time() -> None:
    line = "withdrawn: [1] " + ': "' * 200_000
    assert read_reply(line).narrative == line


# Paths of items


@pytest.mark.parametrize(
    "path",
    ["{a,b}" * 7, "{a,b}." * 60, "{a,b,c}{d,e,f}{g,h,i}{j,k,l}{m,n,o}", "{" + ",".join(map(str, range(101))) + "}",
     "{*,a}" * 60, "a{[0],[1]}" * 20],
)  # fmt: skip
def test_path_with_too_many_alternatives_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expands to .* paths; at most 100 are allowed") as refusal:
        item_passages({"a": "words"}, [path], str)
    assert refusal.value.details == {"field": "index"}


@pytest.mark.parametrize("path", ["a." * 65 + "a", "[0]" * 65, "*." * 1_000, "{a,a}" * 65])
def test_path_with_too_many_steps_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="steps; at most 64 are allowed"):
        routes(path)


def test_choice_of_long_paths_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a choice with more than 64 steps"):
        routes("{" + "a." * 65 + "}")


@pytest.mark.parametrize("times", [2, 20, 60])
def test_repeated_choice_counts_once(times: int) -> None:
    assert routes("{a,a}" * times) == [("a",) * times]


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=64))
def test_number_of_routes_is_limited(sizes: list[int]) -> None:
    path = "".join("{" + ",".join(f"k{n}" for n in range(size)) + "}" for size in sizes)
    found = _outcome(path)
    if isinstance(found, list):
        assert len(found) <= fields.MAX_ROUTES  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize("indexed", [["*.*", "[*].*", "*.[*]", "{*,x}.*"], ["$", "rows", "rows.*"]])
def test_paths_that_visit_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch, indexed: list[str]) -> None:
    monkeypatch.setattr(fields, "MAX_NODES", 3_000)
    value: dict[str, Any] = {"rows": [[n] for n in range(1_000)]}
    with pytest.raises(InvalidRequest, match="visit more than 3,000 values"):
        item_passages(value, indexed * 3, str)


def test_all_items_of_a_request_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_NODES", 1_500)
    work = Work()
    value: dict[str, Any] = {"rows": list(range(1_000))}
    item_passages(value, ["rows[*]"], str, work)
    with pytest.raises(InvalidRequest, match="visit more than"):
        item_passages(value, ["rows[*]"], str, work)


def test_paths_that_lead_to_too_much_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_CHARS", 3_000)
    value: dict[str, Any] = {"a": {"b": {"c": "words " * 200}}}
    assert item_passages(value, ["$", "a"], str)
    with pytest.raises(InvalidRequest, match="select more than 3,000 characters"):
        item_passages(value, ["$", "a", "a.b"], str)


def test_stored_item_beyond_the_limits_has_no_passages() -> None:
    assert stored_passages('{"a": "words"}', '["a"]', str) == ["words"]
    assert stored_passages('{"a": "words"}', '["' + "{a,b}" * 20 + '"]', str) == []


def test_choices_keep_their_order_and_meaning() -> None:
    value = {"a": {"x": "one", "y": "two"}, "b": {"x": "three"}}
    assert texts_at(value, "{b,a}.{y,x}") == ["three", "two", "one"]
    assert texts_at(value, "{a.x,b}") == ["one", "x: three"]
