"""Appending turns: one transaction, and no answer before its commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import anyio.to_thread

from threefold.contract import TurnIn, WriteRequest, WriteResponse
from threefold.errors import Conflict, RevisionConflict
from threefold_server.access import Principal, Reach, ScopeFilter, check_quota, session_scope
from threefold_server.models.tokens import count_tokens
from threefold_server.redaction import Redact, redact_json
from threefold_server.service import Service
from threefold_server.storage import erasures, sessions, tasks, turns
from threefold_server.storage.database import Connection
from threefold_server.storage.sessions import SessionRow

MICROS = 1_000_000
COUNT_INLINE_CHARS = 20_000  # about 1 ms of counting; more would hold up the event loop


async def write_turns(service: Service, principal: Principal, request: WriteRequest) -> WriteResponse:
    """Append turns to the caller's session, all or none. Repeated ids with the same content are counted, not stored.

    Workers are not woken: they look several times a second, and turns that gather meanwhile are indexed together.
    """
    if service.settings.redact == "all":
        request = await anyio.to_thread.run_sync(_redacted, request, service.redact)
    counts = await _count(request.turns)
    job = _Append(service, principal, session_scope(principal, request.session_id), request, counts, service.clock())
    try:
        return await service.database.write(principal.owner, job.run, pipelined=True)
    except _AllErased as late:
        return late.response


def _redacted(request: WriteRequest, redact: Redact) -> WriteRequest:
    """The turns without secrets in their contents and payloads: not what was said any more, so no exact replay."""
    clean = [
        turn.model_copy(
            update={
                "content": redact(turn.content),
                "name": turn.name and redact(turn.name),
                "payload": None if turn.payload is None else redact_json(turn.payload, redact),
            }
        )
        for turn in request.turns
    ]
    return request.model_copy(update={"turns": clean})


async def _count(batch: Sequence[TurnIn]) -> list[int]:
    texts = [turn.content for turn in batch]
    if sum(map(len, texts)) <= COUNT_INLINE_CHARS:
        return [count_tokens(text) for text in texts]
    return await anyio.to_thread.run_sync(lambda: [count_tokens(text) for text in texts])


@dataclass(frozen=True)
class _Found:
    """What a write finds: the session, its turns by the ids that come again, which ids were erased, and how many turns
    the owner has where there is a quota."""

    session: SessionRow
    known: dict[str, dict[str, Any]]
    gone: Collection[str]
    turns_held: int


@dataclass(frozen=True)
class _Append:
    """One write, as its transaction sees it."""

    service: Service
    principal: Principal
    scope: ScopeFilter
    request: WriteRequest
    counts: list[int]
    now: int

    @property
    def session(self) -> UUID:
        assert self.scope.session is not None
        return self.scope.session

    @property
    def quota(self) -> int | None:
        return self.service.settings.max_turns_per_user

    def run(self, connection: Connection) -> WriteResponse:
        found = self._look(connection)
        if found is None or not found.session.named:
            sessions.create(connection, self.principal, self.scope, self.request.session_id, self.now)
            found = self._look(connection)
            assert found is not None
        row = found.session
        fresh, duplicates, erased = self._sort(found.known, found.gone)
        state = None if erased else self._new_state(connection)
        changes = bool(fresh) or state is not None
        if changes:
            self._check_revision(row.revision)
        scheduled = False
        if fresh:
            check_quota("turns", found.turns_held, len(fresh), self.quota)
            self._append(connection, row.last_seq + 1, fresh)
            scheduled = self._schedule(connection, row, sum(tokens for _, tokens in fresh))
        if state is not None:
            sessions.set_state(connection, self.scope.owner, self.session, state, is_revision=not fresh, now=self.now)
        response = WriteResponse(
            appended=len(fresh),
            duplicates=duplicates,
            erased=erased,
            last_seq=row.last_seq + len(fresh),
            revision=row.revision + (1 if changes else 0),
            scheduled=scheduled,
        )
        if erased and response.last_seq == 0:
            raise _AllErased(response)
        return response

    def _look(self, connection: Connection) -> _Found | None:
        """What is there of the session, under its lock; None if it has not begun."""
        ids = [turn.id for turn in self.request.turns if turn.id is not None]
        locked = sessions.start_lock(connection, self.scope)
        known = turns.start_contents(connection, self.scope.owner, self.session, ids)
        turns_held = sessions.start_turns_held(connection, self.scope.owner) if self.quota else None
        any_erased = erasures.start_any_erased(connection, self.scope.owner)
        row = locked()
        if row is None:
            return None
        gone = self._erased(connection, ids) if any_erased() else set[str]()
        return _Found(row, known(), gone, turns_held() if turns_held else 0)

    def _new_state(self, connection: Connection) -> str | None:
        """The state to store; none where it is there already, as in a repeated write."""
        state = self.request.state
        if state is None or state == sessions.state_of(connection, self.scope.owner, self.session):
            return None
        return state

    def _check_revision(self, revision: int) -> None:
        expected = self.request.expected_revision
        if expected is not None and expected != revision:
            raise RevisionConflict(
                f"the session is at revision {revision}, not {expected}; read it again", {"revision": revision}
            )

    def _erased(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        return erasures.erased_among(connection, self.scope.owner, self.session, ids, self.now)

    def _sort(
        self, known: dict[str, dict[str, Any]], gone: Collection[str]
    ) -> tuple[list[tuple[TurnIn, int]], int, int]:
        """Turns to append with their tokens, and how many are duplicates or were erased."""
        fresh: list[tuple[TurnIn, int]] = []
        duplicates = erased = 0
        for turn, tokens in zip(self.request.turns, self.counts, strict=True):
            turn_id = turn.id or uuid4().hex
            content = turns.content_of(turn)
            if turn_id in gone:
                erased += 1
            elif turn_id not in known:
                known[turn_id] = content
                fresh.append((turn.model_copy(update={"id": turn_id}), tokens))
            elif known[turn_id] == content or self.request.on_conflict == "keep":
                duplicates += 1
            else:
                raise Conflict(
                    f"turn id {turn_id!r} was written before with other content; nothing of this call was stored",
                    {"turn_id": turn_id},
                )
        return fresh, duplicates, erased

    def _append(self, connection: Connection, first_seq: int, fresh: list[tuple[TurnIn, int]]) -> None:
        visibility = Reach[self.request.visibility or "user"]
        turns.append(connection, self.scope.owner, self.session, first_seq, fresh, visibility=visibility, now=self.now)
        tokens = sum(count for _, count in fresh)
        sessions.advance(connection, self.scope.owner, self.session, turns=len(fresh), tokens=tokens, now=self.now)

    def _schedule(self, connection: Connection, row: SessionRow, added: int) -> bool:
        """Make indexing due, and folding too once the undigested turns have passed the trigger; at a run's end, which
        is a good moment, once they have passed the target."""
        tasks.schedule(connection, self.scope.owner, self.session, "index", self.now)
        settings = self.service.settings
        enough = settings.target if self.request.run_end else settings.trigger
        fold = settings.rolling_summary and row.tokens + added - row.digested_tokens > enough
        if fold:
            tasks.schedule(connection, self.scope.owner, self.session, "fold", self.now)
        return self._schedule_extraction(connection, row.tokens, added, enough) or fold

    def _schedule_extraction(self, connection: Connection, before: int, added: int, every: int) -> bool:
        """Facts are drawn each time that so many tokens have come, and when the session has been idle."""
        if self.service.extractor is None:
            return False
        enough = before // every != (before + added) // every
        due_at = self.now if enough else self.now + int(self.service.settings.idle_seconds * MICROS)
        tasks.appoint(connection, self.scope.owner, self.session, "extract", due_at, self.now)
        return enough


class _AllErased(Exception):
    """Every turn of a new session was erased before: undone, a late writer brings back not even the session's name."""

    def __init__(self, response: WriteResponse) -> None:
        super().__init__("all turns were erased")
        self.response = response
