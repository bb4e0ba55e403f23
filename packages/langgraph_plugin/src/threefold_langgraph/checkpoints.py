"""What LangGraph calls a checkpoint, as requests of the contract, and back. No I/O."""

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
"""What a run's config calls its user: kept in the configs that come back, so that they can be used like it."""

BlobKey = tuple[str, str, str, Version]


class Owner(NamedTuple):
    """Whose thread it is."""

    user: str | None
    agent: str | None


class OwnedThread(str):
    """A thread's id that knows whose it is.

    To show the state of a subgraph, LangGraph makes a config of nothing but its parent's thread id, in which the run's
    user is lost; the id of a checkpoint that we have read is handed on as it is.
    """

    owner: Owner

    @classmethod
    def of(cls, thread_id: str, owner: Owner) -> OwnedThread:
        made = cls(thread_id)
        made.owner = owner
        return made


_MADE_FOR_A_SUBGRAPH = frozenset({"__pregel_checkpointer", "thread_id", "checkpoint_ns"})


def owner_of(config: RunnableConfig) -> Owner | None:
    """The owner that a config made by LangGraph itself stands for; None for one that a run or a caller made."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    thread_id = configurable.get("thread_id")
    return (
        thread_id.owner if isinstance(thread_id, OwnedThread) and configurable.keys() == _MADE_FOR_A_SUBGRAPH else None
    )


class At(NamedTuple):
    """Where in a thread a config points."""

    thread_id: str
    ns: str
    checkpoint_id: str | None
    names: Mapping[str, Any]

    @classmethod
    def of(cls, config: RunnableConfig) -> At:
        """The place; a config without a thread is refused."""
        configurable: Mapping[str, Any] = config.get("configurable", {})
        if configurable.get("thread_id") is None:
            raise InvalidRequest("no thread: name one in the config (`configurable.thread_id`)")
        names = {name: configurable[name] for name in NAMES if name in configurable}
        ns: str = configurable.get("checkpoint_ns") or ""
        return cls(str(configurable["thread_id"]), ns, get_checkpoint_id(config), names)

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """The config of a checkpoint in the same place."""
        place = {"thread_id": self.thread_id, "checkpoint_ns": self.ns, "checkpoint_id": checkpoint_id}
        return {"configurable": {**self.names, **place}}


def checkpoint_request(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    **options: Any,
) -> PutCheckpointRequest:
    """A checkpoint without its values, and those values that are new. One that is absent has no blob at its version."""
    at = At.of(config)
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
    """The writes of a task; those that LangGraph itself makes have places of their own."""
    at = At.of(config)
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
    """The one checkpoint that a config names, or the newest of its namespace."""
    at = At.of(config)
    asked = {"thread_id": at.thread_id, "ns": at.ns, "checkpoint_id": at.checkpoint_id}
    return checked(QueryCheckpointsRequest, **asked, limit=1, scope=scope)


def list_request(
    config: RunnableConfig | None,
    wanted: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
    scope: DataScope,
) -> QueryCheckpointsRequest:
    """Checkpoints of a thread, or of all; without a namespace, those of all namespaces."""
    asked: dict[str, Any] = {"filter": dict(wanted or {}), "limit": _page(limit), "scope": scope}
    if config is not None:
        at = At.of(config)
        ns = config.get("configurable", {}).get("checkpoint_ns")
        asked |= {"thread_id": at.thread_id, "ns": ns, "checkpoint_id": at.checkpoint_id}
    if before is not None:
        asked["before"] = get_checkpoint_id(before)
    return checked(QueryCheckpointsRequest, **asked)


def following(
    asked: QueryCheckpointsRequest, page: CheckpointPage, limit: int | None
) -> tuple[QueryCheckpointsRequest | None, int | None]:
    """What to ask for after a page, and how much is wanted still; None where that was all."""
    left = None if limit is None else limit - len(page.checkpoints)
    if page.next_cursor is None or (left is not None and left <= 0):
        return None, left
    return asked.model_copy(update={"cursor": page.next_cursor, "limit": _page(left)}), left


def tuples(
    serde: SerializerProtocol, page: CheckpointPage, config: RunnableConfig | None, owner: Owner
) -> Iterator[CheckpointTuple]:
    """The checkpoints of a page."""
    blobs = {(blob.thread_id, blob.ns, blob.channel, blob.version): blob for blob in page.blobs}
    names: Mapping[str, Any] = {} if config is None else At.of(config).names
    for stored in page.checkpoints:
        thread_id = OwnedThread.of(stored.thread_id, owner)
        yield _tuple(serde, stored, blobs, At(thread_id, stored.ns, stored.checkpoint_id, names))


def delta_histories(serde: SerializerProtocol, found: ChannelHistories) -> dict[str, DeltaChannelHistory]:
    """The histories of channels, with their values."""
    histories: dict[str, DeltaChannelHistory] = {}
    for channel, history in found.channels.items():
        writes = [(write.task_id, write.channel, _loaded(serde, write.type, write.data)) for write in history.writes]
        histories[channel] = DeltaChannelHistory(writes=writes)
        if history.seed is not None:
            histories[channel]["seed"] = _loaded(serde, history.seed.type, history.seed.data)
    return histories


def _tuple(
    serde: SerializerProtocol, stored: StoredCheckpoint, blobs: Mapping[BlobKey, Blob], at: At
) -> CheckpointTuple:
    held = {channel: blobs.get((at.thread_id, at.ns, channel, version)) for channel, version in stored.versions.items()}
    values = {channel: _loaded(serde, blob.type, blob.data) for channel, blob in held.items() if blob is not None}
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


def _dumped(serde: SerializerProtocol, what: str, value: Any) -> dict[str, Any]:
    kind, data = serde.dumps_typed(value)
    if len(data) > MAX_CHANNEL_VALUE_BYTES:
        raise TooLarge(
            f"channel {what!r}: {len(data)} bytes, and at most {MAX_CHANNEL_VALUE_BYTES} are stored; "
            "keep large things outside of the state, and their address in it",
            {"channel": what, "bytes": len(data), "max_bytes": MAX_CHANNEL_VALUE_BYTES},
        )
    return {"type": kind, "data": data}


def _loaded(serde: SerializerProtocol, kind: str, data: bytes) -> Any:
    return serde.loads_typed((kind, data))
