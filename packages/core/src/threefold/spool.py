"""The spool: writes that the service has not accepted yet, in memory or in a directory. It sends nothing itself."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from threefold.contract import WriteRequest

MAX_BYTES = 64 * 2**20
ENTRY_OVERHEAD = 512  # bytes that a small entry takes beyond its text

log = logging.getLogger("threefold")


class SessionKey(NamedTuple):
    """Key of a session: service and credential (`MemoryClient.origin`), user, agent and session id."""

    origin: str
    user: str | None
    agent: str | None
    session_id: str


@dataclass(frozen=True)
class Entry:
    """One write. Entries were made in the order of their names."""

    name: str
    key: SessionKey
    request: WriteRequest

    @property
    def size(self) -> int:
        """The characters of the entry, which are about its bytes."""
        return ENTRY_OVERHEAD + sum(len(turn.content) + len(turn.payload or "") for turn in self.request.turns)


class Stamps:
    """Names that sort by the time they were made, even if the clock is set back."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> str:
        """Return a new name, unique among processes."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return f"{self._last:020d}-{uuid4().hex}"


class Spool(Protocol):
    """Where unsent writes are kept.

    An entry stays until it is removed, so that a sender that dies or is cancelled loses none. Two senders may send the
    same entry: its turns have ids, so the service stores them once. A sender sends the later entries of a session only
    after the earlier ones were sent.
    """

    def put(self, entry: Entry) -> bool:
        """Keep an entry.

        Args:
            entry: The entry.

        Returns:
            True if the entry was kept. If not, the log has an error with the reason.
        """
        ...

    def pending(self, origin: str, key: SessionKey | None = None) -> Iterator[Entry]:
        """Yield the entries that are present now, in order within each session.

        Args:
            origin: `MemoryClient.origin` of the service and credential.
            key: Only entries of this session (default: of all sessions with this origin).

        Yields:
            The entries.
        """
        ...

    def holds(self, entry: Entry) -> bool:
        """Return True if an entry is present.

        Args:
            entry: The entry.
        """
        ...

    def remove(self, entry: Entry) -> bool:
        """Remove an entry.

        Args:
            entry: The entry.

        Returns:
            True if this call removed it, False if it was already absent or could not be removed.
        """
        ...


class MemorySpool:
    """Spool in the memory of the process; it is lost when the process ends.

    Args:
        max_bytes: Most bytes of all entries (default 64 MiB); a single larger entry is accepted if the spool is empty.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sessions: dict[SessionKey, dict[str, Entry]] = {}
        self._lock = threading.Lock()

    def put(self, entry: Entry) -> bool:
        """Keep an entry.

        Args:
            entry: The entry.

        Returns:
            True if the entry was kept. If not, the log has an error with the reason.
        """
        with self._lock:
            if self._bytes and self._bytes + entry.size > self._max_bytes:
                log.error("the spool is full: it has %d bytes of unsent writes", self._bytes)
                return False
            self._sessions.setdefault(entry.key, {})[entry.name] = entry
            self._bytes += entry.size
            return True

    def pending(self, origin: str, key: SessionKey | None = None) -> Iterator[Entry]:
        """Yield the entries that are present now, in order within each session.

        Args:
            origin: `MemoryClient.origin` of the service and credential.
            key: Only entries of this session (default: of all sessions with this origin).

        Yields:
            The entries.
        """
        with self._lock:
            keys = [key] if key else [each for each in self._sessions if each.origin == origin]
            entries = [entry for each in keys for entry in self._sessions.get(each, {}).values()]
        return filter(self.holds, entries)

    def holds(self, entry: Entry) -> bool:
        """Return True if an entry is present.

        Args:
            entry: The entry.
        """
        with self._lock:
            return entry.name in self._sessions.get(entry.key, {})

    def remove(self, entry: Entry) -> bool:
        """Remove an entry.

        Args:
            entry: The entry.

        Returns:
            True if this call removed it, False if it was already absent or could not be removed.
        """
        with self._lock:
            waiting = self._sessions.get(entry.key, {})
            if waiting.pop(entry.name, None) is None:
                return False
            self._bytes -= entry.size
            if not waiting:
                del self._sessions[entry.key]
            return True


class _Stored(BaseModel):
    """An entry as it is stored in its file."""

    user: str | None
    agent: str | None
    request: WriteRequest


