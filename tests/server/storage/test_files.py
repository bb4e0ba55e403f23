"""Files of the embedded store are private to their owner, whatever the umask; wider modes are reported and kept."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.command_line import Run, running
from threefold_server.local import LocalService
from threefold_server.settings import sqlite_url
from threefold_server.storage.engine import files, migrate
from threefold_server.storage.engine.database import Database

SAID = [{"role": "user", "content": "the word is kumquat"}]


@pytest.fixture(params=[0o000, 0o022, 0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the user who starts the service."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(*paths: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}


def assert_owners_alone(directory: Path) -> None:
    """Check that the directory has mode 0700 and each file in it 0600."""
    found = modes(directory, *directory.iterdir())
    assert found.pop(directory.name) == 0o700
    assert found
    assert set(found.values()) == {0o600}, found


@pytest.mark.usefixtures("umask")
def test_store_is_private_to_its_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "deeper" / "memory"
    with LocalService(data, embedder="hash") as service, service.client() as memory:
        memory.write("s", SAID)
        assert {"threefold.db", "threefold.db-wal", "threefold.db-shm"} <= {path.name for path in data.iterdir()}
        assert_owners_alone(data)
    assert_owners_alone(data)
    assert "other users" not in caplog.text


@pytest.mark.usefixtures("umask")
def test_files_of_commands_are_private_to_their_owner(tmp_path: Path, run: Run) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    with LocalService(first, embedder="hash") as service, service.client() as memory:
        memory.write("s", SAID)
    backup = tmp_path / "memory.backup"
    assert run("backup", backup, "--data", first).code == 0
    assert modes(backup) == {"memory.backup": 0o600}
    assert run("restore", backup, "--data", second).code == 0
    assert run("migrate-store", "--data", first, "--to", sqlite_url(third)).code == 0
    for data in (first, second, third):
        assert_owners_alone(data)


def test_existing_directory_keeps_its_mode_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    data = tmp_path / "home"
    data.mkdir()
    data.chmod(0o755)
    with LocalService(data, embedder="hash"):
        pass
    assert modes(data, data / "threefold.db") == {"home": 0o755, "threefold.db": 0o600}
    [record] = [record for record in caplog.records if "other users" in record.message]
    assert record.__dict__["fields"] == {"path": str(data), "mode": "0755", "remedy": f"chmod 700 {data}"}
    [found] = [row for row in doctor(run, data) if row["remedy"]]
    assert found == {"check": "file permissions", "detail": f"{data} has mode 0755", "remedy": f"chmod 700 {data}"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_loose_mode_is_reported_and_the_remedy_fixes_it(tmp_path: Path, run: Run, mode: int) -> None:
    """The store is of an earlier version, or was restored from a copy."""
    data = tmp_path / "memory"
    migrate.upgrade(sqlite_url(data))
    (data / "threefold.db").chmod(mode)
    [found] = [row for row in doctor(run, data) if row["remedy"]]
    assert found["detail"].endswith(f"threefold.db has mode {mode:04o}")
    subprocess.run(found["remedy"], shell=True, check=True)
    assert [row for row in doctor(run, data) if row["remedy"]] == []


def doctor(run: Run, data: Path) -> list[dict[str, str]]:
    return run("doctor", "--data", data, "--embedder", "hash", "--json").json["findings"]


def test_service_prints_its_address_before_the_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with running("serve", "--port", "0", "--data", str(tmp_path), "--embedder", "hash") as process:
        assert process.first_line.startswith("http://127.0.0.1:")
        assert process.stop() == 0
        assert f'"remedy": "chmod 700 {tmp_path}"' in process.rest


@pytest.mark.parametrize("url", ["postgresql://nobody@localhost/x", "sqlite://", "sqlite:///:memory:"])
def test_stores_without_files_have_nothing_to_report(url: str) -> None:
    database = Database(url)
    files.create(database.url)
    assert files.loose(database.url) == []
