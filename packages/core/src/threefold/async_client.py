"""`AsyncMemoryClient`: the asynchronous twin of `MemoryClient`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from threefold import calls
from threefold.admin import AsyncAdmin
from threefold.beliefs import AsyncBeliefs
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
from threefold.client import DEFAULT_DEADLINES, FIRST_POLL, LAST_POLL, target_from_env
from threefold.connections import AsyncConnections
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
from threefold.endpoint import Endpoint
from threefold.errors import ThreefoldError
from threefold.retries import Outcome, Reply, Retries, is_settled, with_next_step
from threefold.threads import AsyncThreads


class AsyncMemoryClient(Endpoint):
    """Asynchronous client of the service, with the methods of `MemoryClient`.

    One client may serve several event loops; each loop has its own connections.

    Args:
        url: Where the service listens, such as `http://127.0.0.1:8181`.
        user: The user to act for, if the key or the mode of the service leaves it to the caller.
        agent: The agent to act as, under the same condition.
        api_key: A key or token, sent as a bearer token.
        timeout: Seconds per call, retries included, or `Deadlines` (default: recall 2, write 5, long calls 30).
        transport: A transport of httpx, for tests.
        clock: Returns the seconds of a monotonic clock.
        sleep: Waits the given seconds between attempts.

    Raises:
        ValueError: The URL or the key is not valid.
        InvalidRequest: The user or the agent is not a valid id.
    """

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
        """Build a client from THREEFOLD_URL, THREEFOLD_API_KEY, THREEFOLD_USER and THREEFOLD_AGENT.

        An empty variable counts as unset.

        Args:
            url: Used instead of THREEFOLD_URL.
            timeout: Seconds per call, retries included, or `Deadlines`.
            transport: A transport of httpx, for tests.

        Returns:
            The client; it connects on first use.

        Raises:
            ValueError: The URL or the key is not valid.
            InvalidRequest: The user or the agent is not a valid id.
        """
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
        """Send one call of `threefold.calls` and return its answer.

        Every other method of this class is built on it. After a lost connection, 429, 502, 503 or 504 the call is
        tried again, three times in all and within its deadline. A call that is not idempotent is tried again only
        if no connection was made.

        Args:
            call: The operation as data.

        Returns:
            The validated answer of the service.

        Raises:
            ServiceError: The service refused the call or failed; the subclass says why.
            Unreachable: No usable answer came within the deadline.
        """
        retries = self._retries(call)
        while True:
            outcome = await self._attempt(call, retries)
            pause = retries.pause(outcome)
            if pause is None:
                return retries.result(outcome)
            await self._sleep(pause)

    async def _attempt(self, call: Call[R], retries: Retries[R]) -> Outcome:
        client = await self._connections.open()
        request = self._request(client, call, retries.left())
        try:
            async with asyncio.timeout(retries.left()):
                response = await client.send(request)
            return Reply.read(response, response.content)
        except httpx.RequestError as error:
            return error
        except TimeoutError:
            return httpx.ReadTimeout("the deadline has passed")

    async def stream(self, call: Call[R]) -> AsyncIterator[str]:
        """Yield the lines of an answer as they arrive.

        Args:
            call: The operation as data. Its deadline applies to each read, not to the whole answer.

        Yields:
            One line of the body, without its line end.

        Raises:
            ServiceError: The service refused the call.
            Unreachable: The connection failed; lines that were yielded before remain valid.
        """
        retries = self._retries(call)
        client = await self._connections.open()
        try:
            async with aclosing(
                await client.send(self._request(client, call, retries.left()), stream=True)
            ) as response:
                if not response.is_success:
                    retries.result(Reply.read(response, await response.aread()))
                async for line in response.aiter_lines():
                    yield line
        except httpx.RequestError as error:
            retries.result(error)

    async def write(self, session_id: str, turns: Sequence[TurnLike], **options: Unpack[WriteOptions]) -> WriteResponse:
        """Append turns to a session, all or none.

        Turns without an id get a random one, so that a retry of this call stores nothing twice.

        Args:
            session_id: The session; it is created by its first write.
            turns: At most 1,000 turns, as mappings or `TurnIn`.
            **options: `visibility` (widest level at which the turns may be recalled, default `user`), `run_end` (the
                run is over: consolidate now), `on_conflict` (for an id that is stored with other content: `refuse`
                the call, the default, or `keep` the stored turn), `state` (JSON text that replaces the session's
                state), `expected_revision` (write only at this revision).

        Returns:
            Counts of appended, duplicate and refused turns, and the new revision.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Conflict: An id was written before with other content. Nothing was stored.
            RevisionConflict: The session is no longer at `expected_revision`. Nothing was stored.
            QuotaExceeded: The user has stored as much as the store allows.
        """
        return await self.send(calls.write(session_id, turns, **options))

    async def recall(
        self, query: str, *, session_id: str | None = None, **options: Unpack[RecallOptions]
    ) -> RecallResponse:
        """Return window, digest and memories for a query, and the block that a model reads.

        Args:
            query: The question or message, at most 10,000 characters.
            session_id: The session whose window and digest are wanted; without it only memories are returned.
            **options: `level` (how far to read; default: the lower of `agent` and the ceiling), `include` (tiers;
                default: all but `shared`), `top_k` (most memories, 0 to 1,000), `min_score` (0 to 1), `min_score_of`
                (`either` or `cosine`), `token_budget` (tokens of the block, 0 to 1,000,000), `exclude_ids` (at most
                10,000), `min_trust` (0 to 1), `as_of` (what was true at this moment; without window and digest).

        Returns:
            The answer; `degraded` names each part that is missing and why.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Forbidden: The level is above the ceiling of this identity, or the store does not let it read shared
                memories.
            Unavailable: No tier answered in time.
        """
        return await self.send(calls.recall(query, session_id, **options))

    async def list(self, **options: Unpack[ListOptions]) -> MemoryPage:
        """Return one page of the memories that are visible at a level.

        Args:
            **options: `level`, `include` (`long_term`, `shared`), `kinds`, `session_id` (needed at level `session`),
                `order` (`created_at` or `access_count`), `cursor` (of the previous page), `limit` (0 to 1,000,
                default 50).

        Returns:
            The memories, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong, or the cursor is not one that this call returned.
            Forbidden: The level is above the ceiling of this identity, or the store does not let it read shared
                memories.
        """
        return await self.send(calls.list_memories(**options))

    async def iter_memories(self, **options: Unpack[ListOptions]) -> AsyncIterator[Memory]:
        """Yield every memory that is visible at a level.

        Args:
            **options: As for `list`; `limit` is the size of a page.

        Yields:
            One memory at a time; pages are fetched as they are needed.

        Raises:
            InvalidRequest: A field is wrong.
            Forbidden: The level is above the ceiling of this identity, or the store does not let it read shared
                memories.
        """
        more = True
        while more:
            page = await self.list(**options)
            for memory in page.items:
                yield memory
            options["cursor"] = page.next_cursor
            more = page.next_cursor is not None

    async def forget(self, **selector: Unpack[ForgetOptions]) -> ForgetReceipt:
        """Erase what one selector names, in one transaction over every tier.

        Args:
            **selector: Exactly one of `session_id`, `level` (`agent` or `user`), `memory_ids` (1 to 10,000) and
                `source`. With `memory_ids`: `sources` (also the content of the turns that the facts rest on) and
                `in_session` (the session of a turn whose id exists in several). With `source`: `since` (only what was
                written at this time or later). `dry_run` counts without erasing.

        Returns:
            The receipt: rows erased per tier, whether anything is left, whether the bytes are gone from the files.

        Raises:
            InvalidRequest: There is no selector, or more than one.
            Conflict: The id of a turn exists in several sessions and `in_session` is missing.
            Forbidden: The selector reaches above the ceiling of this identity.
            Unavailable: The database did not answer; nothing was erased unless `details["outcome"]` is `unknown`.
        """
        return await self.send(calls.forget(**selector))

    async def save(self, text: str, *, session_id: str | None = None, **options: Unpack[SaveOptions]) -> Memory:
        """Save one statement as a fact, without a model.

        Not retried once sent: the call has no idempotency key.

        Args:
            text: The statement, 1 to 10,000 characters.
            session_id: The session that the fact belongs to; needed for visibility `session`.
            **options: `visibility` (default `user`), `shared` (readable by all users; needs the right),
                `expires_in_days` (more than 0, at most 36,500; default: the setting of the store), `pinned` (never
                expires), `metadata` (at most 16,384 bytes of JSON), `noted_by` (`assistant` or `tool` if the user did
                not state the fact; it lowers the trust).

        Returns:
            The fact as stored, with its id.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Forbidden: `shared` without the right to share.
            QuotaExceeded: The user has stored as much as the store allows.
        """
        return await self.send(calls.save(text, session_id, **options))

    async def get_fact(self, fact_id: str) -> Memory:
        """Return one fact.

        Args:
            fact_id: The id of any version.

        Returns:
            That version.

        Raises:
            NotFound: There is no such fact, or it is not visible to this identity.
        """
        return await self.send(calls.get_fact(fact_id))

    async def update_fact(self, fact_id: str, **options: Unpack[UpdateOptions]) -> Memory:
        """Change one fact. A new text supersedes the old version, which stays in the history.

        Not retried once sent: the call has no idempotency key.

        Args:
            fact_id: The id of the current version.
            **options: `text`, `pinned`, `expires_in_days` (from now), `metadata` (replaces all of it), `noted_by`
                (`assistant` or `tool` if the user did not state the change). A field that is not given stays as it
                is.

        Returns:
            The current version; its id is new if the text changed.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            NotFound: There is no such fact, or it is not visible to this identity.
            Conflict: `fact_id` is a superseded version; `details["superseded_by"]` is the id of the next one.
            Forbidden: The fact is shared and this identity may not share, or the fact has more trust than `noted_by`.
            QuotaExceeded: The user has stored as much as the store allows.
        """
        return await self.send(calls.update_fact(fact_id, **options))

    async def delete_fact(self, fact_id: str, *, sources: bool = False, in_session: str | None = None) -> ForgetReceipt:
        """Erase one fact with all its versions, or the content of one turn.

        Not retried once sent: a second arrival would answer that there is no such fact.

        Args:
            fact_id: The id of a fact, or of a turn as a recall returned it.
            sources: Also erase the content of the turns that the fact rests on.
            in_session: The session of the turn; needed if its id exists in several sessions.

        Returns:
            The receipt.

        Raises:
            NotFound: There is no such memory, or it is not visible to this identity.
            Conflict: The id of a turn exists in several sessions and `in_session` is missing.
            Forbidden: `sources` without `in_session`, and the ceiling of this identity is `session`.
        """
        return await self.send(calls.delete_fact(fact_id, sources=sources, in_session=in_session))

    async def fact_history(self, fact_id: str) -> FactHistory:
        """Return every version of one fact, oldest first.

        Args:
            fact_id: The id of any version.

        Returns:
            The versions.

        Raises:
            NotFound: There is no such fact, or it is not visible to this identity.
        """
        return await self.send(calls.fact_history(fact_id))

    async def restore_fact(self, fact_id: str) -> Memory:
        """Make a superseded version the current one again. The version that it replaces stays in the history.

        A version that is current already is returned unchanged. Not retried once sent.

        Args:
            fact_id: The id of the superseded version.

        Returns:
            The version that is current now.

        Raises:
            NotFound: There is no such fact, or it is not visible to this identity.
            Forbidden: The fact is shared and this identity may not share.
        """
        return await self.send(calls.restore_fact(fact_id))

    async def sessions(
        self, *, cursor: str | None = None, limit: int | None = None, state: bool = False
    ) -> SessionPage:
        """Return one page of the sessions of this user and agent, the most recently written first.

        Args:
            cursor: `next_cursor` of the previous page.
            limit: Sessions per page, 0 to 1,000 (default 50).
            state: Also return the state that a framework keeps with each session.

        Returns:
            The sessions, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: The cursor or the limit is wrong.
            Forbidden: The ceiling of this identity is `session`.
        """
        return await self.send(calls.sessions(cursor=cursor, limit=limit, state=state))

    async def state(self, session_id: str) -> SessionState:
        """Return the state that a framework keeps beside the turns of a session.

        Args:
            session_id: The session.

        Returns:
            The state as JSON text, and the revision to pass as `expected_revision` of the next write.

        Raises:
            NotFound: There is no such session.
        """
        return await self.send(calls.state(session_id))

    async def turns(
        self, session_id: str, *, from_seq: int | None = None, limit: int | None = None, payload: bool = False
    ) -> TurnPage:
        """Return the turns of a session word for word, oldest first.

        Args:
            session_id: The session.
            from_seq: The sequence number of the first turn to return (default 1).
            limit: Turns per page, 0 to 1,000 (default 100).
            payload: Also return the payload of each turn.

        Returns:
            The turns, and `next_cursor`: the `from_seq` of the next page, or None.

        Raises:
            NotFound: There is no such session.
        """
        return await self.send(calls.turns(session_id, from_seq=from_seq, limit=limit, payload=payload))

    async def digests(self, session_id: str, *, cursor: str | None = None, limit: int | None = None) -> DigestPage:
        """Return the kept versions of a session's digest, newest first.

        Args:
            session_id: The session.
            cursor: `next_cursor` of the previous page.
            limit: Versions per page, 0 to 1,000 (default 100).

        Returns:
            The versions with the turns that each covers, and `next_cursor`: None on the last page.

        Raises:
            NotFound: There is no such session.
        """
        return await self.send(calls.digests(session_id, cursor=cursor, limit=limit))

    async def digest(self, session_id: str, version: int) -> Digest:
        """Return one version of a session's digest.

        Args:
            session_id: The session.
            version: The version number, from 1.

        Returns:
            The version.

        Raises:
            NotFound: There is no such session or version.
        """
        return await self.send(calls.digest(session_id, version))

    async def status(self, session_id: str) -> SessionStatus:
        """Return how far the background work on a session has come.

        Args:
            session_id: The session.

        Returns:
            The watermarks of indexing, folding and extraction, the state of the work, and the reason if it is parked.

        Raises:
            NotFound: There is no such session.
        """
        return await self.send(calls.status(session_id))

    async def end(self, session_id: str, *, wait: float | None = None) -> SessionStatus:
        """Start the consolidation of all turns that a session has now, instead of when it is idle.

        Turns may be appended afterwards as before.

        Args:
            session_id: The session.
            wait: Seconds that the service waits for the work, 0 to 60 (default 0); they extend the deadline of the
                call.

        Returns:
            The status when the work is done, or after the wait.

        Raises:
            NotFound: There is no such session.
        """
        return await self.send(calls.end(session_id, wait=wait))

    async def wait(self, session_id: str, *, timeout: float = 30.0) -> SessionStatus:  # noqa: ASYNC109 - the twin's
        """Wait until no background work on a session is pending.

        The status is asked for after 0.05 seconds, then at intervals that double up to 1 second.

        Args:
            session_id: The session.
            timeout: Seconds to wait at most (default 30).

        Returns:
            The last status.

        Raises:
            WaitTimeout: Work is still pending after `timeout` seconds, or it is parked.
            NotFound: There is no such session.
        """
        give_up, pause = self._clock() + timeout, FIRST_POLL
        while not is_settled(status := await self.status(session_id), pause, give_up - self._clock()):
            await self._sleep(pause)
            pause = min(2 * pause, LAST_POLL)
        return status

    async def items_batch(
        self, ops: Sequence[ItemOp | Mapping[str, Any]], *, scope: DataScope = "user"
    ) -> ItemsResponse:
        """Run operations on the items of a framework's store, all or none.

        A call with both reads and writes is not retried once sent.

        Args:
            ops: At most 1,000 operations: `get`, `search`, `put`, `delete`, `list_namespaces`, as mappings or models.
                Reads see the state before the writes of the same call.
            scope: `user` for items of the caller's user with this agent, `agent` for items shared by all users of the
                agent.

        Returns:
            One result per operation, in their order.

        Raises:
            InvalidRequest: An operation is wrong; the message names it. Nothing was stored.
            Forbidden: The ceiling of this identity is `session`; items belong to no session.
            Unavailable: A search by meaning needs the embedder, and it did not answer. Nothing was stored.
        """
        return await self.send(calls.items_batch(ops, scope=scope))

    @property
    def beliefs(self) -> AsyncBeliefs:
        """Beliefs, and the experiments that judge them."""
        return AsyncBeliefs(self)

    @property
    def threads(self) -> AsyncThreads:
        """The operations on the checkpoints of graphs."""
        return AsyncThreads(self)

    async def whoami(self) -> WhoAmI:
        """Return the verified identity of this client, its limits, and the policy of the store.

        Returns:
            The identity.

        Raises:
            Unauthenticated: The key or token is missing or not valid.
        """
        return await self.send(calls.whoami())

    @property
    def admin(self) -> AsyncAdmin:
        """The operations of an administrator; all other identities get `Forbidden`."""
        return AsyncAdmin(self)

    async def health(self) -> Health:
        """Return whether the process of the service is alive.

        Returns:
            The health; its status is `ok`.

        Raises:
            Unreachable: Nothing answered.
        """
        return await self.send(calls.health())

    async def ready(self) -> Health:
        """Return whether the service reaches its database.

        Returns:
            The health. Its status is `ok`, `degraded` (it answers, but its process of background work is down) or,
            for an answer of 503, `unavailable`.

        Raises:
            Unreachable: Nothing answered.
        """
        return await self.send(calls.ready())

    async def check(self) -> WhoAmI:
        """Check that the service answers and accepts this identity; meant for the start of a program.

        Returns:
            The verified identity.

        Raises:
            ThreefoldError: The service does not answer or refuses the identity; the message names the next step.
        """
        try:
            return await self.whoami()
        except ThreefoldError as error:
            raise with_next_step(error) from None
