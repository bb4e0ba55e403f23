"""Memories as CrewAI's records, topics, and CrewAI's verbs on what is stored. CrewAI's scopes are topics here: paths
inside of one owner's memory, which nobody's rights hang on."""

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
"""Between a session's id and the topic of what is said in a view of it."""
NOTE = "crewai"
"""The key of what CrewAI says about a memory, in its metadata."""


class Match(MemoryMatch):
    """A memory found, which reads in a prompt as recalled text does everywhere."""

    block: str = Field(exclude=True, repr=False)

    def format(self) -> str:
        return self.block


def in_topic(session_id: str, topic: str) -> str:
    """The session of what is said about a topic: a turn has no other place to carry it."""
    return session_id if topic == ROOT else f"{session_id}#{topic.replace('%', '%25').replace('#', '%23')}"


def topic_of(session_id: str) -> str:
    """And back."""
    _, mark, topic = session_id.rpartition(IN_TOPIC)
    return f"/{topic.replace('%23', '#').replace('%25', '%')}" if mark else ROOT


def within(topic: str, prefix: str | None) -> bool:
    """Whether a topic is another one, or below it."""
    above = normalize_scope_path(prefix or ROOT)
    return above == ROOT or topic == above or topic.startswith(f"{above}/")


class Note(BaseModel):
    """What CrewAI says about a memory, as its metadata keep it."""

    scope: str | None = None
    categories: list[str] = Field(default_factory=list[str])
    importance: float = Field(default=0.5, ge=0, le=1)
    source: str | None = None
    private: bool = False


def note_of(record: MemoryRecord) -> dict[str, Any]:
    """The metadata of a fact that is to be this record."""
    if NOTE in record.metadata:
        raise InvalidRequest(f"metadata: reserved key: {NOTE}; the plugin keeps scope and categories under it")
    note = Note.model_validate(record, from_attributes=True)
    return {**record.metadata, NOTE: note.model_dump(exclude_defaults=True)}


def record_of(memory: Memory) -> MemoryRecord:
    """A memory as a record. A turn has the topic of its session, and so have the facts drawn from it."""
    metadata = dict(memory.metadata)
    note = _read(metadata.pop(NOTE, {}))
    said = _naive(memory.event_at or memory.created_at)
    return MemoryRecord(
        id=memory.id,
        content=memory.text,
        scope=note.scope or topic_of(memory.session_id or ""),
        categories=note.categories,
        metadata=metadata,
        importance=note.importance,
        created_at=said,
        last_accessed=said,
        source=note.source,
        private=note.private,
    )


def _read(note: Any) -> Note:
    """Metadata are anybody's: what is no note of ours says nothing."""
    try:
        return Note.model_validate(note)
    except ValidationError:
        return Note()


def match_of(memory: RecalledMemory) -> Match:
    """A match whose form in a prompt is fenced by itself: CrewAI joins them anew, and leaves some out."""
    return Match(record=record_of(memory), score=memory.score, block=found_text(memory))


class Wanted(NamedTuple):
    """Which records a search is for."""

    topic: str
    categories: Sequence[str] | None
    sources: Sequence[str | None] | None
    """Whose private records; None is everybody's."""

    @property
    def is_everything(self) -> bool:
        return self.topic == ROOT and not self.categories

    def has(self, record: MemoryRecord) -> bool:
        return (
            within(record.scope, self.topic)
            and (not self.categories or not set(self.categories).isdisjoint(record.categories))
            and (not record.private or self.sources is None or record.source in self.sources)
        )


class Records:
    """CrewAI's verbs on what one user has stored with one agent, whatever the level of a recall: what is listed may be
    erased. They read the whole list, as only there topics are known."""

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
        """Erase what all of the conditions hold for."""

        def is_meant(record: MemoryRecord) -> bool:
            return (
                (not categories or not set(categories).isdisjoint(record.categories))
                and (record_ids is None or record.id in record_ids)
                and (older_than is None or record.created_at < _naive(older_than))
                and all(record.metadata.get(key) == value for key, value in (metadata_filter or {}).items())
            )

        ids = [record.id for record in self._below(scope_prefix) if is_meant(record)]
        return sum(self._forget(part) for part in _parts(ids))

    def reset(self, scope_prefix: str | None = None) -> None:
        if normalize_scope_path(scope_prefix or ROOT) == ROOT:
            self._open_session().forget(level="agent")
        else:
            self.delete(scope_prefix)

    def _below(self, prefix: str | None) -> Iterator[MemoryRecord]:
        """The records of a topic, newest first."""
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
    """The topics one step below."""
    above = normalize_scope_path(parent).rstrip("/")
    names = {record.scope.removeprefix(above).strip("/").partition("/")[0] for record in records}
    return sorted(f"{above}/{name}" for name in names - {""})


def _parts(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + MAX_IDS_PER_CALL] for start in range(0, len(ids), MAX_IDS_PER_CALL))


def _naive(moment: datetime) -> datetime:
    """A time as CrewAI writes them: in UTC, without saying so."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
