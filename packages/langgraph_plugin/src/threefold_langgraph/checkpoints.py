"""Convert checkpoints of LangGraph to requests of the contract and back. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from threefold.checks import checked
from threefold.contract import (
    MAX_CHANNEL_VALUE_BYTES,
    Blob,
    BlobIn,
    ChannelHistories,
    CheckpointPage,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
    StoredCheckpoint,
    WriteIn,
)
from threefold.contract.common import DataScope
from threefold.contract.threads import Version
from threefold.errors import InvalidRequest, TooLarge

PAGE = 20
NAMES = ("langgraph_user_id", "user_id")
"""Keys of a run's config that name its user. Configs that are returned keep them, so that they work like the first."""

BlobKey = tuple[str, str, str, Version]


class Owner(NamedTuple):
    """User and agent of a thread."""

    user: str | None
    agent: str | None


class OwnedThread(str):
    """The id of a thread, with its owner.

    To show the state of a subgraph, LangGraph builds a config from the thread id of its parent alone. The user of the
    run is lost, but the id object of a checkpoint that was read is passed on unchanged.
    """

    owner: Owner

    @classmethod
    def of(cls, thread_id: str, owner: Owner) -> OwnedThread:
        owned = cls(thread_id)
        owned.owner = owner
        return owned


_KEYS_FOR_SUBGRAPH = frozenset({"__pregel_checkpointer", "thread_id", "checkpoint_ns"})


def owner_of(config: RunnableConfig) -> Owner | None:
    """Return the owner of a config that LangGraph built for a subgraph; None for the config of a run or a caller."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    thread_id = configurable.get("thread_id")
    return thread_id.owner if isinstance(thread_id, OwnedThread) and configurable.keys() == _KEYS_FOR_SUBGRAPH else None


class ThreadPosition(NamedTuple):
    """The position in a thread to which a config points."""

    thread_id: str
    ns: str
    checkpoint_id: str | None
    names: Mapping[str, Any]

    @classmethod
    def of(cls, config: RunnableConfig) -> ThreadPosition:
        """Return the position of a config. Raise InvalidRequest if it has no thread."""
        configurable: Mapping[str, Any] = config.get("configurable", {})
        if configurable.get("thread_id") is None:
            raise InvalidRequest("no thread: set `configurable.thread_id` in the config")
        names = {name: configurable[name] for name in NAMES if name in configurable}
        if (owner := owner_of(config)) is not None and owner.user is not None:
            names = {"langgraph_user_id": owner.user}
        ns: str = configurable.get("checkpoint_ns") or ""
        return cls(str(configurable["thread_id"]), ns, get_checkpoint_id(config), names)

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Return the config of a checkpoint in the same namespace."""
        position = {"thread_id": self.thread_id, "checkpoint_ns": self.ns, "checkpoint_id": checkpoint_id}
        return {"configurable": {**self.names, **position}}


def checkpoint_request(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    **options: Any,
) -> PutCheckpointRequest:
    """Return the request for a checkpoint, with its new values. A channel without a value has no blob."""
    at = ThreadPosition.of(config)
    values = checkpoint["channel_values"]
    bare = {name: value for name, value in checkpoint.items() if name != "channel_values"}
    kept = get_serializable_checkpoint_metadata(config, metadata)
    return checked(
        PutCheckpointRequest,
        ns=at.ns,
        checkpoint_id=checkpoint["id"],
        parent_id=at.checkpoint_id,
        metadata=json.dumps(kept),
        versions=checkpoint["channel_versions"],
        blobs=[
            BlobIn(channel=channel, version=version, **_dumped(serde, channel, values[channel]))
            for channel, version in new_versions.items()
            if channel in values
        ],
        **_dumped(serde, "the checkpoint", bare),
        **{name: value for name, value in options.items() if value is not None},
    )


def writes_request(
    serde: SerializerProtocol,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    scope: DataScope,
) -> PutWritesRequest:
    """Return the request for the writes of a task. Writes of LangGraph itself have their own indexes."""
    at = ThreadPosition.of(config)
    return checked(
        PutWritesRequest,
        ns=at.ns,
        checkpoint_id=at.checkpoint_id,
        task_id=task_id,
        task_path=task_path,
        scope=scope,
        writes=[
            WriteIn(idx=WRITES_IDX_MAP.get(channel, idx), channel=channel, **_dumped(serde, channel, value))
            for idx, (channel, value) in enumerate(writes)
        ],
    )


