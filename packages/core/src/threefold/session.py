"""Sessions: client, identity and policy in one. What plugins talk to, in the sync and in the async world."""

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
from threefold.turn_groups import fit_window

SERVICE_DOWN = "service"
BYTES_PER_TOKEN = 3
SMALLEST_CUT = 24  # tokens of a turn below which head and tail say nothing
REFUSED = "refused"
MAX_WRITE_CHARS = 5_000_000  # of one request: 20 MB at most in UTF-8, below the service's limit of 32 MiB
CATCH_UP = 32  # waiting writes that one `record` sends along: all at once, those of an outage held an agent up for 39 s


@dataclass
class _Batch:
    """The writes of one `record`, or what is sent without any."""

    session: SessionKey | None = None
    """The one whose failure ends the sending; that of another holds up that other alone."""
    entries: list[Entry] = field(default_factory=list[Entry])
    loose: set[str] = field(default_factory=set[str])
    """Those without room in the spool: only this call can send them."""
    lost: bool = False
    stuck: dict[SessionKey, ThreefoldError] = field(default_factory=dict[SessionKey, ThreefoldError])
    """Sessions that the service failed to serve while it served others."""

    def check_sent(self) -> None:
        """Raise what the first session that got stuck met."""
        for error in self.stuck.values():
            raise error


