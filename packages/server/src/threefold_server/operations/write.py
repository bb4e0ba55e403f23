"""Appending turns to a session: one transaction, answered after its commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import anyio.to_thread

from threefold.contract import TurnIn, WriteRequest, WriteResponse
from threefold.errors import Conflict, RevisionConflict
from threefold_server.clock import MICROS
from threefold_server.rules.access import Principal, Reach, ScopeFilter, check_quota, session_scope
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.erasure import erased_ids
from threefold_server.storage.sessions import append, sessions, tasks, turns
from threefold_server.storage.sessions.append import Thresholds
from threefold_server.storage.sessions.sessions import SessionRow
from threefold_server.text.redaction import Redact, redact_json
from threefold_server.text.tokens import count_tokens

NEVER = 2**62  # more tokens than a session can have
COUNT_INLINE_CHARS = 20_000  # about 1 ms of counting; longer texts are counted in a thread


async def write_turns(service: Service, principal: Principal, request: WriteRequest) -> WriteResponse:
    """Append turns to the caller's session, all or none. A repeated id with the same content is counted, not stored.

    Workers are not woken: they poll several times a second, and turns that arrive in between are indexed together.

    Raises:
        Conflict: A turn id was written before with other content.
        RevisionConflict: The session is not at the expected revision.
        QuotaExceeded: The user would have more turns than the store allows.
    """
    if service.settings.redact == "all":
        request = await anyio.to_thread.run_sync(_redact, request, service.redact)
    counts = await _count(request.turns)
    write = _Append(service, principal, session_scope(principal, request.session_id), request, counts, service.clock())
    if write.fits_fast_path and (before := await service.database.write_at_once(principal.owner, write.send)):
        return write.all_appended(before)
    try:
        return await service.database.write(principal.owner, write.run, pipelined=True)
    except _AllErased as rolled_back:
        return rolled_back.response


def _redact(request: WriteRequest, redact: Redact) -> WriteRequest:
    """Return the request without secrets in contents, names, payloads and the session's state.

    A replay is then no longer exact.
    """
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
    state = None if request.state is None else redact_json(request.state, redact)
    return request.model_copy(update={"turns": clean, "state": state})


async def _count(batch: Sequence[TurnIn]) -> list[int]:
    texts = [turn.content for turn in batch]
    if sum(map(len, texts)) <= COUNT_INLINE_CHARS:
        return [count_tokens(text) for text in texts]
    return await anyio.to_thread.run_sync(lambda: [count_tokens(text) for text in texts])


@dataclass(frozen=True)
class _Append:
    """One write request, prepared for its transaction.

    The fast path (`send`) writes in one round trip on Postgres; the slow path (`run`) handles every request.
    """

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

    @property
    def fits_fast_path(self) -> bool:
        """Whether the request has turns with distinct ids and nothing else, and no quota applies."""
        request = self.request
        ids = [turn.id for turn in request.turns if turn.id is not None]
        only_turns = request.state is None and request.expected_revision is None and self.quota is None
        return only_turns and bool(request.turns) and len(set(ids)) == len(ids)

    def send(self, connection: Connection) -> Callable[[], SessionRow | None]:
        """Send the write in one round trip.

        The returned function gives, after the commit, the session before the write, or None if nothing was written.
        """
        batch = [(_with_id(turn), tokens) for turn, tokens in zip(self.request.turns, self.counts, strict=True)]
        return append.send_append(connection, self.scope, self._rows(batch, after=0), self._thresholds, self.now)

    def all_appended(self, before: SessionRow) -> WriteResponse:
        count = len(self.request.turns)
        return WriteResponse(
            appended=count,
            duplicates=0,
            erased=0,
            last_seq=before.last_seq + count,
            revision=before.revision + 1,
            scheduled=any(self._due(before, sum(self.counts))),
        )

    def run(self, connection: Connection) -> WriteResponse:
        sessions.ensure_owner(connection, self.principal, self.now)
        locked = sessions.send_lock(connection, self.scope, self.request.session_id, self.now)
        ids = [turn.id for turn in self.request.turns if turn.id is not None]
        known = turns.send_contents(connection, self.scope.owner, self.session, ids)
        turn_count = sessions.send_turn_count(connection, self.scope.owner) if self.quota else None
        any_erased = erased_ids.send_any_erased(connection, self.scope.owner)
        row = locked()
        erased_before = self._erased(connection, ids) if any_erased() else set[str]()
        fresh, duplicates, erased = self._classify(known(), erased_before)
        state = None if erased else self._new_state(connection)
        changes = bool(fresh) or state is not None
        if changes:
            self._check_revision(row.revision)
        scheduled = False
        if fresh:
            check_quota("turns", turn_count() if turn_count else 0, len(fresh), self.quota)
            scheduled = self._append(connection, row, fresh)
        if state is not None:
            sessions.set_state(connection, self.scope.owner, self.session, state, is_revision=not fresh)
        response = WriteResponse(
            appended=len(fresh),
            duplicates=duplicates,
            erased=erased,
            last_seq=row.last_seq + len(fresh),
            revision=row.revision + changes,
            scheduled=scheduled,
        )
        if erased and response.last_seq == 0:
            raise _AllErased(response)
        return response

    def _new_state(self, connection: Connection) -> str | None:
        """Return the state to store; None if it is stored already, as after a repeated write."""
        state = self.request.state
        if state is None or state == sessions.state_of(connection, self.scope.owner, self.session):
            return None
        return state

    def _check_revision(self, revision: int) -> None:
        expected = self.request.expected_revision
        if expected is not None and expected != revision:
            raise RevisionConflict(
                f"the session is at revision {revision}, not {expected}; read its state and write again",
                {"revision": revision},
            )

    def _erased(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        return erased_ids.erased_among(connection, self.scope.owner, self.session, ids, self.now)

    def _classify(
        self, known: dict[str, dict[str, Any]], erased_before: Collection[str]
    ) -> tuple[list[tuple[TurnIn, int]], int, int]:
        """Return the turns to append with their tokens, and the numbers of duplicates and erased turns."""
        fresh: list[tuple[TurnIn, int]] = []
        duplicates = erased = 0
        for turn, tokens in zip(self.request.turns, self.counts, strict=True):
            if turn.id is None:
                fresh.append((_with_id(turn), tokens))
            elif turn.id in erased_before:
                erased += 1
            elif turn.id not in known:
                known[turn.id] = turns.content_of(turn)
                fresh.append((turn, tokens))
            elif known[turn.id] == turns.content_of(turn) or self.request.on_conflict == "keep":
                duplicates += 1
            else:
                raise Conflict(
                    f"turn id {turn.id!r} was written before with other content; nothing of this call was stored",
                    {"turn_id": turn.id},
                )
        return fresh, duplicates, erased

    def _append(self, connection: Connection, row: SessionRow, fresh: list[tuple[TurnIn, int]]) -> bool:
        """Store new turns. Return whether folding or extraction became due."""
        turns.append(connection, self.scope.owner, self.session, self._rows(fresh, after=row.last_seq))
        added = sum(count for _, count in fresh)
        sessions.advance(connection, self.scope.owner, self.session, turns=len(fresh), tokens=added)
        return self._schedule(connection, row, added)

    def _rows(self, batch: list[tuple[TurnIn, int]], *, after: int) -> list[dict[str, Any]]:
        return turns.rows_of(batch, after=after, visibility=Reach[self.request.visibility or "user"], now=self.now)

    @property
    def _thresholds(self) -> Thresholds:
        """The numbers of tokens, and the time, at which tasks become due.

        A fold is due when the undigested tokens exceed the trigger, or at the end of a run the target. An extraction is
        due after the same number of new tokens, and when the session has been idle.
        """
        settings = self.service.settings
        threshold = settings.target if self.request.run_end else settings.trigger
        idle_at = self.now + int(settings.idle_seconds * MICROS)
        return Thresholds(
            fold_above=threshold if settings.rolling_summary else NEVER,
            extract_every=threshold,
            idle_at=None if self.service.extractor is None else idle_at,
        )

    def _schedule(self, connection: Connection, row: SessionRow, added: int) -> bool:
        """Make indexing due, and folding and extraction as the thresholds say. Return whether one of them is."""
        make_due = partial(tasks.schedule, connection, self.scope.owner, self.session)
        make_due("index", self.now)
        folds, extracts = self._due(row, added)
        if folds:
            make_due("fold", self.now)
        if self._thresholds.idle_at is not None:
            due_at = self.now if extracts else self._thresholds.idle_at
            tasks.reschedule(connection, self.scope.owner, self.session, "extract", due_at, self.now)
        return folds or extracts

    def _due(self, row: SessionRow, added: int) -> tuple[bool, bool]:
        """Return whether a fold and an extraction are due."""
        thresholds = self._thresholds
        folds = tasks.folds(row.tokens, row.digested_tokens, added, thresholds.fold_above)
        return folds, thresholds.idle_at is not None and tasks.extracts(row.tokens, added, thresholds.extract_every)


def _with_id(turn: TurnIn) -> TurnIn:
    return turn if turn.id is not None else turn.model_copy(update={"id": uuid4().hex})


class _AllErased(Exception):
    """Raised to roll back, so that no session row is created for turns that were all erased before."""

    def __init__(self, response: WriteResponse) -> None:
        super().__init__("all turns were erased")
        self.response = response
