"""`client.threads` of both clients: the checkpoints of graphs."""

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
    """The part of `MemoryClient` that `Threads` needs."""

    def send(self, call: Call[R]) -> R:
        """Send one call and return its answer."""
        ...


class AsyncSender(Protocol):
    """The part of `AsyncMemoryClient` that `AsyncThreads` needs."""

    async def send(self, call: Call[R]) -> R:
        """Send one call and return its answer."""
        ...


class Threads:
    """The operations on threads; every request can be repeated.

    A thread belongs to the user and agent of the client, or to the agent alone if the `scope` of a request is `agent`.
    That scope raises `Forbidden` if the ceiling of this identity is `session`.
    """

    def __init__(self, client: Sender) -> None:
        self._client = client

    def put_checkpoint(self, thread_id: str, request: PutCheckpointRequest) -> Stored:
        """Store one checkpoint and the new values of its channels. Repeating a call changes nothing.

        Args:
            thread_id: The thread; it is created by its first checkpoint.
            request: The checkpoint, its new channel values, and how many older checkpoints to keep.

        Returns:
            Counts of checkpoints that were stored and dropped.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Conflict: The thread was deleted during this run; start a new run.
        """
        return self._client.send(calls.put_checkpoint(thread_id, request))

    def put_writes(self, thread_id: str, request: PutWritesRequest) -> Stored:
        """Store the writes of one task. They may arrive before their checkpoint.

        Args:
            thread_id: The thread.
            request: The checkpoint, the task and its writes, at most 10,000.

        Returns:
            The count of writes that were stored.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Conflict: The thread was deleted during this run; start a new run.
        """
        return self._client.send(calls.put_writes(thread_id, request))

    def query(self, request: QueryCheckpointsRequest) -> CheckpointPage:
        """Return one page of checkpoints with their values and writes, newest first.

        Args:
            request: Which checkpoints; `limit` is 0 to 1,000 (default 20).

        Returns:
            The checkpoints, each channel value once, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Forbidden: The request names no thread and the ceiling of this identity is `session`.
        """
        return self._client.send(calls.query_checkpoints(request))

    def history(self, thread_id: str, request: ChannelHistoryRequest) -> ChannelHistories:
        """Return what the ancestors of a checkpoint wrote to some channels, and the values that they started from.

        Args:
            thread_id: The thread.
            request: The checkpoint (default: the newest) and the channels.

        Returns:
            The writes of each channel since its nearest stored value, oldest first, and that value.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
        """
        return self._client.send(calls.channel_history(thread_id, request))

    def copy(self, thread_id: str, request: CopyThreadRequest) -> ThreadCounts:
        """Copy the whole history of a thread under another id. Repeating a call adds nothing.

        Args:
            thread_id: The thread to copy.
            request: The id of the copy.

        Returns:
            Counts of threads and checkpoints that were copied; 0 if there is no such thread.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
        """
        return self._client.send(calls.copy_thread(thread_id, request))

    def prune(self, request: PruneThreadsRequest) -> ThreadCounts:
        """Delete all but the newest checkpoint of each namespace of some threads, or all of them.

        Args:
            request: The threads, at most 10,000, and the strategy: `keep_latest` (default) or `delete`.

        Returns:
            Counts of threads that were found and checkpoints that were deleted.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
        """
        return self._client.send(calls.prune_threads(request))

    def delete_runs(self, request: DeleteRunsRequest) -> ThreadCounts:
        """Delete the checkpoints whose metadata names one of some runs.

        Args:
            request: The ids of the runs, at most 10,000.

        Returns:
            Counts of threads that lost checkpoints and checkpoints that were deleted.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Forbidden: The ceiling of this identity is `session`, and runs may be in any thread.
        """
        return self._client.send(calls.delete_runs(request))

    def delete(self, thread_id: str, scope: DataScope = "user") -> ThreadCounts:
        """Delete a thread. Later writes of a run that is still active are refused with `Conflict`.

        Args:
            thread_id: The thread.
            scope: `user` (default) for a thread of this user with this agent, `agent` for one that all users share.

        Returns:
            Counts of threads and checkpoints that were deleted; 0 if there is no such thread.

        Raises:
            Forbidden: The scope is `agent` and the ceiling of this identity is `session`.
        """
        return self._client.send(calls.delete_thread(thread_id, scope))


