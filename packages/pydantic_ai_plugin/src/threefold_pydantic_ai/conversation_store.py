"""`ThreefoldConversationStore`: whole conversations, with usage and open approvals, over the log of turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

from threefold import AsyncMemoryClient, InvalidRequest, NotFound, RevisionConflict, TurnIn, calls
from threefold.bounded import Bounded
from threefold.contract import MAX_PAGE, Turn, Visibility
from threefold.session import chunks, without_recalled
from threefold_pydantic_ai.messages import SEPARATOR, learn_groups, messages_of, whole_turns_of
from threefold_pydantic_ai.replay import turns_from

KNOWN_ENTRIES = 10_000


@cache
def _record() -> TypeAdapter[ConversationRecord]:
    """Built when it is first used: it was a tenth of the import of this plugin."""
    return TypeAdapter(ConversationRecord)


class _Stored(NamedTuple):
    """A record and the revision of the session that holds it."""

    record: ConversationRecord | None
    revision: int


class ThreefoldConversationStore(ConversationStore):
    """The conversations of one user and agent: each is a session, its messages are turns, and recalls find them.

    A message is stored once. A fork copies the history that it starts with, so that each conversation holds all of its
    messages, and `delete` erases them for good. It raises what goes wrong: a conversation is not augmentation.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        user: str | None = None,
        agent: str | None = None,
        visibility: Visibility | None = None,
    ) -> None:
        base = client or AsyncMemoryClient.from_env()
        self._client = base.acting_as(user=base.user if user is None else user, agent=agent or base.agent)
        self._visibility: Visibility | None = visibility
        self._homes: Bounded[str, str] = Bounded(KNOWN_ENTRIES)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return (await self._read_stored(conversation_id)).record

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        records: list[ConversationRecord] = []
        cursor: str | None = None
        while True:
            page = await self._client.sessions(cursor=cursor, limit=MAX_PAGE, state=True)
            records += [_parse(each.session_id, each.state) for each in page.sessions if each.state is not None]
            cursor = page.next_cursor
            if cursor is None:
                break
        chosen = [record for record in records if scope is None or record.scope == scope]
        return sorted(chosen, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        stored = await self._read_stored(record.conversation_id)
        if (stored.record and stored.record.revision) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        forked = [] if stored.record or new_entries else await self._forked(record)
        try:
            await self._write(record, [*forked, *new_entries], stored.revision)
        except RevisionConflict:
            raise ConversationConflict(record.conversation_id) from None
        self._remember(record.conversation_id, [*(entry.id for entry in new_entries), *_ends(record)])

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        record = await self.read_record(conversation_id)
        if record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        await self._client.forget(session_id=conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return (await self.read_history(entry_id, limit=1))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        if head_id is None:
            return []
        conversation_id = self._homes[head_id]
        try:
            turns = await turns_from(self._client.send, conversation_id, 1)
        except NotFound:
            raise LookupError(head_id) from None
        history = _chain(list(_entries(turns)), head_id)
        self._remember(conversation_id, [entry.id for entry in history])
        return history if limit is None else history[max(0, len(history) - limit) :]

    async def _read_stored(self, conversation_id: str) -> _Stored:
        try:
            found = await self._client.state(conversation_id)
        except NotFound:
            return _Stored(None, 0)
        if found.state is None:
            return _Stored(None, found.revision)
        record = _parse(conversation_id, found.state)
        self._remember(conversation_id, _ends(record))
        return _Stored(record, found.revision)

    async def _forked(self, record: ConversationRecord) -> list[ConversationEntry]:
        try:
            return await self.read_history(record.head_id)
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None

    async def _write(self, record: ConversationRecord, entries: Iterable[ConversationEntry], revision: int) -> None:
        """The record goes with the last of the turns: whatever comes between, it names no entry that is not there."""
        parts = chunks(_turns(entries))
        for turns in parts[:-1]:
            written = await self._client.write(
                record.conversation_id, turns, visibility=self._visibility, expected_revision=revision
            )
            revision = written.revision
        await self._client.write(
            record.conversation_id,
            parts[-1],
            visibility=self._visibility,
            run_end=True,
            state=_record().dump_json(record).decode(),
            expected_revision=revision,
        )

    def _remember(self, conversation_id: str, entries: Iterable[str]) -> None:
        """Which conversation holds an entry: the framework asks for entries by their ids alone."""
        for entry in entries:
            self._homes[entry] = conversation_id


def _ends(record: ConversationRecord) -> list[str]:
    """Where the histories of a conversation end."""
    return [*record.branches, *filter(None, [record.head_id])]


def _parse(conversation_id: str, state: str) -> ConversationRecord:
    try:
        return _record().validate_json(state)
    except ValidationError:
        problem = f"session {conversation_id!r} holds the state of something else than a conversation of Pydantic AI"
    raise InvalidRequest(problem)


def _turns(entries: Iterable[ConversationEntry]) -> list[TurnIn]:
    """The turns of entries. The id of each names its entry and the entry before that."""
    groups: dict[str, str] = {}
    turns: list[TurnIn] = []
    for entry in entries:
        learn_groups(entry.message, groups)
        key = f"{entry.id}{SEPARATOR}{entry.parent_id or ''}"
        turns += [without_recalled(calls.turn_in(turn)) for turn in whole_turns_of(entry.message, key, groups)]
    return turns


def _entries(turns: Iterable[Turn]) -> Iterator[ConversationEntry]:
    """The entries among turns; what others wrote into the session, or an erasure took, is none."""
    for key, parts in groupby(turns, key=lambda turn: turn.id.rpartition(SEPARATOR)[0]):
        entry, _, parent = key.partition(SEPARATOR)
        messages = messages_of(parts) if entry else []
        if messages:
            yield ConversationEntry(id=entry, parent_id=parent or None, message=messages[0])


def _chain(entries: Sequence[ConversationEntry], head_id: str) -> list[ConversationEntry]:
    """The history up to an entry. Where a forget took one away, the entry written before goes on in its place."""
    places = {entry.id: place for place, entry in enumerate(entries)}
    place: int | None = places[head_id]
    history: list[ConversationEntry] = []
    while place is not None and place >= 0:
        entry = entries[place]
        before = None if entry.parent_id is None else places.get(entry.parent_id, place - 1)
        known = entries[before].id if before is not None and before >= 0 else None
        history.append(replace(entry, parent_id=known))
        place = before
    return history[::-1]
