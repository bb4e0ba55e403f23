"""Conversation files: how each line is read, and how unreadable lines are reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from threefold_server.cli.conversations import FileTurn, Unreadable, open_conversation


def lines(tmp_path: Path, *entries: object, name: str = "talk.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(f"{entry if isinstance(entry, str) else json.dumps(entry)}\n" for entry in entries))
    return path


def turn(content: str, session_id: str = "s1", **more: Any) -> dict[str, Any]:
    return {"session_id": session_id, "role": "user", "content": content, **more}


def said(path: Path) -> list[FileTurn]:
    entries = list(open_conversation(path).entries)
    assert all(isinstance(entry, FileTurn) for entry in entries)
    return [entry for entry in entries if isinstance(entry, FileTurn)]


def ids(path: Path) -> dict[str, str | None]:
    return {entry.turn.content: entry.turn.id for entry in said(path)}


def test_line_is_a_turn_with_its_session(tmp_path: Path) -> None:
    full = turn("Hello.", name="Ada", id="t1", created_at="2026-05-08T13:56:00+02:00", kind="message")
    (entry,) = said(lines(tmp_path, full))
    assert (entry.session_id, entry.turn.id, entry.turn.name) == ("s1", "t1", "Ada")
    assert entry.turn.created_at == datetime(2026, 5, 8, 11, 56, tzinfo=UTC)


def test_turn_without_an_id_gets_the_same_id_each_time(tmp_path: Path) -> None:
    path = lines(tmp_path, turn("one"), turn("two"))
    assert ids(path) == ids(path)
    assert len(set(ids(path).values())) == 2


def test_ids_stay_the_same_when_lines_are_added(tmp_path: Path) -> None:
    before = ids(lines(tmp_path, turn("one"), turn("two")))
    after = ids(lines(tmp_path, turn("zero"), turn("one"), turn("more"), turn("two")))
    assert {content: after[content] for content in before} == before


def test_repeated_text_is_a_separate_turn(tmp_path: Path) -> None:
    entries = said(lines(tmp_path, turn("yes"), turn("yes"), turn("yes", "s2")))
    assert len({entry.turn.id for entry in entries}) == 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested"),
        ({"session_id": "s1", "role": "user"}, "content: Field required"),
        (turn("x", role="robot"), "role:"),
        (turn("x", "  "), "session_id:"),
        (turn("x", user="somebody"), "user: Extra inputs"),
        (turn("x", created_at="2026-05-08T13:56:00"), "created_at:"),
        ("7", "turn:"),
    ],
)
def test_unreadable_line_is_named_and_the_others_are_read(tmp_path: Path, line: object, problem: str) -> None:
    path = lines(tmp_path, turn("before"), line, "", turn("after"))
    before, bad, after = open_conversation(path).entries
    assert isinstance(before, FileTurn)
    assert isinstance(after, FileTurn)
    assert isinstance(bad, Unreadable)
    assert bad.location == f"{path}:2"
    assert problem in bad.problem


def test_unreadable_line_is_not_quoted(tmp_path: Path) -> None:
    (bad,) = open_conversation(lines(tmp_path, turn("x", role="hush-hush"))).entries
    assert isinstance(bad, Unreadable)
    assert "hush" not in bad.problem


LOCOMO: dict[str, Any] = {
    "speaker_a": "Caroline",
    "speaker_b": "Melanie",
    "session_1_date_time": "1:56 pm on 8 May, 2023",
    "session_1": [
        {"speaker": "Caroline", "dia_id": "D1:1", "text": "Look!", "blip_caption": "a photo of a dog", "query": "dog"},
        {"speaker": "Melanie", "dia_id": "D1:2", "text": "Nice."},
    ],
    "session_2_date_time": "12:09 am on 13 September, 2023",
    "session_2": [{"speaker": "Melanie", "dia_id": "D2:1", "text": "Again."}],
    "session_1_summary": "They talk.",
    "qa": [],
}


def test_locomo_file_becomes_sessions(tmp_path: Path) -> None:
    conversation = open_conversation(lines(tmp_path, LOCOMO, name="26.json"))
    assert conversation.length == 3
    first, second, third = [entry for entry in conversation.entries if isinstance(entry, FileTurn)]
    assert first.session_id == second.session_id == "26/session_1"
    assert first.turn.content == "Look! [shares a photo: a photo of a dog]"
    assert (first.turn.role, first.turn.name, first.turn.id) == ("user", "Caroline", "D1:1")
    assert (second.turn.role, second.turn.name, second.turn.content) == ("assistant", "Melanie", "Nice.")
    assert first.turn.created_at == datetime(2023, 5, 8, 13, 56, 0, tzinfo=UTC)
    assert second.turn.created_at == datetime(2023, 5, 8, 13, 56, 1, tzinfo=UTC)
    assert (third.session_id, third.turn.created_at) == ("26/session_2", datetime(2023, 9, 13, 0, 9, tzinfo=UTC))


def test_problems_of_a_locomo_file_are_named(tmp_path: Path) -> None:
    broken = LOCOMO | {"session_1": [{"speaker": "Caroline", "text": "No id."}], "session_2_date_time": "yesterday"}
    first, second = open_conversation(lines(tmp_path, broken, name="26.json")).entries
    assert first == Unreadable("26:session_1:1", "dia_id: Field required")
    assert isinstance(second, Unreadable)
    assert second.location == "26:session_2"


def test_json_file_of_lines_is_read_as_lines(tmp_path: Path) -> None:
    assert [entry.turn.content for entry in said(lines(tmp_path, turn("one"), turn("two"), name="talk.json"))] == [
        "one",
        "two",
    ]
    assert len(said(lines(tmp_path, turn("one"), name="single.json"))) == 1
