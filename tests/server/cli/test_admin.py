"""Administration from the command line: archives are new private files, and long values are never wrapped."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.command_line import Run, running
from threefold import MemoryClient
from threefold.contract.admin import AuditCheck
from threefold_server.cli.output import out


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a service whose callers are administrators, with a memory of `ana`."""
    data = tmp_path_factory.mktemp("administered")
    with running("serve", "--port", "0", "--data", str(data), "--embedder", "hash", "--allow-admin") as process:
        url = process.first_line
        with MemoryClient(url, user="ana", agent="support") as memory:
            memory.write("s1", [{"role": "user", "content": "My gate code is 4711."}])
        yield url


def test_archive_is_private_and_never_overwrites_a_file(run: Run, administered: str, tmp_path: Path) -> None:
    archive = tmp_path / "ana.jsonl"
    asked = ("admin", "export", "--of", "ana", "--url", administered, "--output")
    assert run(*asked, archive).code == 0
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    before = archive.read_text()
    again = run(*asked, archive)
    assert (again.code, again.err) == (2, f"error: {archive} exists already; name a new file\n")
    assert archive.read_text() == before
    nowhere = run(*asked, tmp_path / "no" / "ana.jsonl")
    assert (nowhere.code, "cannot create" in nowhere.err) == (2, True)


def test_failed_export_leaves_no_file(run: Run, served: str, tmp_path: Path) -> None:
    refused = run("admin", "export", "--of", "ana", "--url", served, "--output", tmp_path / "ana.jsonl")
    assert refused.code == 1
    assert "--allow-admin" in refused.err
    assert list(tmp_path.iterdir()) == []


def test_head_of_the_audit_is_never_wrapped(run: Run, administered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 40)
    check = AuditCheck.model_validate(run("audit", "verify", "--url", administered, "--json").json)
    assert f"head {check.head}\n" in run("audit", "verify", "--url", administered).out
