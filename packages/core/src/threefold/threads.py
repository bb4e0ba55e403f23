"""Threads of a graph, on either client: `client.threads`."""

from __future__ import annotations

from typing import Protocol

from threefold import calls
from threefold.calls import Call, R
from threefold.contract import (
    ChannelHistories,
    ChannelHistoryRequest,
    CheckpointPage,
    CopyThreadRequest,
    DeleteRunsRequest,
    PruneThreadsRequest,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
    Stored,
    ThreadCounts,
)
from threefold.contract.common import DataScope


class Sender(Protocol):
    """A `MemoryClient`."""

    def send(self, call: Call[R]) -> R:
        """Any call of the contract."""
        ...


class AsyncSender(Protocol):
    """An `AsyncMemoryClient`."""

    async def send(self, call: Call[R]) -> R:
        """Any call of the contract."""
        ...


class Threads:
    """Checkpoints of the client's user with its agent, or of the agent where a request says so."""

    def __init__(self, client: Sender) -> None:
        self._client = client

    def put_checkpoint(self, thread_id: str, request: PutCheckpointRequest) -> Stored:
        """Store one checkpoint and the new values of its channels; again does nothing more."""
        return self._client.send(calls.put_checkpoint(thread_id, request))

    def put_writes(self, thread_id: str, request: PutWritesRequest) -> Stored:
        """Store the writes of one task, before or after their checkpoint."""
        return self._client.send(calls.put_writes(thread_id, request))

    def query(self, request: QueryCheckpointsRequest) -> CheckpointPage:
        """One page of checkpoints with their values and writes, newest first."""
        return self._client.send(calls.query_checkpoints(request))

    def history(self, thread_id: str, request: ChannelHistoryRequest) -> ChannelHistories:
        """What the ancestors of a checkpoint wrote to some channels, and the values that they started from."""
        return self._client.send(calls.channel_history(thread_id, request))

    def copy(self, thread_id: str, request: CopyThreadRequest) -> ThreadCounts:
        """Copy the whole history of a thread under another id."""
        return self._client.send(calls.copy_thread(thread_id, request))

    def prune(self, request: PruneThreadsRequest) -> ThreadCounts:
        """Keep the newest checkpoint of each namespace of some threads, or nothing of them."""
        return self._client.send(calls.prune_threads(request))

    def delete_runs(self, request: DeleteRunsRequest) -> ThreadCounts:
        """Delete the checkpoints of some runs."""
        return self._client.send(calls.delete_runs(request))

    def delete(self, thread_id: str, scope: DataScope = "user") -> ThreadCounts:
        """Delete a thread; a run that is still at it is refused from then on."""
        return self._client.send(calls.delete_thread(thread_id, scope))


class AsyncThreads:
    """`Threads`, of the other twin."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def put_checkpoint(self, thread_id: str, request: PutCheckpointRequest) -> Stored:
        return await self._client.send(calls.put_checkpoint(thread_id, request))

    async def put_writes(self, thread_id: str, request: PutWritesRequest) -> Stored:
        return await self._client.send(calls.put_writes(thread_id, request))

    async def query(self, request: QueryCheckpointsRequest) -> CheckpointPage:
        return await self._client.send(calls.query_checkpoints(request))

    async def history(self, thread_id: str, request: ChannelHistoryRequest) -> ChannelHistories:
        return await self._client.send(calls.channel_history(thread_id, request))

    async def copy(self, thread_id: str, request: CopyThreadRequest) -> ThreadCounts:
        return await self._client.send(calls.copy_thread(thread_id, request))

    async def prune(self, request: PruneThreadsRequest) -> ThreadCounts:
        return await self._client.send(calls.prune_threads(request))

    async def delete_runs(self, request: DeleteRunsRequest) -> ThreadCounts:
        return await self._client.send(calls.delete_runs(request))

    async def delete(self, thread_id: str, scope: DataScope = "user") -> ThreadCounts:
        return await self._client.send(calls.delete_thread(thread_id, scope))
