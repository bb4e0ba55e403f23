"""Unsent writes wait in order, within a size limit, and survive the end of their process."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from threefold.contract import TurnIn, WriteRequest
from threefold.spool import ENTRY_OVERHEAD, DirectorySpool, Entry, MemorySpool, SessionKey, Spool, Stamps

KEY = SessionKey("origin", "ann", "bot", "s")
STAMPS = Stamps()

MakeSpool = Callable[[int], Spool]


def entry(content: str = "hello", key: SessionKey = KEY) -> Entry:
    turn = TurnIn(role="user", content=content, id=content[:100], payload='{"x": "\\u00e9 é"}')
    return Entry(STAMPS.next(), key, WriteRequest(session_id=key.session_id, turns=[turn], run_end=True))


def contents(spool: Spool, origin: str = KEY.origin, key: SessionKey | None = None) -> list[str]:
    return [each.request.turns[0].content for each in spool.pending(origin, key)]


@pytest.fixture(params=["memory", "directory"])
def make_spool(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSpool:
    if request.param == "memory":
        return MemorySpool
    return lambda max_bytes: DirectorySpool(tmp_path / "spool", max_bytes)


@pytest.fixture
def spool(make_spool: MakeSpool) -> Spool:
    return make_spool(10_000)


def test_entry_is_returned_unchanged(spool: Spool) -> None:
    kept = entry("zoë\n日本")
    assert spool.put(kept)
    assert list(spool.pending(KEY.origin, KEY)) == [kept]


def test_entries_keep_their_order_within_each_session(spool: Spool) -> None:
    other = KEY._replace(session_id="t")
    for number in range(6):
        assert spool.put(entry(str(number), other if number % 2 else KEY))
    assert contents(spool, key=KEY) == ["0", "2", "4"]
    assert contents(spool, key=other) == ["1", "3", "5"]
    assert sorted(contents(spool)) == list("012345")


@pytest.mark.parametrize("field", SessionKey._fields)
def test_entries_are_visible_only_under_their_own_identity(spool: Spool, field: str) -> None:
    """Users reported that two users with the same session id shared a history. Every field of the key counts."""
    assert spool.put(entry())
    stranger = KEY._replace(**{field: "other"})
    assert contents(spool, stranger.origin, stranger) == []


def test_names_with_separators_are_kept_apart(spool: Spool) -> None:
    one, two = KEY._replace(user="a", agent="b/c"), KEY._replace(user="a/b", agent="c")
    assert spool.put(entry("one", one))
    assert spool.put(entry("two", two))
    assert contents(spool, key=one) == ["one"]
    assert contents(spool, key=two) == ["two"]


def test_no_user_differs_from_a_user_named_none(spool: Spool) -> None:
    assert spool.put(entry("self", KEY._replace(user=None)))
    assert contents(spool, key=KEY._replace(user="None")) == []
    assert [each.key.user for each in spool.pending(KEY.origin)] == [None]


def test_entry_is_removed_once(spool: Spool) -> None:
    kept = entry()
    assert spool.put(kept)
    assert spool.holds(kept)
    assert [spool.remove(kept), spool.remove(kept)] == [True, False]
    assert not spool.holds(kept)
    assert contents(spool) == []


def test_entry_removed_during_iteration_is_skipped(spool: Spool) -> None:
    first, second = entry("1"), entry("2")
    assert spool.put(first)
    assert spool.put(second)
    waiting = spool.pending(KEY.origin, KEY)
    assert next(waiting) == first
    spool.remove(second)
    assert list(waiting) == []


def test_full_spool_refuses_and_logs_without_content(make_spool: MakeSpool, caplog: pytest.LogCaptureFixture) -> None:
    spool = make_spool(2 * ENTRY_OVERHEAD)
    first, second = entry("x" * 600), entry("SECRET" * 100)
    assert spool.put(first)
    assert not spool.put(second)
    assert "spool is full" in caplog.text
    assert "SECRET" not in caplog.text
    spool.remove(first)
    assert spool.put(second)


def test_single_entry_always_fits(make_spool: MakeSpool) -> None:
    assert make_spool(1).put(entry("x" * 1000))


def test_stamps_increase_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100, 50, 50, 200])
    monkeypatch.setattr("threefold.spool.time.time_ns", lambda: next(times))
    stamps = Stamps()
    names = [stamps.next() for _ in range(4)]
    assert names == sorted(names)


def test_directory_spool_survives_its_process(tmp_path: Path) -> None:
    kept = entry()
    assert DirectorySpool(tmp_path).put(kept)
    assert list(DirectorySpool(tmp_path).pending(KEY.origin)) == [kept]


def test_directory_is_created_on_first_use(tmp_path: Path) -> None:
    spool = DirectorySpool(tmp_path / "spool")
    assert contents(spool) == []
    assert not (tmp_path / "spool").exists()


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    assert DirectorySpool(tmp_path / "spool").put(entry())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool").rglob("*")}
    assert modes == {0o700, 0o600}
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700


@pytest.mark.parametrize("loose", ["", "*/", "*/*.json"])
def test_spool_that_others_may_read_is_reported_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loose: str
) -> None:
    path = tmp_path / "spool"
    assert DirectorySpool(path).put(entry())
    DirectorySpool(path)
    assert caplog.text == ""
    [target] = path.glob(loose) if loose else [path]
    target.chmod(target.stat().st_mode | 0o040)
    mode = target.stat().st_mode
    assert DirectorySpool(path).put(entry())
    assert f"run: chmod -R go= {path}" in caplog.text
    assert target.stat().st_mode == mode


def test_truncated_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool, kept = DirectorySpool(tmp_path), entry("whole")
    assert spool.put(kept)
    (whole,) = tmp_path.rglob("*.json")
    draft = whole.with_name("0-draft.tmp")
    torn = whole.with_name(f"0-torn-{whole.stem.rpartition('-')[2]}.json")
    for path in (draft, torn):
        path.write_bytes(whole.read_bytes()[:40])
    assert [contents(spool, key=KEY), contents(spool, key=KEY)] == [["whole"], ["whole"]]
    assert caplog.text.count("not an entry") == 1
    assert torn.with_suffix(".bad").exists()


def test_unusable_directory_is_logged_and_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "spool").write_text("a file, not a directory")
    assert not DirectorySpool(tmp_path / "spool").put(entry())
    assert "cannot write to the spool" in caplog.text


def test_unreadable_file_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For example a file of another user, or a directory."""
    spool, kept = DirectorySpool(tmp_path), entry()
    assert spool.put(kept)
    (whole,) = tmp_path.rglob("*.json")
    whole.with_name(f"0-strange-{whole.stem.rpartition('-')[2]}.json").mkdir()
    assert list(spool.pending(KEY.origin, KEY)) == [kept]
    assert "cannot read a file" in caplog.text
    assert not spool.holds(Entry("x" * 300, KEY, kept.request))  # longer than a file name may be


