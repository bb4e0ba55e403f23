"""The demo checks what it claims, and fails if a claim does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.command_line import Run
from threefold_server.cli import demo


def test_demo_checks_every_scene(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THREEFOLD_DATABASE_URL", f"sqlite:///{tmp_path / 'mine.db'}")
    shown = run("demo", "--json")
    assert (shown.code, shown.err) == (0, "")
    told, by_words, by_meaning, tiers, block, superseded, apart, forgotten, proof = shown.json["scenes"]
    assert told["written"]["appended"] == len(demo.TALK)
    assert "Fridays" in by_words["recall"]["memories"][0]["text"]
    assert by_meaning["recall"]["memories"][0]["score_parts"]["coverage"] == 0
    assert tiers["recall"]["digest"]["version"] >= 1
    assert [turn["content"] for turn in tiers["recall"]["window"]][-1] == demo.TALK[-1][1]
    assert demo.NEWS in block["block"]
    assert [version["text"][-6:] for version in superseded["history"]["versions"]] == [" Anna.", "Boris."]
    assert (apart["recall"]["memories"], apart["list"]["items"]) == ([], [])
    assert forgotten["dry_run"]["counts"] == forgotten["receipt"]["counts"]
    assert forgotten["files_before"] != []
    assert (proof["files_after"], "threefold.db" in proof["files_read"]) == ([], True)
    assert not (tmp_path / "mine.db").exists()


def test_demo_output_for_people(run: Run) -> None:
    shown = run("demo")
    assert shown.code == 0
    assert f"{len(demo.SCENES)}. The proof" in shown.out
    assert "<threefold-memory" in shown.out


def test_demo_fails_if_a_claim_does_not_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(demo.SETTINGS, "rolling_summary", False)
    failed = run("demo")
    assert failed.code == 1
    assert failed.err == "error: the demo did not show that a digest has the older turns\n"


def test_files_are_searched_ignoring_case(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00xQuokka-7391\x00")
    (tmp_path / "b").write_bytes(b"nothing")
    assert demo.files_with("quokka-7391", tmp_path) == ["a"]
