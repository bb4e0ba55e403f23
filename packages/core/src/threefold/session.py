"""`MemorySession` and `AsyncMemorySession`: client, identity and outage policy in one object, as plugins use it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Unpack, cast

from threefold import calls
from threefold.async_client import AsyncMemoryClient
from threefold.calls import Call, ForgetOptions, R, RecallOptions, RecordOptions, SaveOptions, TurnLike
from threefold.checks import checked, checked_id
from threefold.client import MemoryClient
from threefold.contract import (
    MAX_QUERY_CHARS,
    MAX_TURNS_PER_WRITE,
    ForgetReceipt,
    Memory,
    RecallResponse,
    StorePolicy,
    TokenUse,
    Turn,
    TurnIn,
    WhoAmI,
    WriteRequest,
)
from threefold.contract.common import clean_text
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.graphemes import middle_cut
from threefold.policy import OUTAGE, FailureMode, Policy, Stats, is_refusal
from threefold.render import FENCE_MARK, join_block, strip_block, turn_line
from threefold.spool import Entry, SessionKey
from threefold.turn_groups import SMALLEST_CUT, fit_window

SERVICE_DOWN = "service"
BYTES_PER_TOKEN = 3
REFUSED = "refused"
MAX_WRITE_CHARS = 5_000_000  # of one request: 20 MB at most in UTF-8, below the service's limit of 32 MiB
CATCH_UP = 32  # older writes that one `record` sends: sending all writes of an outage delayed an agent by 39 s


@dataclass
class _Batch:
    """The writes of one `record`; no writes if only the spool is sent."""

    session: SessionKey | None = None
    """A failure of this session ends the sending; a failure of another session only skips that session."""
    entries: list[Entry] = field(default_factory=list[Entry])
    unspooled: set[str] = field(default_factory=set[str])
    """Names of entries for which the spool had no room: only this call can send them."""
    lost: bool = False
    """A turn was refused, by this client or by the service."""
    skipped: dict[SessionKey, ThreefoldError] = field(default_factory=dict[SessionKey, ThreefoldError])
    """The error of each session that the service failed to serve while it served others."""

    def check_sent(self) -> None:
        """Raise the error of the first skipped session."""
        for error in self.skipped.values():
            raise error


class _Session:
    """What both sessions share: everything except the calls of the client."""

    def __init__(self, client: MemoryClient | AsyncMemoryClient, session_id: str, policy: Policy | None) -> None:
        self.session_id = checked_id("session_id", session_id)
        self.policy = policy or Policy()
        self.key = SessionKey(client.origin, client.user, client.agent, session_id)

    @property
    def stats(self) -> Stats:
        """The counters of the policy."""
        return self.policy.stats

    @property
    def store(self) -> StorePolicy:
        """The policy of the store; the default policy until the store has been asked."""
        return self.policy.store(self.key.origin)

    @property
    def failure_mode(self) -> FailureMode:
        """The mode of the policy if it was given, else the mode that the store asks for, else `soft`."""
        return self.policy.failure_mode(self.key.origin)

    @property
    def _strict(self) -> bool:
        return self.failure_mode == "strict"

    def _degraded(self, error: ThreefoldError, options: RecallOptions) -> RecallResponse:
        """Return the tail in an outage. After a refusal return nothing, because this identity may no longer read."""
        if is_refusal(error):
            return RecallResponse(degraded=[REFUSED])
        with_window = "short_term" in options.get("include", ("short_term",))
        budget = options.get("token_budget")
        turns = self.policy.tails.read(self.key) if with_window else []
        return degraded_recall(turns, self.store.token_budget if budget is None else budget)

    def _spool(self, turns: Sequence[TurnLike], options: RecordOptions) -> _Batch:
        """Put the turns into the spool before any is sent, so that no outage or cancellation loses them."""
        batch = _Batch(self.key)
        accepted = self._accepted(turns, batch)
        if accepted or options.get("run_end"):
            requests = self._requests(accepted, options)
            batch.entries = [Entry(self.policy.stamp(), self.key, request) for request in requests]
            batch.unspooled = {entry.name for entry in batch.entries if not self.policy.spool.put(entry)}
            self.policy.tails.extend(self.key, map(_unsent_turn, accepted))
        return batch

    def _accepted(self, turns: Sequence[TurnLike], batch: _Batch) -> list[TurnIn]:
        """Return the valid turns. Raise for an invalid turn in strict mode; else count it as dropped."""
        accepted: list[TurnIn] = []
        for turn in turns:
            try:
                accepted.extend(recordable(calls.turn_in(turn)))
            except InvalidRequest as error:
                if self._strict:
                    raise
                self.policy.refused(error)
                self.stats.add(dropped=1)
                batch.lost = True
        return accepted

    def _requests(self, turns: list[TurnIn], options: RecordOptions) -> list[WriteRequest]:
        *parts, last = chunks(turns)
        continued: RecordOptions = {**options, "run_end": False}
        return [
            *(checked(WriteRequest, session_id=self.session_id, turns=part, **continued) for part in parts),
            checked(WriteRequest, session_id=self.session_id, turns=last, **options),
        ]

    def _entries_to_send(self, batch: _Batch) -> Iterator[Entry]:
        """Yield the entries to send now: of this session in order (strict: all of them), then of other sessions.

        In soft mode at most `CATCH_UP` spooled entries of this session are sent, and of the others in both modes.
        """
        spool = self.policy.spool
        yield from islice(spool.pending(self.key.origin, self.key), None if self._strict else CATCH_UP)
        yield from [entry for entry in batch.entries if entry.name in batch.unspooled]
        yield from islice(self._spooled(batch), CATCH_UP)

    @contextmanager
    def _entry_guard(self, entry: Entry, batch: _Batch) -> Generator[None]:
        """Guard the sending of one entry: remove it from the spool once the service has stored or refused it."""
        own = entry in batch.entries
        try:
            with self.policy.call():
                yield
        except ThreefoldError as error:
            if is_refusal(error):
                self._refused(entry, batch)
                if own and self._strict:
                    raise
            elif isinstance(error, OUTAGE) or entry.key == batch.session:
                raise
            else:
                batch.skipped[entry.key] = error
        else:
            self.policy.sent(entry, late=not own)
            batch.unspooled.discard(entry.name)

    def _refused(self, entry: Entry, batch: _Batch) -> None:
        self.policy.drop(entry)
        batch.unspooled.discard(entry.name)
        batch.lost |= entry in batch.entries

    @contextmanager
    def _batch_guard(self, batch: _Batch) -> Generator[None]:
        """Guard the sending of a batch. After a failure, soft leaves the rest in the spool; strict removes it and
        raises."""
        try:
            yield
        except ThreefoldError as error:
            if self._strict and (is_refusal(error) or self._unsent(batch)):
                for entry in self._unsent(batch):
                    self.policy.spool.remove(entry)
                batch.entries = []
                raise
        finally:
            self._count_unsent(batch)

    def _unsent(self, batch: _Batch) -> list[Entry]:
        return [entry for entry in batch.entries if entry.name in batch.unspooled or self.policy.spool.holds(entry)]

    def _count_unsent(self, batch: _Batch) -> None:
        """Count what was not sent, also after a cancellation: as spooled, or as dropped if the spool had no room."""
        for entry in self._unsent(batch):
            if entry.name in batch.unspooled:
                self.policy.drop(entry)
            else:
                self.stats.add(spooled=len(entry.request.turns))

    def _complete(self, batch: _Batch) -> bool:
        return not batch.lost and not self._unsent(batch)

    def _with_tail_seeded(self, response: RecallResponse) -> RecallResponse:
        self.policy.tails.seed(self.key, response.window)
        return response

    def _spooled(self, batch: _Batch, *, own: bool = False) -> Iterator[Entry]:
        """Yield the spooled entries of all users, or of this user, without sessions that failed in this pass."""
        for entry in self.policy.spool.pending(self.key.origin):
            if entry.key not in batch.skipped and (not own or entry.key.user == self.key.user):
                yield entry

    def _remembered(self, whoami: WhoAmI) -> WhoAmI:
        self.policy.remember_identity(self.key, whoami)
        return whoami

    def _with_tails_dropped(self, receipt: ForgetReceipt) -> ForgetReceipt:
        if not receipt.dry_run:
            self.policy.tails.forget_user(self.key)
        return receipt

    @contextmanager
    def _policy_guard(self) -> Generator[None]:
        """Guard the question for the store's policy: after an outage a later call asks again; after a refusal the
        default applies."""
        try:
            with self.policy.call():
                yield
        except ThreefoldError as error:
            if is_refusal(error):
                self.policy.remember_store(self.key.origin, StorePolicy())

    @property
    def _knows_store(self) -> bool:
        return self.policy.knows_store(self.key.origin)


class MemorySession(_Session):
    """One session of one user and agent, for synchronous code. It is cheap: make one per run.

    Args:
        client: The client whose connections are used; it may be shared by any number of sessions.
        session_id: The session, 1 to 512 characters.
        user: The user to act for (default: the user of the client).
        agent: The agent to act as (default: the agent of the client).
        policy: Failure mode, breaker and spool (default: a new `Policy()`). Share one between the sessions of a
            program: the breaker and the spool belong to it.

    Raises:
        InvalidRequest: The session, the user or the agent is not a valid id.
    """

    def __init__(
        self,
        client: MemoryClient,
        session_id: str,
        *,
        user: str | None = None,
        agent: str | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.client = client.acting_as(
            user=client.user if user is None else user, agent=client.agent if agent is None else agent
        )
        super().__init__(self.client, session_id, policy)

    def recall(self, query: str, **options: Unpack[RecallOptions]) -> RecallResponse:
        """Return window, digest and memories for a query, in both failure modes without raising.

        Args:
            query: The question or message. It is cleaned, and cut in the middle to 10,000 characters.
            **options: As for `MemoryClient.recall`.

        Returns:
            The answer. `degraded` says what is missing: `service` in an outage, in which case the window has the turns
            that this process has seen, and `refused` if the call was refused; the log says why.
        """
        try:
            with self.policy.call():
                response = self.client.recall(fitting_query(query), session_id=self.session_id, **options)
        except ThreefoldError as error:
            return self._degraded(error, options)
        self._ask_for_policy()
        return self._with_tail_seeded(response)

    def record(self, turns: Sequence[TurnLike], **options: Unpack[RecordOptions]) -> bool:
        """Append turns to the session, after older turns that are still unsent.

        Recalled blocks are removed from the turns first. Unsent turns wait in the spool for a later call.

        Args:
            turns: Any number of turns, as mappings or `TurnIn`; they are sent in requests of 1,000 turns.
            **options: `visibility`, `run_end`, `on_conflict`, as for `MemoryClient.write`.

        Returns:
            True if the service has stored all of the turns.

        Raises:
            ThreefoldError: In the failure mode `strict`, if the service did not store all of the turns; those turns
                do not wait in the spool. In the mode `soft`, no error of the service is raised.
            InvalidRequest: An option is wrong; in the mode `strict` also if a turn is wrong.
        """
        batch = self._spool(turns, options)
        with self._batch_guard(batch):
            for entry in self._entries_to_send(batch):
                with self._entry_guard(entry, batch):
                    self._sender(entry).send(calls.write_request(entry.request))
            self._ask_for_policy()
        return self._complete(batch)

    def save(self, text: str, **options: Unpack[SaveOptions]) -> Memory:
        """Save one statement as a fact, without a model.

        Args:
            text: The statement, 1 to 10,000 characters without recalled blocks.
            **options: As for `MemoryClient.save`.

        Returns:
            The fact as stored, with its id.

        Raises:
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        with self.policy.call():
            return self.client.save(strip_block(text), session_id=self.session_id, **options)

    def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        """Erase what one selector names.

        The unsent turns of this user are sent first, so that the service knows their ids as erased.

        Args:
            **selector: As for `MemoryClient.forget`.

        Returns:
            The receipt.

        Raises:
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        self._send_spooled(own=True)
        with self.policy.call():
            return self._with_tails_dropped(self.client.forget(**selector))

    def flush(self) -> bool:
        """Send everything in the spool, of every session.

        Returns:
            True if no entry is left, False if the service did not take one.

        Raises:
            ThreefoldError: In the failure mode `strict`, if an entry is left.
        """
        try:
            self._send_spooled()
        except ThreefoldError:
            if self._strict:
                raise
            return False
        return True

    def send(self, call: Call[R]) -> R:
        """Send any other call of `threefold.calls` under the policy.

        Args:
            call: The operation as data.

        Returns:
            The validated answer of the service.

        Raises:
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        with self.policy.call():
            return self.client.send(call)

    def whoami(self) -> WhoAmI:
        """Return the verified identity of this session, its limits, and the policy of the store.

        Returns:
            The identity. The policy remembers it.

        Raises:
            ThreefoldError: The service refused the identity or did not answer, in both failure modes.
        """
        return self._remembered(self.send(calls.whoami()))

    def identity(self) -> WhoAmI | None:
        """Return the verified identity; the service is asked once per user and agent of a policy.

        Returns:
            The identity, or None if the service refused it or did not answer.
        """
        try:
            return self.policy.known_identity(self.key) or self.whoami()
        except ThreefoldError:
            return None

    def _send_spooled(self, *, own: bool = False) -> None:
        batch = _Batch()
        for entry in self._spooled(batch, own=own):
            with self._entry_guard(entry, batch):
                self._sender(entry).send(calls.write_request(entry.request))
        batch.check_sent()

    def _sender(self, entry: Entry) -> MemoryClient:
        return self.client.acting_as(user=entry.key.user, agent=entry.key.agent)

    def _ask_for_policy(self) -> None:
        if not self._knows_store:
            with self._policy_guard():
                self.policy.remember_identity(self.key, self.client.whoami())


