"""Which extras count as installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from threefold_server.extras import installed


def test_plain_directory_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp_of_a_project" / "package").mkdir(parents=True)
    (tmp_path / "mcp_of_a_project" / "package" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not installed("mcp_of_a_project")
    assert installed("mcp_of_a_project.package")


def test_missing_packages_are_not_installed() -> None:
    assert not installed("nowhere")
    assert not installed("nowhere.package")
