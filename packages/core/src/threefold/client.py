"""The clients: `MemoryClient` and `AsyncMemoryClient`, twins over the same calls. They raise; they hold no policy."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import httpx

from threefold import calls
from threefold.admin import Admin, AsyncAdmin
from threefold.calls import (
    Call,
    Deadlines,
    ForgetOptions,
    ListOptions,
    R,
    RecallOptions,
    SaveOptions,
    TurnLike,
    UpdateOptions,
    WriteOptions,
)
from threefold.connections import AsyncConnections, Connections
from threefold.contract import (
    DataScope,
    Digest,
    DigestPage,
    FactHistory,
    ForgetReceipt,
    Health,
    ItemOp,
    ItemsResponse,
    Memory,
    MemoryPage,
    RecallResponse,
    SessionPage,
    SessionState,
    SessionStatus,
    TurnPage,
    WhoAmI,
    WriteResponse,
)
from threefold.endpoint import DEFAULT_URL, Endpoint
from threefold.errors import ThreefoldError
from threefold.exchange import Exchange, Outcome, Reply, is_settled, with_next_step
from threefold.threads import AsyncThreads, Threads

DEFAULT_DEADLINES = Deadlines()
FIRST_POLL, LAST_POLL = 0.05, 1.0  # seconds between the looks of `wait`, doubled each time


class Target(TypedDict):
    """Where to call, and as whom."""

    url: str
    user: str | None
    agent: str | None
    api_key: str | None


def target_from_env(url: str | None = None) -> Target:
    """What the THREEFOLD_* variables say, an empty one counting as unset; `url` goes before theirs."""
    read = os.environ.get
    return Target(
        url=url or read("THREEFOLD_URL") or DEFAULT_URL,
        user=read("THREEFOLD_USER") or None,
        agent=read("THREEFOLD_AGENT") or None,
        api_key=read("THREEFOLD_API_KEY") or None,
    )


class MemoryClient(Endpoint):
    """The service, call by call. Safe to share between threads and across a fork; connects on first use."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        agent: str | None = None,
        api_key: str | None = None,
        timeout: float | Deadlines = DEFAULT_DEADLINES,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(url, user, agent, api_key, timeout, clock)
        self._connections = Connections(transport, self.url.startswith("https:"))
        self._sleep = sleep

    @classmethod
    def from_env(
        cls,
        url: str | None = None,
        *,
        timeout: float | Deadlines = DEFAULT_DEADLINES,
        transport: httpx.BaseTransport | None = None,
    ) -> Self:
        """A client as THREEFOLD_URL (or `url`), THREEFOLD_API_KEY, THREEFOLD_USER and THREEFOLD_AGENT say."""
        return cls(**target_from_env(url), timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._connections.close()

    def send(self, call: Call[R]) -> R:
        """Any call of the contract: every method below is one."""
        exchange = self._exchange(call)
        while True:
            outcome = self._attempt(call, exchange)
            pause = exchange.pause(outcome)
            if pause is None:
                return exchange.result(outcome)
            self._sleep(pause)

    def _attempt(self, call: Call[R], exchange: Exchange[R]) -> Outcome:
        client = self._connections.open()
        request = self._request(client, call, exchange.left())
        try:
            with closing(client.send(request, stream=True)) as response:
                return Reply.read(response, b"".join(exchange.in_time(response.iter_bytes())))
        except httpx.RequestError as error:
            return error

    def stream(self, call: Call[R]) -> Iterator[str]:
        """The body of an answer, line by line as it comes; the deadline is for each read."""
        exchange = self._exchange(call)
        client = self._connections.open()
        try:
            with closing(client.send(self._request(client, call, exchange.left()), stream=True)) as response:
                if not response.is_success:
                    exchange.result(Reply.read(response, response.read()))
                yield from response.iter_lines()
        except httpx.RequestError as error:
            exchange.result(error)

    def write(self, session_id: str, turns: Sequence[TurnLike], **options: Unpack[WriteOptions]) -> WriteResponse:
        """Append turns to a session. Those without an id get one, so that a retry stores nothing twice."""
        return self.send(calls.write(session_id, turns, **options))

    def recall(self, query: str, *, session_id: str | None = None, **options: Unpack[RecallOptions]) -> RecallResponse:
        """Window, digest and memories for a query, and the block that a model reads."""
        return self.send(calls.recall(query, session_id, **options))

    def list(self, **options: Unpack[ListOptions]) -> MemoryPage:
        """One page of the memories visible at a level."""
        return self.send(calls.list_memories(**options))

    def iter_memories(self, **options: Unpack[ListOptions]) -> Iterator[Memory]:
        """Every memory visible at a level, page after page of `limit`."""
        more = True
        while more:
            page = self.list(**options)
            yield from page.items
            options["cursor"] = page.next_cursor
            more = page.next_cursor is not None

    def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        """Erase what one selector names; the receipt counts it."""
        return self.send(calls.forget(**selector))

    def save(self, text: str, *, session_id: str | None = None, **options: Unpack[SaveOptions]) -> Memory:
        """Remember one statement. Sent again only if it never left, as it has no id of its own."""
        return self.send(calls.save(text, session_id, **options))

    def get_fact(self, fact_id: str) -> Memory:
        """One fact."""
        return self.send(calls.get_fact(fact_id))

    def update_fact(self, fact_id: str, **options: Unpack[UpdateOptions]) -> Memory:
        """Adjust one fact; a new text supersedes the old one."""
        return self.send(calls.update_fact(fact_id, **options))

    def delete_fact(self, fact_id: str, *, sources: bool = False, in_session: str | None = None) -> ForgetReceipt:
        """Erase one fact or episode; with `sources`, also the content of the turns that a fact rests on. An episode
        whose id stands in several sessions is named by `in_session` as well."""
        return self.send(calls.delete_fact(fact_id, sources=sources, in_session=in_session))

    def fact_history(self, fact_id: str) -> FactHistory:
        """Every version of one fact, oldest first."""
        return self.send(calls.fact_history(fact_id))

    def restore_fact(self, fact_id: str) -> Memory:
        """Make a superseded version the current one."""
        return self.send(calls.restore_fact(fact_id))

    def sessions(self, *, cursor: str | None = None, limit: int | None = None, state: bool = False) -> SessionPage:
        """One page of sessions, the most recently written first."""
        return self.send(calls.sessions(cursor=cursor, limit=limit, state=state))

    def state(self, session_id: str) -> SessionState:
        """What a framework keeps beside the turns of a session, and the revision to write the next with."""
        return self.send(calls.state(session_id))

    def turns(
        self, session_id: str, *, from_seq: int | None = None, limit: int | None = None, payload: bool = False
    ) -> TurnPage:
        """The verbatim turns of a session, oldest first; the next page starts at the last `seq` + 1."""
        return self.send(calls.turns(session_id, from_seq=from_seq, limit=limit, payload=payload))

    def digests(self, session_id: str) -> DigestPage:
        """Every version of a session's digest, newest first."""
        return self.send(calls.digests(session_id))

    def digest(self, session_id: str, version: int) -> Digest:
        """One version of a session's digest."""
        return self.send(calls.digest(session_id, version))

    def status(self, session_id: str) -> SessionStatus:
        """How far the background work on a session has come."""
        return self.send(calls.status(session_id))

    def end(self, session_id: str, *, wait: float | None = None) -> SessionStatus:
        """Extract up to the turns seen now, and wait up to `wait` seconds for it."""
        return self.send(calls.end(session_id, wait=wait))

    def wait(self, session_id: str, *, timeout: float = 30.0) -> SessionStatus:
        """Wait until nothing of a session is pending; `WaitTimeout` after `timeout` seconds or when it is parked."""
        give_up, pause = self._clock() + timeout, FIRST_POLL
        while not is_settled(status := self.status(session_id), pause, give_up - self._clock()):
            self._sleep(pause)
            pause = min(2 * pause, LAST_POLL)
        return status

    def items_batch(self, ops: Sequence[ItemOp | Mapping[str, Any]], *, scope: DataScope = "user") -> ItemsResponse:
        """Operations on the items of a framework's store, all or none; reads see what was there before the writes."""
        return self.send(calls.items_batch(ops, scope=scope))

    @property
    def threads(self) -> Threads:
        """Checkpoints of graphs."""
        return Threads(self)

    def whoami(self) -> WhoAmI:
        """The verified identity, its limits, and the store's policy."""
        return self.send(calls.whoami())

    @property
    def admin(self) -> Admin:
        """What only an administrator may do."""
        return Admin(self)

    def health(self) -> Health:
        """Whether the process is alive."""
        return self.send(calls.health())

    def ready(self) -> Health:
        """Whether the service reaches its database."""
        return self.send(calls.ready())

    def check(self) -> WhoAmI:
        """Raise now, with the next step, if the service is out of reach or refuses this identity."""
        try:
            return self.whoami()
        except ThreefoldError as error:
            raise with_next_step(error) from None


class AsyncMemoryClient(Endpoint):
    """`MemoryClient`, awaited. One client may serve several event loops: each has its own connections."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        agent: str | None = None,
        api_key: str | None = None,
        timeout: float | Deadlines = DEFAULT_DEADLINES,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(url, user, agent, api_key, timeout, clock)
        self._connections = AsyncConnections(transport, self.url.startswith("https:"))
        self._sleep = sleep

    @classmethod
    def from_env(
        cls,
        url: str | None = None,
        *,
        timeout: float | Deadlines = DEFAULT_DEADLINES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """A client as THREEFOLD_URL (or `url`), THREEFOLD_API_KEY, THREEFOLD_USER and THREEFOLD_AGENT say."""
        return cls(**target_from_env(url), timeout=timeout, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop; a later call opens new ones."""
        await self._connections.close()

    async def send(self, call: Call[R]) -> R:
        exchange = self._exchange(call)
        while True:
            outcome = await self._attempt(call, exchange)
            pause = exchange.pause(outcome)
            if pause is None:
                return exchange.result(outcome)
            await self._sleep(pause)

    async def _attempt(self, call: Call[R], exchange: Exchange[R]) -> Outcome:
        client = await self._connections.open()
        request = self._request(client, call, exchange.left())
        try:
            async with asyncio.timeout(exchange.left()):
                response = await client.send(request)
            return Reply.read(response, response.content)
        except httpx.RequestError as error:
            return error
        except TimeoutError:
            return httpx.ReadTimeout("the deadline has passed")

    async def stream(self, call: Call[R]) -> AsyncIterator[str]:
        exchange = self._exchange(call)
        client = await self._connections.open()
        try:
            async with aclosing(
                await client.send(self._request(client, call, exchange.left()), stream=True)
            ) as response:
                if not response.is_success:
                    exchange.result(Reply.read(response, await response.aread()))
                async for line in response.aiter_lines():
                    yield line
        except httpx.RequestError as error:
            exchange.result(error)

    async def write(self, session_id: str, turns: Sequence[TurnLike], **options: Unpack[WriteOptions]) -> WriteResponse:
        return await self.send(calls.write(session_id, turns, **options))

    async def recall(
        self, query: str, *, session_id: str | None = None, **options: Unpack[RecallOptions]
    ) -> RecallResponse:
        return await self.send(calls.recall(query, session_id, **options))

    async def list(self, **options: Unpack[ListOptions]) -> MemoryPage:
        return await self.send(calls.list_memories(**options))

    async def iter_memories(self, **options: Unpack[ListOptions]) -> AsyncIterator[Memory]:
        more = True
        while more:
            page = await self.list(**options)
            for memory in page.items:
                yield memory
            options["cursor"] = page.next_cursor
            more = page.next_cursor is not None

    async def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        return await self.send(calls.forget(**selector))

    async def save(self, text: str, *, session_id: str | None = None, **options: Unpack[SaveOptions]) -> Memory:
        return await self.send(calls.save(text, session_id, **options))

    async def get_fact(self, fact_id: str) -> Memory:
        return await self.send(calls.get_fact(fact_id))

    async def update_fact(self, fact_id: str, **options: Unpack[UpdateOptions]) -> Memory:
        return await self.send(calls.update_fact(fact_id, **options))

    async def delete_fact(self, fact_id: str, *, sources: bool = False, in_session: str | None = None) -> ForgetReceipt:
        return await self.send(calls.delete_fact(fact_id, sources=sources, in_session=in_session))

    async def fact_history(self, fact_id: str) -> FactHistory:
        return await self.send(calls.fact_history(fact_id))

    async def restore_fact(self, fact_id: str) -> Memory:
        return await self.send(calls.restore_fact(fact_id))

    async def sessions(
        self, *, cursor: str | None = None, limit: int | None = None, state: bool = False
    ) -> SessionPage:
        return await self.send(calls.sessions(cursor=cursor, limit=limit, state=state))

    async def state(self, session_id: str) -> SessionState:
        return await self.send(calls.state(session_id))

    async def turns(
        self, session_id: str, *, from_seq: int | None = None, limit: int | None = None, payload: bool = False
    ) -> TurnPage:
        return await self.send(calls.turns(session_id, from_seq=from_seq, limit=limit, payload=payload))

    async def digests(self, session_id: str) -> DigestPage:
        return await self.send(calls.digests(session_id))

    async def digest(self, session_id: str, version: int) -> Digest:
        return await self.send(calls.digest(session_id, version))

    async def status(self, session_id: str) -> SessionStatus:
        return await self.send(calls.status(session_id))

    async def end(self, session_id: str, *, wait: float | None = None) -> SessionStatus:
        return await self.send(calls.end(session_id, wait=wait))

    async def wait(self, session_id: str, *, timeout: float = 30.0) -> SessionStatus:  # noqa: ASYNC109 - the twin's
        give_up, pause = self._clock() + timeout, FIRST_POLL
        while not is_settled(status := await self.status(session_id), pause, give_up - self._clock()):
            await self._sleep(pause)
            pause = min(2 * pause, LAST_POLL)
        return status

    async def items_batch(
        self, ops: Sequence[ItemOp | Mapping[str, Any]], *, scope: DataScope = "user"
    ) -> ItemsResponse:
        return await self.send(calls.items_batch(ops, scope=scope))

    @property
    def threads(self) -> AsyncThreads:
        return AsyncThreads(self)

    async def whoami(self) -> WhoAmI:
        return await self.send(calls.whoami())

    @property
    def admin(self) -> AsyncAdmin:
        return AsyncAdmin(self)

    async def health(self) -> Health:
        return await self.send(calls.health())

    async def ready(self) -> Health:
        return await self.send(calls.ready())

    async def check(self) -> WhoAmI:
        try:
            return await self.whoami()
        except ThreefoldError as error:
            raise with_next_step(error) from None