class AsyncMemorySession(_Session):
    """One session of one user and agent, for asynchronous code. It is cheap: make one per run.

    It keeps nothing that belongs to one event loop.

    Args:
        client: The client whose connections are used; it may be shared by any number of sessions.
        session_id: The session, 1 to 512 characters.
        user: The user to act for (default: the user of the client).
        agent: The agent to act as (default: the agent of the client).
        policy: Failure mode, breaker and spool (default: a new `Policy()`). Share one between the sessions of a
            program: the breaker and the spool belong to it.

    Raises:
        InvalidRequest: The session, the user or the agent is not a valid id.
    """

    def __init__(
        self,
        client: AsyncMemoryClient,
        session_id: str,
        *,
        user: str | None = None,
        agent: str | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.client = client.acting_as(
            user=client.user if user is None else user, agent=client.agent if agent is None else agent
        )
        super().__init__(self.client, session_id, policy)

    async def recall(self, query: str, **options: Unpack[RecallOptions]) -> RecallResponse:
        """Return window, digest and memories for a query, in both failure modes without raising.

        Args:
            query: The question or message. It is cleaned, and cut in the middle to 10,000 characters.
            **options: As for `MemoryClient.recall`.

        Returns:
            The answer. `degraded` says what is missing: `service` in an outage, in which case the window has the turns
            that this process has seen, and `refused` if the call was refused; the log says why.
        """
        try:
            with self.policy.call():
                response = await self.client.recall(fitting_query(query), session_id=self.session_id, **options)
        except ThreefoldError as error:
            return self._degraded(error, options)
        await self._ask_for_policy()
        return self._with_tail_seeded(response)

    async def record(self, turns: Sequence[TurnLike], **options: Unpack[RecordOptions]) -> bool:
        """Append turns to the session, after older turns that are still unsent.

        Recalled blocks are removed from the turns first. Unsent turns wait in the spool for a later call. A cancelled
        call loses no turn that is in the spool.

        Args:
            turns: Any number of turns, as mappings or `TurnIn`; they are sent in requests of 1,000 turns.
            **options: `visibility`, `run_end`, `on_conflict`, as for `MemoryClient.write`.

        Returns:
            True if the service has stored all of the turns.

        Raises:
            ThreefoldError: In the failure mode `strict`, if the service did not store all of the turns; those turns
                do not wait in the spool. In the mode `soft`, no error of the service is raised.
            InvalidRequest: An option is wrong; in the mode `strict` also if a turn is wrong.
        """
        batch = self._spool(turns, options)
        with self._batch_guard(batch):
            for entry in self._entries_to_send(batch):
                with self._entry_guard(entry, batch):
                    await self._sender(entry).send(calls.write_request(entry.request))
            await self._ask_for_policy()
        return self._complete(batch)

    async def save(self, text: str, **options: Unpack[SaveOptions]) -> Memory:
        """Save one statement as a fact, without a model.

        Args:
            text: The statement, 1 to 10,000 characters without recalled blocks.
            **options: As for `MemoryClient.save`.

        Returns:
            The fact as stored, with its id.

        Raises:
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        with self.policy.call():
            return await self.client.save(strip_block(text), session_id=self.session_id, **options)

    async def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        """Erase what one selector names.

        The unsent turns of this user are sent first, so that the service knows their ids as erased.

        Args:
            **selector: As for `MemoryClient.forget`.

        Returns:
            The receipt.

        Raises:
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        await self._send_spooled(own=True)
        with self.policy.call():
            return self._with_tails_dropped(await self.client.forget(**selector))

    async def flush(self) -> bool:
        """Send everything in the spool, of every session.

        Returns:
            True if no entry is left, False if the service did not take one.

        Raises:
            ThreefoldError: In the failure mode `strict`, if an entry is left.
        """
        try:
            await self._send_spooled()
        except ThreefoldError:
            if self._strict:
                raise
            return False
        return True

    async def send(self, call: Call[R]) -> R:
        """Send any other call of `threefold.calls` under the policy.

        Args:
            call: The operation as data.

        Returns:
            The validated answer of the service.

        Raises:
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        with self.policy.call():
            return await self.client.send(call)

    async def whoami(self) -> WhoAmI:
        """Return the verified identity of this session, its limits, and the policy of the store.

        Returns:
            The identity. The policy remembers it.

        Raises:
            ThreefoldError: The service refused the identity or did not answer, in both failure modes.
        """
        return self._remembered(await self.send(calls.whoami()))

    async def identity(self) -> WhoAmI | None:
        """Return the verified identity; the service is asked once per user and agent of a policy.

        Returns:
            The identity, or None if the service refused it or did not answer.
        """
        try:
            return self.policy.known_identity(self.key) or await self.whoami()
        except ThreefoldError:
            return None

    async def _send_spooled(self, *, own: bool = False) -> None:
        batch = _Batch()
        for entry in self._spooled(batch, own=own):
            with self._entry_guard(entry, batch):
                await self._sender(entry).send(calls.write_request(entry.request))
        batch.check_sent()

    def _sender(self, entry: Entry) -> AsyncMemoryClient:
        return self.client.acting_as(user=entry.key.user, agent=entry.key.agent)

    async def _ask_for_policy(self) -> None:
        if not self._knows_store:
            with self._policy_guard():
                self.policy.remember_identity(self.key, await self.client.whoami())


def fitting_query(query: str) -> str:
    """Return a prompt as a query: cleaned, and cut in the middle, because a question is at the beginning or the end."""
    return middle_cut(str(clean_text(query)), MAX_QUERY_CHARS)


def recordable(turn: TurnIn) -> list[TurnIn]:
    """Return the turn with its time and without recalled text, or an empty list if it had no other text."""
    own = without_recalled(turn)
    if turn.content and not own.content:
        return []
    created_at = turn.created_at or datetime.now(UTC)  # set now, because the turn may be sent much later
    return [own.model_copy(update={"created_at": created_at})]


def without_recalled(turn: TurnIn) -> TurnIn:
    """Return the turn without recalled text in its content and in its payload."""
    payload = turn.payload and strip_payload(turn.payload)
    return turn.model_copy(update={"content": strip_block(turn.content), "payload": payload})


def strip_payload(payload: str) -> str:
    """Return a framework's message, as JSON text, without recalled text in any of its strings.

    A message without recalled text is returned byte for byte. Recalled text is removed because a copy of a memory in
    the log of another session would remain after the memory was erased.
    """
    if FENCE_MARK not in payload.lower():
        return payload
    try:
        return json.dumps(_stripped(json.loads(payload)), ensure_ascii=False)
    except ValueError:  # the payload is not JSON
        return strip_block(payload)


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return strip_block(value)
    if isinstance(value, dict):
        return {key: _stripped(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_stripped(item) for item in cast(list[Any], value)]
    return value


def chunks(turns: list[TurnIn]) -> list[list[TurnIn]]:
    """Split turns into parts that each fit in one request; no turns give one empty part."""
    parts: list[list[TurnIn]] = [[]]
    chars = 0
    for turn in turns:
        size = len(turn.content) + len(turn.payload or "")
        if parts[-1] and (len(parts[-1]) == MAX_TURNS_PER_WRITE or chars + size > MAX_WRITE_CHARS):
            parts.append([])
            chars = 0
        parts[-1].append(turn)
        chars += size
    return parts


def degraded_recall(tail: Sequence[Turn], budget: int) -> RecallResponse:
    """Return the window of a tail, by the rule of the service; `degraded` says that the service did not answer."""
    frame = tokens_of(join_block([], [], [" "]))
    chosen = fit_window(tail, budget - frame, _line_cost, _head_and_tail)
    used = frame + sum(map(_line_cost, chosen))
    block = join_block([], [], [turn_line(turn) for turn in chosen])
    tokens = TokenUse(budget=budget, used=used if block else 0)
    return RecallResponse(window=chosen, block=block, tokens=tokens, degraded=[SERVICE_DOWN])


def tokens_of(text: str) -> int:
    """Return an upper estimate of the tokens of a text: English has 4 bytes per token, Chinese 3. Only the service can
    count them."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def _line_cost(turn: Turn) -> int:
    return tokens_of(turn_line(turn) + "\n")


def _head_and_tail(text: str, budget: int) -> str:
    return middle_cut(text, budget * BYTES_PER_TOKEN) if budget >= SMALLEST_CUT else ""


def _unsent_turn(turn: TurnIn) -> Turn:
    """Return a turn as the tail keeps it. Its `seq` is 0, because only the service numbers turns."""
    return Turn(seq=0, tokens=tokens_of(turn.content), **turn.model_dump(exclude={"payload"}))
