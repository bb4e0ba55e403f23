"""`ThreefoldSaver`: checkpoints of LangGraph in the service, owned by the user of the run or by the agent."""

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
from threefold_langgraph.checkpoints import Owner, ThreadPosition, owner_of
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import current_config
from threefold_langgraph.outage import Change, Outbox, logger

AnyClient = MemoryClient | AsyncMemoryClient


class ThreefoldSaver(BaseCheckpointSaver[str]):
    """Checkpointer of LangGraph. It raises every error, because a lost checkpoint loses the thread.

    Methods without a config, such as `delete_thread`, act for the user of the current run or of the connection.

    Args:
        connection: The connection of the process.
        scope: `user` (default), or `agent` for threads that all users of the agent share.
        on_outage: `raise` (default), or `memory`: in an outage a run goes on in this process, and its checkpoints are
            sent in order afterwards. ThreadPosition most 64 MiB are kept; they are lost with the process.
        keep_last: Newest checkpoints to keep per namespace, 1 to 1,000 (default: all).
        max_age: Delete superseded checkpoints that are older than this (default: never).
        serde: Serializer of LangGraph for the values (default: that of LangGraph).
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
        """Number of calls that could not be sent yet."""
        return 0 if self._outbox is None else len(self._outbox)

    @property
    def refused(self) -> int:
        """Number of unsent calls that the service refused later; they are lost."""
        return 0 if self._outbox is None else self._outbox.refused

    def flush(self) -> bool:
        """Send the unsent calls.

        Returns:
            True if no call is left.
        """
        return self._outbox is None or self._outbox.flush()

    async def aflush(self) -> bool:
        """Send the unsent calls.

        Returns:
            True if no call is left.
        """
        return self.unsent == 0 or await asyncio.to_thread(self.flush)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """Return the number after `current` with a random part, so that two forks never have the same version.

        Args:
            current: The current version, or None.
            channel: Ignored.
        """
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:020d}.{random.getrandbits(64):016x}"

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and its new values in one request.

        Args:
            config: The config of the run.
            checkpoint: The checkpoint.
            metadata: Its metadata.
            new_versions: Versions of the channels that changed.

        Returns:
            The config of the checkpoint.

        Raises:
            TooLarge: The value of a channel is larger than 16 MiB.
            ThreefoldError: The service refused the call; or, unless `on_outage` is `memory`, did not answer.
        """
        self._store(config, self._checkpoint(config, checkpoint, metadata, new_versions))
        return ThreadPosition.of(config).config(checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and its new values in one request.

        Args:
            config: The config of the run.
            checkpoint: The checkpoint.
            metadata: Its metadata.
            new_versions: Versions of the channels that changed.

        Returns:
            The config of the checkpoint.

        Raises:
            TooLarge: The value of a channel is larger than 16 MiB.
            ThreefoldError: The service refused the call; or, unless `on_outage` is `memory`, did not answer.
        """
        await self._astore(config, self._checkpoint(config, checkpoint, metadata, new_versions))
        return ThreadPosition.of(config).config(checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task. They may arrive before their checkpoint; a repetition changes nothing.

        Args:
            config: The config with the checkpoint.
            writes: Channels and values.
            task_id: The task.
            task_path: The path of the task.

        Raises:
            TooLarge: A value is larger than 16 MiB.
            ThreefoldError: The service refused the call; or, unless `on_outage` is `memory`, did not answer.
        """
        self._store(config, self._writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task. They may arrive before their checkpoint; a repetition changes nothing.

        Args:
            config: The config with the checkpoint.
            writes: Channels and values.
            task_id: The task.
            task_path: The path of the task.

        Raises:
            TooLarge: A value is larger than 16 MiB.
            ThreefoldError: The service refused the call; or, unless `on_outage` is `memory`, did not answer.
        """
        await self._astore(config, self._writes(config, writes, task_id, task_path))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its namespace, in one request.

        Args:
            config: The config with the thread.

        Returns:
            The checkpoint, or None if it does not exist.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._client(config)
        if (kept := self._kept(client, config)) is not None:
            return kept
        try:
            self._check_sent(client)
            page = client.threads.query(checkpoints.one_request(config, self.scope))
        except OUTAGE:
            if self._is_new(client, config):
                return None
            raise
        return self._found(client, config, page)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its namespace, in one request.

        Args:
            config: The config with the thread.

        Returns:
            The checkpoint, or None if it does not exist.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._async_client(config)
        if (kept := self._kept(client, config)) is not None:
            return kept
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
        """Yield checkpoints, newest first; pages are fetched as they are needed.

        Args:
            config: The config with the thread (default: all threads of the user).
            filter: Entries that the metadata must contain.
            before: Only checkpoints before this one.
            limit: Most checkpoints (default: all).

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._client(config or current_config())
        self._check_sent(client)
        query = checkpoints.list_request(config, filter, before, limit, self.scope)
        while query is not None:
            page = client.threads.query(query)
            yield from checkpoints.tuples(self.serde, page, config, _owner(client))
            query, limit = checkpoints.following(query, page, limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; pages are fetched as they are needed.

        Args:
            config: The config with the thread (default: all threads of the user).
            filter: Entries that the metadata must contain.
            before: Only checkpoints before this one.
            limit: Most checkpoints (default: all).

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._async_client(config or current_config())
        await self._acheck_sent(client)
        query = checkpoints.list_request(config, filter, before, limit, self.scope)
        while query is not None:
            page = await client.threads.query(query)
            for found in checkpoints.tuples(self.serde, page, config, _owner(client)):
                yield found
            query, limit = checkpoints.following(query, page, limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint wrote to channels, in one request.

        Args:
            config: The config with the checkpoint.
            channels: The channels.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._client(config)
        self._check_sent(client)
        call = self._history(config, channels)
        return checkpoints.delta_histories(self.serde, client.send(call))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint wrote to channels, in one request.

        Args:
            config: The config with the checkpoint.
            channels: The channels.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        client = self._async_client(config)
        await self._acheck_sent(client)
        call = self._history(config, channels)
        return checkpoints.delta_histories(self.serde, await client.send(call))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread. A run that still uses it cannot store anything in it afterwards.

        Args:
            thread_id: The thread.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        self._manage(calls.delete_thread(str(thread_id), self.scope))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread. A run that still uses it cannot store anything in it afterwards.

        Args:
            thread_id: The thread.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        await self._amanage(calls.delete_thread(str(thread_id), self.scope))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of the runs (`run_id`), in every thread.

        Args:
            run_ids: The runs, at most 10,000.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        self._manage(calls.delete_runs(checked(DeleteRunsRequest, run_ids=run_ids, scope=self.scope)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of the runs (`run_id`), in every thread.

        Args:
            run_ids: The runs, at most 10,000.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        await self._amanage(calls.delete_runs(checked(DeleteRunsRequest, run_ids=run_ids, scope=self.scope)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole history of a thread to another id.

        Args:
            source_thread_id: The thread.
            target_thread_id: The id of the copy.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        self._manage(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole history of a thread to another id.

        Args:
            source_thread_id: The thread.
            target_thread_id: The id of the copy.

        Raises:
            ThreefoldError: The service refused the call or did not answer.
        """
        await self._amanage(self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads.

        Args:
            thread_ids: The threads, at most 10,000.
            strategy: `keep_latest` (default) keeps the newest checkpoint of each namespace, `delete` keeps nothing.

        Raises:
            TypeError: `thread_ids` is a single id.
            ValueError: The strategy is unknown.
            ThreefoldError: The service refused the call or did not answer.
        """
        self._manage(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads.

        Args:
            thread_ids: The threads, at most 10,000.
            strategy: `keep_latest` (default) keeps the newest checkpoint of each namespace, `delete` keeps nothing.

        Raises:
            TypeError: `thread_ids` is a single id.
            ValueError: The strategy is unknown.
            ThreefoldError: The service refused the call or did not answer.
        """
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
            calls.put_checkpoint(ThreadPosition.of(config).thread_id, request),
            # All values, not only the new ones: the others are only in the service.
            lambda saver: saver.put(config, checkpoint, metadata, checkpoint["channel_versions"]),
        )

    def _writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Change:
        request = checkpoints.writes_request(self.serde, config, writes, task_id, task_path, self.scope)
        return Change(
            calls.put_writes(ThreadPosition.of(config).thread_id, request),
            lambda saver: saver.put_writes(config, writes, task_id, task_path),
        )

    def _store(self, config: RunnableConfig, change: Change) -> None:
        client = self._client(config)
        if self._keep_order(client, change):
            return
        try:
            client.send(change.call)
        except OUTAGE as error:
            self._keep(client, change, error)

    async def _astore(self, config: RunnableConfig, change: Change) -> None:
        client = self._async_client(config)
        if self._keep_order(client, change):
            return
        try:
            await client.send(change.call)
        except OUTAGE as error:
            self._keep(client, change, error)

    def _keep_order(self, client: AnyClient, change: Change) -> bool:
        """Keep the change if earlier calls are unsent, so that the order stays the same. Return True if it was kept."""
        if self._outbox is None or not self._outbox:
            return False
        self._outbox.add(_owner(client), change)
        return True

    def _keep(self, client: AnyClient, change: Change, error: Exception) -> None:
        if self._outbox is None:
            raise error
        logger.warning("the service does not answer; checkpoints are kept in this process: %s", error)
        self._outbox.add(_owner(client), change)

    def _kept(self, client: AnyClient, config: RunnableConfig) -> CheckpointTuple | None:
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
        at = ThreadPosition.of(config)
        fields = {"ns": at.ns, "checkpoint_id": at.checkpoint_id, "channels": channels, "scope": self.scope}
        return calls.channel_history(at.thread_id, checked(ChannelHistoryRequest, **fields))

    def _copy(self, source: str, target: str) -> Call[ThreadCounts]:
        return calls.copy_thread(str(source), checked(CopyThreadRequest, target=str(target), scope=self.scope))

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Call[ThreadCounts]:
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids: must be a list of ids, not a single id")
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy: must be 'keep_latest' or 'delete', not {strategy!r}")
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
        """Send the unsent calls of an owner, because the service lacks them. Raise Unreachable if one is left."""
        if self._outbox is not None and not self._outbox.flush(_owner(client)):
            raise Unreachable(f"{self.unsent} checkpoints or writes are not sent yet; try again later")

    async def _acheck_sent(self, client: AnyClient) -> None:
        if self.unsent:
            await asyncio.to_thread(self._check_sent, client)


def _owner(client: AnyClient) -> Owner:
    return Owner(client.user, client.agent)
