"""`ThreefoldConversationStore`: conversations of Pydantic AI, with usage and open approvals, as sessions and turns."""

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
    """Return the adapter. It is built on first use, because it took a tenth of the import of this plugin."""
    return TypeAdapter(ConversationRecord)


class _Stored(NamedTuple):
    """A record and the revision of its session."""

    record: ConversationRecord | None
    revision: int


class ThreefoldConversationStore(ConversationStore):
    """The conversations of one user and agent. Each is a session; its messages are turns that recalls find.

    A message is stored once. A fork copies the history that it starts with, so that each conversation has all of its
    messages, and deleting it erases them for good. Unlike memory, the store raises every error, in an outage too.

    Args:
        client: The client (default: `AsyncMemoryClient.from_env()`).
        user: The user (default: the user of the client).
        agent: The agent (default: the agent of the client).
        visibility: Widest level at which the messages may be recalled (default `user`).

    Raises:
        InvalidRequest: The user or the agent is not a valid id.
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
        self._conversations: Bounded[str, str] = Bounded(KNOWN_ENTRIES)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None if it does not exist.

        Args:
            conversation_id: The conversation.

        Raises:
            InvalidRequest: The session of this id has the state of another framework.
            ThreefoldError: The service refused the call or did not answer.
        """
        return (await self._read_stored(conversation_id)).record

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of this user and agent, the last updated first.

        Args:
            scope: Only records of this scope (default: all).
            limit: Most records to return (default: all).

        Raises:
            InvalidRequest: A session has the state of another framework.
            ThreefoldError: The service refused the call or did not answer.
        """
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
        """Store new messages and the record of their conversation.

        Args:
            record: The record. If it is new and has no new entries, the history up to its head is copied into it.
            new_entries: The messages to add.
            expected_revision: The revision of the stored record; None for a new conversation.

        Raises:
            ConversationConflict: The stored record has another revision, or the history of a fork no longer exists.
            ThreefoldError: The service refused the call or did not answer.
        """
        stored = await self._read_stored(record.conversation_id)
        if (stored.record and stored.record.revision) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        forked = [] if stored.record or new_entries else await self._history_of_fork(record)
        try:
            await self._write(record, [*forked, *new_entries], stored.revision)
        except RevisionConflict:
            raise ConversationConflict(record.conversation_id) from None
        self._remember(record.conversation_id, [*(entry.id for entry in new_entries), *_head_ids(record)])

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Erase a conversation with everything in its session.

        Args:
            conversation_id: The conversation.
            expected_revision: The revision of the stored record.

        Raises:
            ConversationConflict: There is no such conversation, or it has another revision.
            ThreefoldError: The service refused the call or did not answer.
        """
        record = await self.read_record(conversation_id)
        if record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        await self._client.forget(session_id=conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one message.

        Args:
            entry_id: The id of an entry that this store has read or written; the newest 10,000 are known.

        Raises:
            LookupError: There is no such entry, or its conversation is not known to this store.
            ThreefoldError: The service refused the call or did not answer.
        """
        return (await self.read_history(entry_id, limit=1))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the messages of a conversation up to one, oldest first.

        Args:
            head_id: The id of the last entry, or None for an empty history.
            limit: Most messages to return, the newest (default: all).

        Raises:
            LookupError: There is no such entry, or its conversation is not known to this store.
            ThreefoldError: The service refused the call or did not answer.
        """
        if head_id is None:
            return []
        conversation_id = self._conversations[head_id]
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
        self._remember(conversation_id, _head_ids(record))
        return _Stored(record, found.revision)

    async def _history_of_fork(self, record: ConversationRecord) -> list[ConversationEntry]:
        try:
            return await self.read_history(record.head_id)
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None

    async def _write(self, record: ConversationRecord, entries: Iterable[ConversationEntry], revision: int) -> None:
        """Write the entries, and the record with the last of them, so that a record never names a missing entry."""
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
        """Remember the conversation of entries, because the framework asks for an entry by its id alone."""
        for entry in entries:
            self._conversations[entry] = conversation_id


def _head_ids(record: ConversationRecord) -> list[str]:
    """Return the ids of the last entries of a conversation's branches."""
    return [*record.branches, *filter(None, [record.head_id])]


def _parse(conversation_id: str, state: str) -> ConversationRecord:
    try:
        return _record().validate_json(state)
    except ValidationError:
        problem = f"session {conversation_id!r} does not hold a conversation of Pydantic AI"
    raise InvalidRequest(problem)


def _turns(entries: Iterable[ConversationEntry]) -> list[TurnIn]:
    """Return the turns of entries. The id of each turn names its entry and the parent of that entry."""
    groups: dict[str, str] = {}
    turns: list[TurnIn] = []
    for entry in entries:
        learn_groups(entry.message, groups)
        key = f"{entry.id}{SEPARATOR}{entry.parent_id or ''}"
        turns += [without_recalled(calls.turn_in(turn)) for turn in whole_turns_of(entry.message, key, groups)]
    return turns


def _entries(turns: Iterable[Turn]) -> Iterator[ConversationEntry]:
    """Yield the entries among turns. Turns of other writers and erased turns are skipped."""
    for key, parts in groupby(turns, key=lambda turn: turn.id.rpartition(SEPARATOR)[0]):
        entry, _, parent = key.partition(SEPARATOR)
        messages = messages_of(parts) if entry else []
        if messages:
            yield ConversationEntry(id=entry, parent_id=parent or None, message=messages[0])


def _chain(entries: Sequence[ConversationEntry], head_id: str) -> list[ConversationEntry]:
    """Return the history up to an entry. An erased parent is replaced by the entry that was written before it."""
    positions = {entry.id: position for position, entry in enumerate(entries)}
    position: int | None = positions[head_id]
    history: list[ConversationEntry] = []
    while position is not None and position >= 0:
        entry = entries[position]
        before = None if entry.parent_id is None else positions.get(entry.parent_id, position - 1)
        parent_id = entries[before].id if before is not None and before >= 0 else None
        history.append(replace(entry, parent_id=parent_id))
        position = before
    return history[::-1]