class _Session:
    """What the twins share: everything but the calls themselves."""

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
        """What the store asks of its clients, as far as known."""
        return self.policy.store(self.key.origin)

    @property
    def failure_mode(self) -> FailureMode:
        """Explicit, else what the store asks for, else soft."""
        return self.policy.failure_mode(self.key.origin)

    @property
    def _strict(self) -> bool:
        return self.failure_mode == "strict"

    def _degraded(self, error: ThreefoldError, options: RecallOptions) -> RecallResponse:
        """The tail in an outage; nothing at all after a refusal, as this identity may no longer read."""
        if is_refusal(error):
            return RecallResponse(degraded=[REFUSED])
        wanted = "short_term" in options.get("include", ("short_term",))
        budget = options.get("token_budget")
        turns = self.policy.tails.read(self.key) if wanted else []
        return degraded_recall(turns, self.store.token_budget if budget is None else budget)

    def _keep(self, turns: Sequence[TurnLike], options: RecordOptions) -> _Batch:
        """Put the turns where neither an outage nor a cancellation can lose them, before anything is sent."""
        batch = _Batch(self.key)
        good = self._acceptable(turns, batch)
        if good or options.get("run_end"):
            requests = self._requests(good, options)
            batch.entries = [Entry(self.policy.stamp(), self.key, request) for request in requests]
            batch.loose = {entry.name for entry in batch.entries if not self.policy.spool.put(entry)}
            self.policy.tails.extend(self.key, map(_unsent_turn, good))
        return batch

    def _acceptable(self, turns: Sequence[TurnLike], batch: _Batch) -> list[TurnIn]:
        good: list[TurnIn] = []
        for turn in turns:
            try:
                good.extend(recordable(calls.turn_in(turn)))
            except InvalidRequest as error:
                if self._strict:
                    raise
                self.policy.refused(error)
                self.stats.add(dropped=1)
                batch.lost = True
        return good

    def _requests(self, turns: list[TurnIn], options: RecordOptions) -> list[WriteRequest]:
        *parts, last = chunks(turns)
        going_on: RecordOptions = {**options, "run_end": False}
        return [
            *(checked(WriteRequest, session_id=self.session_id, turns=part, **going_on) for part in parts),
            checked(WriteRequest, session_id=self.session_id, turns=last, **options),
        ]

    def _due(self, batch: _Batch) -> Iterator[Entry]:
        """What to send now: a share of this session in its order (strict has to know: all), then one of the others'."""
        spool = self.policy.spool
        yield from islice(spool.pending(self.key.origin, self.key), None if self._strict else CATCH_UP)
        yield from [entry for entry in batch.entries if entry.name in batch.loose]
        yield from islice(self._all_waiting(batch), CATCH_UP)

    @contextmanager
    def _delivery(self, entry: Entry, batch: _Batch) -> Generator[None]:
        """Around the sending of one entry: it leaves the spool once the service has it, or has refused it."""
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
                batch.stuck[entry.key] = error
        else:
            self.policy.sent(entry, late=not own)
            batch.loose.discard(entry.name)

    def _refused(self, entry: Entry, batch: _Batch) -> None:
        self.policy.drop(entry)
        batch.loose.discard(entry.name)
        batch.lost |= entry in batch.entries

    @contextmanager
    def _settlement(self, batch: _Batch) -> Generator[None]:
        """Around the whole sending: soft leaves the rest waiting, strict takes it back and raises."""
        try:
            yield
        except ThreefoldError as error:
            if self._strict and (is_refusal(error) or self._waiting(batch)):
                for entry in self._waiting(batch):
                    self.policy.spool.remove(entry)
                batch.entries = []
                raise
        finally:
            self._count_waiting(batch)

    def _waiting(self, batch: _Batch) -> list[Entry]:
        return [entry for entry in batch.entries if entry.name in batch.loose or self.policy.spool.holds(entry)]

    def _count_waiting(self, batch: _Batch) -> None:
        """Also when cancelled: the spooled turns wait, the others are gone."""
        for entry in self._waiting(batch):
            if entry.name in batch.loose:
                self.policy.drop(entry)
            else:
                self.stats.add(spooled=len(entry.request.turns))

    def _complete(self, batch: _Batch) -> bool:
        return not batch.lost and not self._waiting(batch)

    def _recalled(self, response: RecallResponse) -> RecallResponse:
        self.policy.tails.seed(self.key, response.window)
        return response

    def _all_waiting(self, batch: _Batch, *, own: bool = False) -> Iterator[Entry]:
        """What waits, of everybody or of this user; not what comes in its session after an entry that got stuck."""
        for entry in self.policy.spool.pending(self.key.origin):
            if entry.key not in batch.stuck and (not own or entry.key.user == self.key.user):
                yield entry

    def _met(self, whoami: WhoAmI) -> WhoAmI:
        self.policy.remember_identity(self.key, whoami)
        return whoami

    def _forgotten(self, receipt: ForgetReceipt) -> ForgetReceipt:
        if not receipt.dry_run:
            self.policy.tails.forget_user(self.key)
        return receipt

    @contextmanager
    def _learning(self) -> Generator[None]:
        """Around the question for the store's policy: an outage asks again later, a refusal settles on the default."""
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
    """One session of one user and agent. Cheap: make one per run, on a shared client and policy."""

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
        """Always soft: `degraded` says what is missing, in an outage the window is what this process saw."""
        try:
            with self.policy.call():
                response = self.client.recall(fitting_query(query), session_id=self.session_id, **options)
        except ThreefoldError as error:
            return self._degraded(error, options)
        self._learn()
        return self._recalled(response)

    def record(self, turns: Sequence[TurnLike], **options: Unpack[RecordOptions]) -> bool:
        """Append turns, older unsent ones first. True when the service has them; strict raises when it has not."""
        batch = self._keep(turns, options)
        with self._settlement(batch):
            for entry in self._due(batch):
                with self._delivery(entry, batch):
                    self._sender(entry).send(calls.write_request(entry.request))
            self._learn()
        return self._complete(batch)

    def save(self, text: str, **options: Unpack[SaveOptions]) -> Memory:
        """Remember one statement at once. Raises."""
        with self.policy.call():
            return self.client.save(strip_block(text), session_id=self.session_id, **options)

    def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        """Erase; the user's unsent turns too: they are sent first, so that their ids are known as erased. Raises."""
        self._drain(own=True)
        with self.policy.call():
            return self._forgotten(self.client.forget(**selector))

    def flush(self) -> bool:
        """Send everything that waits, of every session. True when nothing is left; strict raises when something is."""
        try:
            self._drain()
        except ThreefoldError:
            if self._strict:
                raise
            return False
        return True

    def send(self, call: Call[R]) -> R:
        """Any other call of the contract, under the policy. Raises."""
        with self.policy.call():
            return self.client.send(call)

    def whoami(self) -> WhoAmI:
        """The verified identity, its limits, and the store's policy. Raises."""
        return self._met(self.send(calls.whoami()))

    def identity(self) -> WhoAmI | None:
        """The same, asked for once per user and agent of a policy; None while nobody answers."""
        try:
            return self.policy.known_identity(self.key) or self.whoami()
        except ThreefoldError:
            return None

    def _drain(self, *, own: bool = False) -> None:
        batch = _Batch()
        for entry in self._all_waiting(batch, own=own):
            with self._delivery(entry, batch):
                self._sender(entry).send(calls.write_request(entry.request))
        batch.check_sent()

    def _sender(self, entry: Entry) -> MemoryClient:
        return self.client.acting_as(user=entry.key.user, agent=entry.key.agent)

    def _learn(self) -> None:
        if not self._knows_store:
            with self._learning():
                self.policy.remember_identity(self.key, self.client.whoami())


