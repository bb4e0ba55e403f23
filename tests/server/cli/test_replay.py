"""`threefold replay`: conversation files are loaded completely and once, and every problem is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.command_line import Result, Run
from threefold import MemoryClient
from threefold_server.cli import replay as module
from threefold_server.cli.replay import Replayed, ReplayReport


def lines(path: Path, *entries: object) -> Path:
    path.write_text("".join(f"{entry if isinstance(entry, str) else json.dumps(entry)}\n" for entry in entries))
    return path


def turn(content: str, session_id: str = "s1", **more: Any) -> dict[str, Any]:
    return {"session_id": session_id, "role": "user", "content": content, **more}


def report(result: Result) -> Replayed:
    (file,) = ReplayReport.model_validate(result.json).files
    return file


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    return lines(
        tmp_path / "talk.jsonl",
        turn("I deploy on Fridays.", name="Ada", created_at="2026-05-08T13:56:00Z"),
        turn("Another session.", "s2"),
        turn("I am back.", id="mine"),
    )


def locomo(path: Path) -> Path:
    spoken = [{"speaker": "Caroline", "dia_id": "D1:1", "text": "Look!", "blip_caption": "a dog"}]
    return lines(
        path,
        {
            "speaker_a": "Melanie",
            "speaker_b": "Caroline",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": spoken,
        },
    )


def test_file_is_loaded_once(online: Run, talk: Path) -> None:
    first = online("replay", talk, "--wait", "--json")
    assert first.code == 0
    assert report(first) == Replayed(file=str(talk), sessions=["s1", "s2"], appended=3)
    assert report(online("replay", talk, "--json")) == Replayed(file=str(talk), sessions=["s1", "s2"], duplicates=3)
    assert "I deploy on Fridays." in online("recall", "when do I deploy?").out
    turns = online("sessions", "turns", "s1", "--json").json["turns"]
    assert [said["content"] for said in turns] == ["I deploy on Fridays.", "I am back."]
    assert (turns[0]["created_at"], turns[0]["name"]) == ("2026-05-08T13:56:00Z", "Ada")


def test_locomo_file_is_loaded(online: Run, tmp_path: Path) -> None:
    file = locomo(tmp_path / "26.json")
    assert report(online("replay", file, "--json", "--session-prefix", "x/")).sessions == ["x/26/session_1"]
    (said,) = online("sessions", "turns", "x/26/session_1", "--json").json["turns"]
    assert (said["role"], said["name"], said["id"]) == ("assistant", "Caroline", "D1:1")
    assert said["content"] == "Look! [shares a photo: a dog]"


def test_unreadable_lines_are_named_and_the_others_stored(online: Run, tmp_path: Path) -> None:
    file = lines(tmp_path / "talk.jsonl", turn("one"), "{", turn("two"), turn("x", role="robot"), turn("three"))
    result = online("replay", file)
    assert result.code == 1
    assert f"{file}:2: not valid JSON" in result.err
    assert f"{file}:4: role:" in result.err
    turns = online("sessions", "turns", "s1", "--json").json["turns"]
    assert [said["content"] for said in turns] == ["one", "two", "three"]
    lines(file, turn("one"), turn("fixed"), turn("two"), turn("three"))
    assert report(online("replay", file, "--json")) == Replayed(
        file=str(file), sessions=["s1"], appended=1, duplicates=3
    )


def test_refused_turn_does_not_affect_the_others(online: Run, tmp_path: Path) -> None:
    online("write", "s1", "first words", "--id", "t1")
    file = lines(tmp_path / "talk.jsonl", turn("before"), turn("other words", id="t1"), turn("after"))
    result = online("replay", file, "--json")
    assert result.code == 1
    assert report(result).appended == 2
    (problem,) = report(result).failed
    assert problem.startswith(f"{file}:2: turn id 't1' was written before")


@pytest.mark.parametrize(("limit", "value"), [("BATCH_TURNS", 2), ("BATCH_CHARS", 15)])
def test_turns_are_sent_in_batches(
    online: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(module, limit, value)
    sizes: list[int] = []
    write = MemoryClient.write

    def counted(self: MemoryClient, session_id: str, turns: list[Any], **options: Any) -> Any:
        sizes.append(len(turns))
        return write(self, session_id, turns, **options)

    monkeypatch.setattr(MemoryClient, "write", counted)
    file = lines(tmp_path / "talk.jsonl", *(turn(f"number {number}") for number in range(5)))
    assert report(online("replay", file, "--json")).appended == 5
    assert sizes == [2, 2, 1]


def test_missing_service_is_reported_with_the_position(run: Run, talk: Path) -> None:
    result = run("replay", talk, "--url", "http://127.0.0.1:1")
    assert result.code == 1
    assert f"Stopped before {talk}:1." in result.err
    assert "`threefold serve`" in result.err


def test_missing_file_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    assert run("replay", tmp_path / "none.jsonl").code == 2


def test_files_are_counted_separately(online: Run, talk: Path, tmp_path: Path) -> None:
    files = (talk, locomo(tmp_path / "26.json"))
    counted = ReplayReport.model_validate(online("replay", *files, "--json").json)
    assert [(len(file.sessions), file.appended) for file in counted.files] == [(2, 3), (1, 1)]
    assert "there already" in online("replay", *files).out