class DirectorySpool:
    """Spool in a directory, with one file per write. It outlives the process and may be shared by several processes.

    A complete file is put in place by a rename and removed by an unlink, so there are no locks and no torn files. The
    files are not synced: they survive a killed process but not a power failure.

    Args:
        path: The directory; it is created with access for its owner only. A warning is logged if other users of the
            machine have access to it.
        max_bytes: Most bytes of all files (default 64 MiB); a single larger entry is accepted if the spool is empty.
    """

    def __init__(self, path: Path | str, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._bytes: int | None = None
        self._lock = threading.Lock()
        _warn_of_access(self._path)

    def put(self, entry: Entry) -> bool:
        """Keep an entry.

        Args:
            entry: The entry.

        Returns:
            True if the entry was kept. If not, the log has an error with the reason.
        """
        stored = _Stored(user=entry.key.user, agent=entry.key.agent, request=entry.request)
        content = stored.model_dump_json(exclude_unset=True).encode()
        try:
            if self._reserve(len(content)):
                _write_whole(self._file(entry), content)
                return True
        except OSError as error:
            log.error("cannot write to the spool: %s", error)
        return False

    def pending(self, origin: str, key: SessionKey | None = None) -> Iterator[Entry]:
        """Yield the entries that are present now, in order within each session.

        Args:
            origin: `MemoryClient.origin` of the service and credential.
            key: Only entries of this session (default: of all sessions with this origin).

        Yields:
            The entries.
        """
        mark = _digest(key) if key else ""
        for path in sorted((self._path / origin).glob(f"*{mark}.json")):
            entry = _read(path, origin)
            if entry is not None and (key is None or entry.key == key):
                yield entry

    def holds(self, entry: Entry) -> bool:
        """Return True if an entry is present.

        Args:
            entry: The entry.
        """
        return os.path.exists(self._file(entry))  # Path.exists raises for a name that is too long

    def remove(self, entry: Entry) -> bool:
        """Remove an entry.

        Args:
            entry: The entry.

        Returns:
            True if this call removed it, False if it was already absent or could not be removed.
        """
        path = self._file(entry)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:  # the entry will be sent again; the service stores it once
            log.error("cannot remove a sent write from the spool: %s", error)
            return False
        with self._lock:
            self._bytes = max(0, (self._bytes or 0) - size)
        return True

    def _file(self, entry: Entry) -> Path:
        return self._path / entry.key.origin / f"{entry.name}-{_digest(entry.key)}.json"

    def _reserve(self, size: int) -> bool:
        """Reserve bytes for a file. Count the directory again before refusing: another process may have emptied it."""
        with self._lock:
            if self._bytes is None or self._bytes + size > self._max_bytes:
                self._bytes = sum(map(_size, self._path.glob("*/*.json")))
            if self._bytes and self._bytes + size > self._max_bytes:
                log.error("the spool in %s is full: it has %d bytes of unsent writes", self._path, self._bytes)
                return False
            self._bytes += size
            return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process has just removed it
        return 0


def _digest(key: SessionKey) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def _warn_of_access(path: Path) -> None:
    """Log a warning if other users of the machine have access to the spool. Its mode is not changed here, because the
    directory may belong to another program."""
    for each in (path, *path.glob("*/"), *path.glob("*/*.json")):
        with suppress(OSError):  # the file does not exist yet, or another process has just removed it
            mode = each.stat().st_mode & 0o777
            if mode & 0o077:
                remedy = f"chmod -R go= {path}"
                log.warning("other users have access to the spool: %s has mode %04o; run: %s", each, mode, remedy)
                return


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file, with access for its owner only, that appears with all its content or not at all."""
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _read(path: Path, origin: str) -> Entry | None:
    """Return the entry of a file; None if another process removed it, or the file is not an entry."""
    try:
        stored = _Stored.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        log.error("cannot read a file of the spool: %s", error)
        return None
    except ValidationError:
        log.error("renamed a file of the spool that is not an entry to .bad: %s", path.name)
        path.replace(path.with_suffix(".bad"))
        return None
    key = SessionKey(origin, stored.user, stored.agent, stored.request.session_id)
    return Entry(path.stem.rpartition("-")[0], key, stored.request)