class AsyncThreads:
    """Asynchronous twin of `Threads`."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def put_checkpoint(self, thread_id: str, request: PutCheckpointRequest) -> Stored:
        """Store one checkpoint and the new values of its channels. Repeating a call changes nothing.

        Args:
            thread_id: The thread; it is created by its first checkpoint.
            request: The checkpoint, its new channel values, and how many older checkpoints to keep.

        Returns:
            Counts of checkpoints that were stored and dropped.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Conflict: The thread was deleted during this run; start a new run.
        """
        return await self._client.send(calls.put_checkpoint(thread_id, request))

    async def put_writes(self, thread_id: str, request: PutWritesRequest) -> Stored:
        """Store the writes of one task. They may arrive before their checkpoint.

        Args:
            thread_id: The thread.
            request: The checkpoint, the task and its writes, at most 10,000.

        Returns:
            The count of writes that were stored.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Conflict: The thread was deleted during this run; start a new run.
        """
        return await self._client.send(calls.put_writes(thread_id, request))

    async def query(self, request: QueryCheckpointsRequest) -> CheckpointPage:
        """Return one page of checkpoints with their values and writes, newest first.

        Args:
            request: Which checkpoints; `limit` is 0 to 1,000 (default 20).

        Returns:
            The checkpoints, each channel value once, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Forbidden: The request names no thread and the ceiling of this identity is `session`.
        """
        return await self._client.send(calls.query_checkpoints(request))

    async def history(self, thread_id: str, request: ChannelHistoryRequest) -> ChannelHistories:
        """Return what the ancestors of a checkpoint wrote to some channels, and the values that they started from.

        Args:
            thread_id: The thread.
            request: The checkpoint (default: the newest) and the channels.

        Returns:
            The writes of each channel since its nearest stored value, oldest first, and that value.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
        """
        return await self._client.send(calls.channel_history(thread_id, request))

    async def copy(self, thread_id: str, request: CopyThreadRequest) -> ThreadCounts:
        """Copy the whole history of a thread under another id. Repeating a call adds nothing.

        Args:
            thread_id: The thread to copy.
            request: The id of the copy.

        Returns:
            Counts of threads and checkpoints that were copied; 0 if there is no such thread.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
        """
        return await self._client.send(calls.copy_thread(thread_id, request))

    async def prune(self, request: PruneThreadsRequest) -> ThreadCounts:
        """Delete all but the newest checkpoint of each namespace of some threads, or all of them.

        Args:
            request: The threads, at most 10,000, and the strategy: `keep_latest` (default) or `delete`.

        Returns:
            Counts of threads that were found and checkpoints that were deleted.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
        """
        return await self._client.send(calls.prune_threads(request))

    async def delete_runs(self, request: DeleteRunsRequest) -> ThreadCounts:
        """Delete the checkpoints whose metadata names one of some runs.

        Args:
            request: The ids of the runs, at most 10,000.

        Returns:
            Counts of threads that lost checkpoints and checkpoints that were deleted.

        Raises:
            InvalidRequest: A field is wrong; the message names it.
            Forbidden: The ceiling of this identity is `session`, and runs may be in any thread.
        """
        return await self._client.send(calls.delete_runs(request))

    async def delete(self, thread_id: str, scope: DataScope = "user") -> ThreadCounts:
        """Delete a thread. Later writes of a run that is still active are refused with `Conflict`.

        Args:
            thread_id: The thread.
            scope: `user` (default) for a thread of this user with this agent, `agent` for one that all users share.

        Returns:
            Counts of threads and checkpoints that were deleted; 0 if there is no such thread.

        Raises:
            Forbidden: The scope is `agent` and the ceiling of this identity is `session`.
        """
        return await self._client.send(calls.delete_thread(thread_id, scope))