class AsyncMemorySession(_Session):
    """`MemorySession`, awaited. It holds nothing that belongs to one event loop."""

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
        """Always soft: `degraded` says what is missing, in an outage the window is what this process saw."""
        try:
            with self.policy.call():
                response = await self.client.recall(fitting_query(query), session_id=self.session_id, **options)
        except ThreefoldError as error:
            return self._degraded(error, options)
        await self._learn()
        return self._recalled(response)

    async def record(self, turns: Sequence[TurnLike], **options: Unpack[RecordOptions]) -> bool:
        """Append turns, older unsent ones first. A cancelled call loses none: the next one sends them."""
        batch = self._keep(turns, options)
        with self._settlement(batch):
            for entry in self._due(batch):
                with self._delivery(entry, batch):
                    await self._sender(entry).send(calls.write_request(entry.request))
            await self._learn()
        return self._complete(batch)

    async def save(self, text: str, **options: Unpack[SaveOptions]) -> Memory:
        """Remember one statement at once. Raises."""
        with self.policy.call():
            return await self.client.save(strip_block(text), session_id=self.session_id, **options)

    async def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        """Erase; the user's unsent turns too: they are sent first, so that their ids are known as erased. Raises."""
        await self._drain(own=True)
        with self.policy.call():
            return self._forgotten(await self.client.forget(**selector))

    async def flush(self) -> bool:
        """Send everything that waits, of every session. True when nothing is left; strict raises when something is."""
        try:
            await self._drain()
        except ThreefoldError:
            if self._strict:
                raise
            return False
        return True

    async def send(self, call: Call[R]) -> R:
        """Any other call of the contract, under the policy. Raises."""
        with self.policy.call():
            return await self.client.send(call)

    async def whoami(self) -> WhoAmI:
        """The verified identity, its limits, and the store's policy. Raises."""
        return self._met(await self.send(calls.whoami()))

    async def identity(self) -> WhoAmI | None:
        """The same, asked for once per user and agent of a policy; None while nobody answers."""
        try:
            return self.policy.known_identity(self.key) or await self.whoami()
        except ThreefoldError:
            return None

    async def _drain(self, *, own: bool = False) -> None:
        batch = _Batch()
        for entry in self._all_waiting(batch, own=own):
            with self._delivery(entry, batch):
                await self._sender(entry).send(calls.write_request(entry.request))
        batch.check_sent()

    def _sender(self, entry: Entry) -> AsyncMemoryClient:
        return self.client.acting_as(user=entry.key.user, agent=entry.key.agent)

    async def _learn(self) -> None:
        if not self._knows_store:
            with self._learning():
                self.policy.remember_identity(self.key, await self.client.whoami())


def fitting_query(query: str) -> str:
    """A prompt as a query: cleaned, and cut in the middle, as questions stand at the beginning or at the end."""
    return middle_cut(str(clean_text(query)), MAX_QUERY_CHARS)


def recordable(turn: TurnIn) -> list[TurnIn]:
    """The turn with its time and without recalled text; none where nothing else was in it."""
    own = without_recalled(turn)
    if turn.content and not own.content:
        return []
    said = turn.created_at or datetime.now(UTC)  # now, as it may be sent much later
    return [own.model_copy(update={"created_at": said})]


def without_recalled(turn: TurnIn) -> TurnIn:
    """The turn without recalled text, neither in its words nor in its payload."""
    payload = turn.payload and strip_payload(turn.payload)
    return turn.model_copy(update={"content": strip_block(turn.content), "payload": payload})


def strip_payload(payload: str) -> str:
    """A framework's message without recalled text in any of its strings; else what it was, byte for byte.

    A copy of a memory in the log of another session would outlive its erasure.
    """
    if FENCE_MARK not in payload.lower():
        return payload
    try:
        return json.dumps(_stripped(json.loads(payload)), ensure_ascii=False)
    except ValueError:  # not JSON after all
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
    """Parts that each fit in one request; one empty part for no turns."""
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
    """The window of a tail, by the rule of the service, as a response that says it is not the service's."""
    frame = tokens_of(join_block([], [], [" "]))
    chosen = fit_window(tail, budget - frame, _line_cost, _head_and_tail)
    used = frame + sum(map(_line_cost, chosen))
    block = join_block([], [], [turn_line(turn) for turn in chosen])
    tokens = TokenUse(budget=budget, used=used if block else 0)
    return RecallResponse(window=chosen, block=block, tokens=tokens, degraded=[SERVICE_DOWN])


def tokens_of(text: str) -> int:
    """An estimate on the safe side, as only the service can count: English has 4 bytes a token, Chinese 3."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def _line_cost(turn: Turn) -> int:
    return tokens_of(turn_line(turn) + "\n")


def _head_and_tail(text: str, budget: int) -> str:
    return middle_cut(text, budget * BYTES_PER_TOKEN) if budget >= SMALLEST_CUT else ""


def _unsent_turn(turn: TurnIn) -> Turn:
    """A turn as the tail holds it. Its `seq` is 0: only the service numbers turns."""
    return Turn(seq=0, tokens=tokens_of(turn.content), **turn.model_dump(exclude={"payload"}))