def one_request(config: RunnableConfig, scope: DataScope) -> QueryCheckpointsRequest:
    """Return the query for the checkpoint that a config names, or for the newest of its namespace."""
    at = ThreadPosition.of(config)
    fields = {"thread_id": at.thread_id, "ns": at.ns, "checkpoint_id": at.checkpoint_id}
    return checked(QueryCheckpointsRequest, **fields, limit=1, scope=scope)


def list_request(
    config: RunnableConfig | None,
    filter_by: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
    scope: DataScope,
) -> QueryCheckpointsRequest:
    """Return the query for checkpoints of a thread or of all threads; without a namespace, of all namespaces."""
    fields: dict[str, Any] = {"filter": dict(filter_by or {}), "limit": _page(limit), "scope": scope}
    if config is not None:
        at = ThreadPosition.of(config)
        ns = config.get("configurable", {}).get("checkpoint_ns")
        fields |= {"thread_id": at.thread_id, "ns": ns, "checkpoint_id": at.checkpoint_id}
    if before is not None:
        fields["before"] = get_checkpoint_id(before)
    return checked(QueryCheckpointsRequest, **fields)


def following(
    query: QueryCheckpointsRequest, page: CheckpointPage, limit: int | None
) -> tuple[QueryCheckpointsRequest | None, int | None]:
    """Return the query for the next page, or None after the last, and the number of checkpoints still to return."""
    left = None if limit is None else limit - len(page.checkpoints)
    if page.next_cursor is None or (left is not None and left <= 0):
        return None, left
    return query.model_copy(update={"cursor": page.next_cursor, "limit": _page(left)}), left


def tuples(
    serde: SerializerProtocol, page: CheckpointPage, config: RunnableConfig | None, owner: Owner
) -> Iterator[CheckpointTuple]:
    """Yield the checkpoints of a page."""
    blobs = {(blob.thread_id, blob.ns, blob.channel, blob.version): blob for blob in page.blobs}
    names: Mapping[str, Any] = {} if config is None else ThreadPosition.of(config).names
    for stored in page.checkpoints:
        thread_id = OwnedThread.of(stored.thread_id, owner)
        yield _tuple(serde, stored, blobs, ThreadPosition(thread_id, stored.ns, stored.checkpoint_id, names))


def delta_histories(serde: SerializerProtocol, found: ChannelHistories) -> dict[str, DeltaChannelHistory]:
    """Return the histories of channels, with their values."""
    histories: dict[str, DeltaChannelHistory] = {}
    for channel, history in found.channels.items():
        writes = [(write.task_id, write.channel, _loaded(serde, write.type, write.data)) for write in history.writes]
        histories[channel] = DeltaChannelHistory(writes=writes)
        if history.seed is not None:
            histories[channel]["seed"] = _loaded(serde, history.seed.type, history.seed.data)
    return histories


def _tuple(
    serde: SerializerProtocol, stored: StoredCheckpoint, blobs: Mapping[BlobKey, Blob], at: ThreadPosition
) -> CheckpointTuple:
    stored_blobs = {
        channel: blobs.get((at.thread_id, at.ns, channel, version)) for channel, version in stored.versions.items()
    }
    values = {
        channel: _loaded(serde, blob.type, blob.data) for channel, blob in stored_blobs.items() if blob is not None
    }
    bare = cast("dict[str, Any]", _loaded(serde, stored.type, stored.data))
    return CheckpointTuple(
        config=at.config(stored.checkpoint_id),
        checkpoint=cast("Checkpoint", {**bare, "channel_values": values}),
        metadata=json.loads(stored.metadata),
        parent_config=None if stored.parent_id is None else at.config(stored.parent_id),
        pending_writes=[
            (write.task_id, write.channel, _loaded(serde, write.type, write.data)) for write in stored.writes
        ],
    )


def _page(limit: int | None) -> int:
    return PAGE if limit is None else min(max(limit, 0), PAGE)


def _dumped(serde: SerializerProtocol, channel_name: str, value: Any) -> dict[str, Any]:
    kind, data = serde.dumps_typed(value)
    if len(data) > MAX_CHANNEL_VALUE_BYTES:
        raise TooLarge(
            f"channel {channel_name!r}: its value has {len(data)} bytes, at most {MAX_CHANNEL_VALUE_BYTES} are stored; "
            "store large values elsewhere and keep their address in the state",
            {"channel": channel_name, "bytes": len(data), "max_bytes": MAX_CHANNEL_VALUE_BYTES},
        )
    return {"type": kind, "data": data}


def _loaded(serde: SerializerProtocol, kind: str, data: bytes) -> Any:
    return serde.loads_typed((kind, data))
