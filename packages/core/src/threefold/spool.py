"""Writes that the service does not have yet, in memory or in a directory. Nothing here waits, nothing here sends."""

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
    """Whose session, through which service and credential (`MemoryClient.origin`)."""

    origin: str
    user: str | None
    agent: str | None
    session_id: str


@dataclass(frozen=True)
class Entry:
    """One write. Names sort in the order in which the entries were made."""

    name: str
    key: SessionKey
    request: WriteRequest

    @property
    def size(self) -> int:
        """Its characters, about its bytes."""
        return ENTRY_OVERHEAD + sum(len(turn.content) + len(turn.payload or "") for turn in self.request.turns)


class Stamps:
    """Names that sort by time and never go back, even when the clock does."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> str:
        """A new name, unique among processes."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return f"{self._last:020d}-{uuid4().hex}"


class Spool(Protocol):
    """Where unsent writes wait.

    Entries stay until removed, so a sender that dies, or is cancelled, loses none. Two senders may send the same entry:
    its turns have ids, so the service stores them once, and whoever sends a later entry has seen the earlier one sent.
    """

    def put(self, entry: Entry) -> bool:
        """Keep an entry; False, and an error in the log, where it could not be kept."""
        ...

    def pending(self, origin: str, key: SessionKey | None = None) -> Iterator[Entry]:
        """The entries there now, in order within each session: of one session, or of everything from one origin."""
        ...

    def holds(self, entry: Entry) -> bool:
        """Whether an entry still waits."""
        ...

    def remove(self, entry: Entry) -> bool:
        """Drop an entry; False if it was gone."""
        ...


class MemorySpool:
    """Bounded, and gone with the process."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sessions: dict[SessionKey, dict[str, Entry]] = {}
        self._lock = threading.Lock()

    def put(self, entry: Entry) -> bool:
        with self._lock:
            if self._bytes and self._bytes + entry.size > self._max_bytes:
                log.error("the spool is full: %d bytes wait for the service", self._bytes)
                return False
            self._sessions.setdefault(entry.key, {})[entry.name] = entry
            self._bytes += entry.size
            return True

    def pending(self, origin: str, key: SessionKey | None = None) -> Iterator[Entry]:
        with self._lock:
            keys = [key] if key else [each for each in self._sessions if each.origin == origin]
            entries = [entry for each in keys for entry in self._sessions.get(each, {}).values()]
        return filter(self.holds, entries)

    def holds(self, entry: Entry) -> bool:
        with self._lock:
            return entry.name in self._sessions.get(entry.key, {})

    def remove(self, entry: Entry) -> bool:
        with self._lock:
            waiting = self._sessions.get(entry.key, {})
            if waiting.pop(entry.name, None) is None:
                return False
            self._bytes -= entry.size
            if not waiting:
                del self._sessions[entry.key]
            return True


class _Stored(BaseModel):
    """An entry as its file holds it."""

    user: str | None
    agent: str | None
    request: WriteRequest


class DirectorySpool:
    """One small file per write: survives the process, and may be shared by several.

    A file appears complete, by renaming, and goes by unlinking, so there is nothing to lock and no torn line to repair.
    It is not synced: it outlives a killed process, not a power failure.
    """

    def __init__(self, path: Path | str, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._bytes: int | None = None
        self._lock = threading.Lock()
        _warn_of_access(self._path)

    def put(self, entry: Entry) -> bool:
        stored = _Stored(user=entry.key.user, agent=entry.key.agent, request=entry.request)
        content = stored.model_dump_json(exclude_unset=True).encode()
        try:
            if self._reserve(len(content)):
                _write_whole(self._file(entry), content)
                return True
        except OSError as error:
            log.error("the spool cannot be written: %s", error)
        return False

    def pending(self, origin: str, key: SessionKey | None = None) -> Iterator[Entry]:
        mark = _digest(key) if key else ""
        for path in sorted((self._path / origin).glob(f"*{mark}.json")):
            entry = _read(path, origin)
            if entry is not None and (key is None or entry.key == key):
                yield entry

    def holds(self, entry: Entry) -> bool:
        return os.path.exists(self._file(entry))  # unlike Path.exists, it never raises

    def remove(self, entry: Entry) -> bool:
        path = self._file(entry)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:  # it will be sent again, and stored once
            log.error("the spool cannot be emptied: %s", error)
            return False
        with self._lock:
            self._bytes = max(0, (self._bytes or 0) - size)
        return True

    def _file(self, entry: Entry) -> Path:
        return self._path / entry.key.origin / f"{entry.name}-{_digest(entry.key)}.json"

    def _reserve(self, size: int) -> bool:
        """Take room for a file; count again before saying no, as another process may have emptied the directory."""
        with self._lock:
            if self._bytes is None or self._bytes + size > self._max_bytes:
                self._bytes = sum(map(_size, self._path.glob("*/*.json")))
            if self._bytes and self._bytes + size > self._max_bytes:
                log.error("the spool is full: %d bytes wait for the service in %s", self._bytes, self._path)
                return False
            self._bytes += size
            return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process has just sent it
        return 0


def _digest(key: SessionKey) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def _warn_of_access(path: Path) -> None:
    """Log a spool that other users of the machine may use. The directory may be somebody else's: not ours to change."""
    for each in (path, *path.glob("*/"), *path.glob("*/*.json")):
        with suppress(OSError):  # not there yet, or just sent by another process
            mode = each.stat().st_mode & 0o777
            if mode & 0o077:
                remedy = f"chmod -R go= {path}"
                log.warning("other users have access to the spool: %s has mode %04o; run: %s", each, mode, remedy)
                return


def _write_whole(path: Path, content: bytes) -> None:
    """A file that is there with all its content, or not at all; readable by its owner only."""
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _read(path: Path, origin: str) -> Entry | None:
    """The entry of a file; None where another process was faster, or the file is not one of ours."""
    try:
        stored = _Stored.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        log.error("a file of the spool cannot be read: %s", error)
        return None
    except ValidationError:
        log.error("set aside a file of the spool that is not a write: %s", path.name)
        path.replace(path.with_suffix(".bad"))
        return None
    key = SessionKey(origin, stored.user, stored.agent, stored.request.session_id)
    return Entry(path.stem.rpartition("-")[0], key, stored.request)
