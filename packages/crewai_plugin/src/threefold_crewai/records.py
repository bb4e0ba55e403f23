"""Convert memories to records of CrewAI, and run CrewAI's operations on what is stored.

Scopes of CrewAI are called topics here: paths inside the memory of one owner. They grant no rights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from crewai.memory.types import MemoryMatch, MemoryRecord, ScopeInfo
from crewai.memory.utils import normalize_scope_path
from pydantic import BaseModel, Field, ValidationError

from threefold import InvalidRequest, MemorySession, calls
from threefold.contract import MAX_IDS_PER_CALL, MAX_PAGE, Memory, RecalledMemory
from threefold.tools.answers import found_text

ROOT = "/"
IN_TOPIC = "#/"
"""Separates the id of a session and the topic of its turns."""
NOTE = "crewai"
"""Key in the metadata of a fact for its fields of CrewAI."""


class Match(MemoryMatch):
    """A match that is shown in a prompt as fenced recalled text."""

    block: str = Field(exclude=True, repr=False)

    def format(self) -> str:
        return self.block


def session_of_topic(session_id: str, topic: str) -> str:
    """Return the id of the session for a topic. The topic is part of the id, as a turn has no field for it."""
    return session_id if topic == ROOT else f"{session_id}#{topic.replace('%', '%25').replace('#', '%23')}"


def topic_of(session_id: str) -> str:
    """Return the topic of a session id."""
    _, mark, topic = session_id.rpartition(IN_TOPIC)
    return f"/{topic.replace('%23', '#').replace('%25', '%')}" if mark else ROOT


def within(topic: str, prefix: str | None) -> bool:
    """Return True if a topic is `prefix` or below it."""
    above = normalize_scope_path(prefix or ROOT)
    return above == ROOT or topic == above or topic.startswith(f"{above}/")


class Note(BaseModel):
    """The fields of CrewAI for a memory, as they are stored in its metadata."""

    scope: str | None = None
    categories: list[str] = Field(default_factory=list[str])
    importance: float = Field(default=0.5, ge=0, le=1)
    source: str | None = None
    private: bool = False


def note_of(record: MemoryRecord) -> dict[str, Any]:
    """Return the metadata of the fact for a record."""
    if NOTE in record.metadata:
        raise InvalidRequest(f"metadata: reserved key: {NOTE}; the plugin stores scope and categories under it")
    note = Note.model_validate(record, from_attributes=True)
    return {**record.metadata, NOTE: note.model_dump(exclude_defaults=True)}


def record_of(memory: Memory) -> MemoryRecord:
    """Return a memory as a record. A turn and the facts extracted from it have the topic of their session."""
    metadata = dict(memory.metadata)
    note = _read(metadata.pop(NOTE, {}))
    time = _naive(memory.event_at or memory.created_at)
    return MemoryRecord(
        id=memory.id,
        content=memory.text,
        scope=note.scope or topic_of(memory.session_id or ""),
        categories=note.categories,
        metadata=metadata,
        importance=note.importance,
        created_at=time,
        last_accessed=time,
        source=note.source,
        private=note.private,
    )


def _read(note: Any) -> Note:
    """Return the fields in a note; the defaults if something else wrote the metadata."""
    try:
        return Note.model_validate(note)
    except ValidationError:
        return Note()


def match_of(memory: RecalledMemory) -> Match:
    """Return a match with its own fence, because CrewAI joins matches and leaves some out."""
    return Match(record=record_of(memory), score=memory.score, block=found_text(memory))


class Selection(NamedTuple):
    """The records that a search may return."""

    topic: str
    categories: Sequence[str] | None
    sources: Sequence[str | None] | None
    """Sources whose private records are included; None means all."""

    @property
    def is_unfiltered(self) -> bool:
        return self.topic == ROOT and not self.categories

    def includes(self, record: MemoryRecord) -> bool:
        return (
            within(record.scope, self.topic)
            and (not self.categories or not set(self.categories).isdisjoint(record.categories))
            and (not record.private or self.sources is None or record.source in self.sources)
        )


class Records:
    """CrewAI's operations on the memories of one user with one agent; the level of recalls does not apply.

    They read the whole list, because the service does not know topics.
    """

    def __init__(self, open_session: Callable[[], MemorySession]) -> None:
        self._open_session = open_session

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        return list(islice(self._below(scope_prefix), offset, offset + limit))

    def list_scopes(self, parent: str = ROOT) -> list[str]:
        return _children(parent, self._below(parent))

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        return dict(Counter(category for record in self._below(scope_prefix) for category in record.categories))

    def get_scope_info(self, scope: str) -> ScopeInfo:
        found = list(self._below(scope))
        times = [record.created_at for record in found]
        return ScopeInfo(
            path=normalize_scope_path(scope),
            record_count=len(found),
            categories=sorted({category for record in found for category in record.categories}),
            oldest_record=min(times, default=None),
            newest_record=max(times, default=None),
            child_scopes=_children(scope, found),
        )

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Erase the records that meet all conditions, and return their number."""

        def matches(record: MemoryRecord) -> bool:
            return (
                (not categories or not set(categories).isdisjoint(record.categories))
                and (record_ids is None or record.id in record_ids)
                and (older_than is None or record.created_at < _naive(older_than))
                and all(record.metadata.get(key) == value for key, value in (metadata_filter or {}).items())
            )

        ids = [record.id for record in self._below(scope_prefix) if matches(record)]
        return sum(self._forget(part) for part in _parts(ids))

    def reset(self, scope_prefix: str | None = None) -> None:
        if normalize_scope_path(scope_prefix or ROOT) == ROOT:
            self._open_session().forget(level="agent")
        else:
            self.delete(scope_prefix)

    def _below(self, prefix: str | None) -> Iterator[MemoryRecord]:
        """Return the records of a topic and the topics below it, newest first."""
        return (record for record in map(record_of, self._memories()) if within(record.scope, prefix))

    def _memories(self) -> Iterator[Memory]:
        session = self._open_session()
        cursor: str | None = None
        while True:
            page = session.send(calls.list_memories(limit=MAX_PAGE, cursor=cursor))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _forget(self, ids: list[str]) -> int:
        counts = self._open_session().forget(memory_ids=ids).counts
        return counts.get("facts", 0) + counts.get("turns", 0)


def _children(parent: str, records: Iterable[MemoryRecord]) -> list[str]:
    """Return the topics one level below."""
    above = normalize_scope_path(parent).rstrip("/")
    names = {record.scope.removeprefix(above).strip("/").partition("/")[0] for record in records}
    return sorted(f"{above}/{name}" for name in names - {""})


def _parts(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + MAX_IDS_PER_CALL] for start in range(0, len(ids), MAX_IDS_PER_CALL))


def _naive(moment: datetime) -> datetime:
    """Return a time in UTC without time zone, as CrewAI writes it."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
