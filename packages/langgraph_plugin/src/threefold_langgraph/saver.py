"""`ThreefoldSaver`: LangGraph's checkpoints in the service, owned by the run's user, or by the agent where named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from threefold import AsyncMemoryClient, MemoryClient, calls
from threefold.calls import Call
from threefold.checks import checked
from threefold.contract import (
    ChannelHistories,
    ChannelHistoryRequest,
    CheckpointPage,
    CopyThreadRequest,
    DeleteRunsRequest,
    PruneThreadsRequest,
    ThreadCounts,
)
from threefold.contract.common import DataScope
from threefold.errors import Unreachable
from threefold.policy import OUTAGE
from threefold_langgraph import checkpoints
from threefold_langgraph.checkpoints import At, Owner, owner_of
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import current_config
from threefold_langgraph.outage import Change, Outbox, logger

AnyClient = MemoryClient | AsyncMemoryClient


class ThreefoldSaver(BaseCheckpointSaver[str]):
    """Every failure raises, as a checkpoint that is swallowed is a lost thread.

    With `on_outage="memory"` a run goes on in this process while the service is out of reach, and what it stored is
    sent in order afterwards. Methods that LangGraph gives no config (`delete_thread` and its like) act for the user of
    the connection, or of the run that they are called in.
    """

    def __init__(
        self,
        connection: ThreefoldConnection,
        *,
        scope: DataScope = "user",
        on_outage: Literal["raise", "memory"] = "raise",
        keep_last: int | None = None,
        max_age: timedelta | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self.connection = connection
        self.scope: DataScope = scope
        self._limits = {"keep_last": keep_last, "max_age": None if max_age is None else max_age.total_seconds()}
        self._outbox = Outbox(connection.client) if on_outage == "memory" else None

    @property
    def unsent(self) -> int:
        """How many calls wait for the service."""
        return 0 if self._outbox is None else len(self._outbox)

    @property
    def refused(self) -> int:
        """How many calls that waited were refused afterwards, and are lost."""
        return 0 if self._outbox is None else self._outbox.refused

    def flush(self) -> bool:
        """Send what waits for the service; True once nothing does."""
        return self._outbox is None or self._outbox.flush()

    async def aflush(self) -> bool:
        """Send what waits for the service; True once nothing does."""
        return self.unsent == 0 or await asyncio.to_thread(self.flush)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """The number after `current`, and a random part, so that two forks never share a version."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:020d}.{random.getrandbits(64):016x}"

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values that are new, in one request."""
        self._store(config, self._checkpoint(config, checkpoint, metadata, new_versions))
        return At.of(config).config(checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values that are new, in one request."""
        await self._astore(config, self._checkpoint(config, checkpoint, metadata, new_versions))
        return At.of(config).config(checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, before or after their checkpoint; again does nothing more."""
        self._store(config, self._writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, before or after their checkpoint; again does nothing more."""
        await self._astore(config, self._writes(config, writes, task_id, task_path))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest, in one request."""
        client = self._client(config)
        if (held := self._held(client, config)) is not None:
            return held
        try:
            self._check_sent(client)
            page = client.threads.query(checkpoints.one_request(config, self.scope))
        except OUTAGE:
            if self._is_new(client, config):
                return None
            raise
        return self._found(client, config, page)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest, in one request."""
        client = self._async_client(config)
        if (held := self._held(client, config)) is not None:
            return held
        try:
            await self._acheck_sent(client)
            page = await client.threads.query(checkpoints.one_request(config, self.scope))
        except OUTAGE:
            if self._is_new(client, config):
                return None
            raise
        return self._found(client, config, page)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first, a page at a time; without a config, those of all threads of the user."""
        client = self._client(config or current_config())
        self._check_sent(client)
        asked = checkpoints.list_request(config, filter, before, limit, self.scope)
        while asked is not None:
            page = client.threads.query(asked)
            yield from checkpoints.tuples(self.serde, page, config, _owner(client))
            asked, limit = checkpoints.following(asked, page, limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, newest first, a page at a time; without a config, those of all threads of the user."""
        client = self._async_client(config or current_config())
        await self._acheck_sent(client)
        asked = checkpoints.list_request(config, filter, before, limit, self.scope)
        while asked is not None:
            page = await client.threads.query(asked)
            for found in checkpoints.tuples(self.serde, page, config, _owner(client)):
                yield found
            asked, limit = checkpoints.following(asked, page, limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint wrote to some channels, in one request."""
        client = self._client(config)
        self._check_sent(client)
        call = self._history(config, channels)
        return checkpoints.delta_histories(self.serde, client.send(call))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint wrote to some channels, in one request."""
        client = self._async_client(config)
        await self._acheck_sent(client)
        call = self._history(config, channels)
        return checkpoints.delta_histories(self.serde, await client.send(call))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread. What a run that is still at it stores afterwards is refused."""
        self._manage(calls.delete_thread(str(thread_id), self.scope))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread. What a run that is still at it stores afterwards is refused."""
        await self._amanage(calls.delete_thread(str(thread_id), self.scope))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of the runs (`run_id`), in every thread."""
        self._manage(calls.delete_runs(checked(DeleteRunsRequest, run_ids=run_ids, scope=self.scope)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of the runs (`run_id`), in every thread."""
        await self._amanage(calls.delete_runs(checked(DeleteRunsRequest, run_ids=run_ids, scope=self.scope)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole history of a thread under another id."""
        self._manage(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole history of a thread under another id."""
        await self._amanage(self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace (`keep_latest`), or nothing (`delete`)."""
        self._manage(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace (`keep_latest`), or nothing (`delete`)."""
        await self._amanage(self._prune(thread_ids, strategy))

    def _client(self, config: RunnableConfig) -> MemoryClient:
        owner = owner_of(config)
        if owner is not None:
            return self.connection.client.acting_as(user=owner.user, agent=owner.agent)
        return self.connection.acting(config, self.scope)

    def _async_client(self, config: RunnableConfig) -> AsyncMemoryClient:
        owner = owner_of(config)
        if owner is not None:
            return self.connection.async_client.acting_as(user=owner.user, agent=owner.agent)
        return self.connection.acting_async(config, self.scope)

    def _checkpoint(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Change:
        request = checkpoints.checkpoint_request(
            self.serde, config, checkpoint, metadata, new_versions, scope=self.scope, **self._limits
        )
        return Change(
            calls.put_checkpoint(At.of(config).thread_id, request),
            # All values, not the new ones alone: the others are only in the service.
            lambda held: held.put(config, checkpoint, metadata, checkpoint["channel_versions"]),
        )

    def _writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Change:
        request = checkpoints.writes_request(self.serde, config, writes, task_id, task_path, self.scope)
        return Change(
            calls.put_writes(At.of(config).thread_id, request),
            lambda held: held.put_writes(config, writes, task_id, task_path),
        )

    def _store(self, config: RunnableConfig, change: Change) -> None:
        client = self._client(config)
        if self._must_wait(client, change):
            return
        try:
            client.send(change.call)
        except OUTAGE as error:
            self._hold(client, change, error)

    async def _astore(self, config: RunnableConfig, change: Change) -> None:
        client = self._async_client(config)
        if self._must_wait(client, change):
            return
        try:
            await client.send(change.call)
        except OUTAGE as error:
            self._hold(client, change, error)

    def _must_wait(self, client: AnyClient, change: Change) -> bool:
        """True where others wait already: what depends on them comes after them."""
        if self._outbox is None or not self._outbox:
            return False
        self._outbox.add(_owner(client), change)
        return True

    def _hold(self, client: AnyClient, change: Change, error: Exception) -> None:
        if self._outbox is None:
            raise error
        logger.warning("checkpoints wait in this process until the service is back: %s", error)
        self._outbox.add(_owner(client), change)

    def _held(self, client: AnyClient, config: RunnableConfig) -> CheckpointTuple | None:
        if self._outbox is None:
            return None
        owner = _owner(client)
        found = self._outbox.find(owner, config, self.serde)
        if found is not None:
            self._outbox.loaded(owner, found.checkpoint["id"])
        return found

    def _is_new(self, client: AnyClient, config: RunnableConfig) -> bool:
        return self._outbox is not None and self._outbox.is_new(_owner(client), config)

    def _found(self, client: AnyClient, config: RunnableConfig, page: CheckpointPage) -> CheckpointTuple | None:
        found = next(checkpoints.tuples(self.serde, page, config, _owner(client)), None)
        if found is not None and self._outbox is not None:
            self._outbox.loaded(_owner(client), found.checkpoint["id"])
        return found

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Call[ChannelHistories]:
        at = At.of(config)
        asked = {"ns": at.ns, "checkpoint_id": at.checkpoint_id, "channels": channels, "scope": self.scope}
        return calls.channel_history(at.thread_id, checked(ChannelHistoryRequest, **asked))

    def _copy(self, source: str, target: str) -> Call[ThreadCounts]:
        return calls.copy_thread(str(source), checked(CopyThreadRequest, target=str(target), scope=self.scope))

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Call[ThreadCounts]:
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids: a list of ids, not one id")
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy: 'keep_latest' or 'delete', not {strategy!r}")
        ids = [str(thread_id) for thread_id in thread_ids]
        return calls.prune_threads(checked(PruneThreadsRequest, thread_ids=ids, strategy=strategy, scope=self.scope))

    def _manage(self, call: Call[ThreadCounts]) -> None:
        client = self._client(current_config())
        self._check_sent(client)
        client.send(call)

    async def _amanage(self, call: Call[ThreadCounts]) -> None:
        client = self._async_client(current_config())
        await self._acheck_sent(client)
        await client.send(call)

    def _check_sent(self, client: AnyClient) -> None:
        """Send what waits of an owner: it may be on top of what the service has."""
        if self._outbox is not None and not self._outbox.flush(_owner(client)):
            raise Unreachable(f"{self.unsent} calls wait for the service, so that what it has is not all; try again")

    async def _acheck_sent(self, client: AnyClient) -> None:
        if self.unsent:
            await asyncio.to_thread(self._check_sent, client)


def _owner(client: AnyClient) -> Owner:
    return Owner(client.user, client.agent)