def test_file_deleted_while_sizes_are_added_up_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / "sent.json").symlink_to(tmp_path / "gone")
    assert DirectorySpool(tmp_path).put(entry())


def test_space_freed_by_another_process_is_used(tmp_path: Path) -> None:
    one, other, first = DirectorySpool(tmp_path, 1200), DirectorySpool(tmp_path, 1200), entry("x" * 1000)
    assert one.put(first)
    assert other.remove(first)
    assert one.put(entry("y" * 1000))


WRITER = """
import os, signal, sys
from threefold.contract import WriteRequest
from threefold.spool import DirectorySpool, Entry, SessionKey, Stamps
path, name = sys.argv[1:]
spool, stamps = DirectorySpool(path), Stamps()
for number in range(20):
    turn = {"role": "user", "content": f"{name}{number}"}
    request = WriteRequest.model_validate({"session_id": "s", "turns": [turn]})
    assert spool.put(Entry(stamps.next(), SessionKey("origin", "ann", "bot", "s"), request))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_sharing_a_directory_may_be_killed(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [-signal.SIGKILL] * 2
    found = contents(DirectorySpool(tmp_path), key=KEY)
    for name in "ab":
        assert [text for text in found if text.startswith(name)] == [f"{name}{number}" for number in range(20)]
