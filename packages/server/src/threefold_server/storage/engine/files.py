"""The files of a SQLite database: created for their owner only, and reported if other users have access to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from sqlalchemy.engine import URL, make_url

from threefold_server.telemetry import logger

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
OTHERS = 0o077


class Loose(NamedTuple):
    """A directory or file that other users of the machine have access to, and the command that removes the access."""

    path: Path
    mode: int
    remedy: str
    """Threefold does not run it: the directory may contain other files."""

    @property
    def found(self) -> str:
        return f"{self.path} has mode {self.mode:04o}"


def create(url: URL) -> None:
    """Create the directory and an empty database file unless they exist. SQLite's log files inherit the file's mode."""
    path = _path(url)
    if path is not None:
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, FILE_MODE))


def loose(url: URL) -> list[Loose]:
    """Return the directory and the first file of a database to which other users have access; [] for Postgres."""
    path = _path(url)
    if path is None:
        return []
    files = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal"))
    found = _first_loose(files, f"chmod {FILE_MODE:o} {quote(str(path))}*")
    return [*_first_loose([path.parent], f"chmod {DIRECTORY_MODE:o} {quote(str(path.parent))}"), *found]


def _first_loose(paths: Iterable[Path], remedy: str) -> list[Loose]:
    for path in paths:
        with suppress(FileNotFoundError):  # SQLite deletes its log files at times
            mode = path.stat().st_mode & 0o777
            if mode & OTHERS:
                return [Loose(path, mode, remedy)]
    return []


def warn(database_url: str) -> None:
    """Log a warning for each path to which other users have access, with the command that removes the access."""
    for each in loose(make_url(database_url)):
        fields = {"path": str(each.path), "mode": f"{each.mode:04o}", "remedy": each.remedy}
        logger.warning("other users of this machine have access to the store", extra={"fields": fields})


def _path(url: URL) -> Path | None:
    name = url.database or ""
    in_memory = name in ("", ":memory:") or name.startswith("file:")
    return None if in_memory or url.get_backend_name() != "sqlite" else Path(name).absolute()
