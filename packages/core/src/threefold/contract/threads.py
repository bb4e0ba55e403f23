"""Threads of a graph: checkpoints, values of their channels, pending writes. The service never decodes their values."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, PlainSerializer, WithJsonSchema

from threefold.contract.common import (
    MAX_IDS_PER_CALL,
    Cursor,
    DataScope,
    Id,
    PageLimit,
    Request,
    Response,
    check_exact,
)

MAX_CHANNEL_VALUE_BYTES = 16 * 2**20
MAX_CHECKPOINT_KEY_CHARS = 128
MAX_CHECKPOINT_NAMESPACE_CHARS = 4_096
MAX_CHANNELS = 10_000
MAX_KEPT = 1_000


def decode_bytes(value: object) -> object:
    """Decode base64 text; return bytes unchanged."""
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def check_json_object(text: str) -> str:
    """Refuse text that is not a JSON object."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("must be the JSON text of an object")
    return text


Binary = Annotated[
    bytes,
    BeforeValidator(decode_bytes),
    Field(max_length=MAX_CHANNEL_VALUE_BYTES),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Base64 in JSON: a third longer on the wire than the bytes, but one form of request, error and description for all."""
CheckpointKey = Annotated[str, BeforeValidator(check_exact), Field(min_length=1, max_length=MAX_CHECKPOINT_KEY_CHARS)]
CheckpointNamespace = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_CHECKPOINT_NAMESPACE_CHARS)]
ChannelName = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_CHECKPOINT_NAMESPACE_CHARS)]
JsonObjectText = Annotated[str, BeforeValidator(check_exact), AfterValidator(check_json_object)]
Version = str | int | float
"""The version number of a channel, as the graph counts it."""


class _Value(BaseModel):
    """Bytes, and the name of their serialisation."""

    type: CheckpointKey
    data: Binary


class BlobIn(_Value, Request):
    """The value of one channel at one of its versions."""

    channel: ChannelName
    version: Version


class WriteIn(_Value, Request):
    """One write of a task. If it is repeated, the last one counts for a negative `idx`, else the first."""

    idx: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    channel: ChannelName


class PutCheckpointRequest(_Value, Request):
    """`POST /v1/threads/{thread_id}/checkpoints`: store one checkpoint, without its values, and the new values."""

    ns: CheckpointNamespace = ""
    checkpoint_id: CheckpointKey
    parent_id: CheckpointKey | None = None
    metadata: JsonObjectText = Field(default="{}", description="The JSON text of an object, returned byte for byte.")
    versions: Annotated[dict[ChannelName, Version], Field(max_length=MAX_CHANNELS)] = Field(
        default_factory=dict[str, Version], description="The version of every channel in this checkpoint."
    )
    blobs: Annotated[list[BlobIn], Field(max_length=MAX_CHANNELS)] = Field(default_factory=list[BlobIn])
    scope: DataScope = "user"
    keep_last: int | None = Field(
        default=None,
        ge=1,
        le=MAX_KEPT,
        description="Keep only this number of the newest checkpoints of each namespace; null keeps all.",
    )
    max_age: float | None = Field(
        default=None,
        gt=0,
        lt=1e10,
        description="Drop superseded checkpoints that are older than this, in seconds; null keeps all.",
    )


class PutWritesRequest(Request):
    """`POST /v1/threads/{thread_id}/writes`: the writes of one task; they may arrive before their checkpoint."""

    ns: CheckpointNamespace = ""
    checkpoint_id: CheckpointKey
    task_id: CheckpointKey
    task_path: ChannelName = ""
    writes: Annotated[list[WriteIn], Field(max_length=MAX_CHANNELS)]
    scope: DataScope = "user"


class QueryCheckpointsRequest(Request):
    """`POST /v1/threads/query`: checkpoints with their values and writes, newest first."""

    thread_id: Id | None = Field(default=None, description="Only this thread; null: every thread.")
    ns: CheckpointNamespace | None = Field(
        default=None, description="Only this namespace (the root is an empty string); null: every namespace."
    )
    checkpoint_id: CheckpointKey | None = None
    before: CheckpointKey | None = Field(default=None, description="Only checkpoints with a smaller id.")
    filter: dict[str, JsonValue] = Field(
        default_factory=dict[str, JsonValue], description="Entries that the metadata must contain."
    )
    cursor: Cursor | None = None
    limit: PageLimit = 20
    scope: DataScope = "user"


class CopyThreadRequest(Request):
    """`POST /v1/threads/{thread_id}/copy`: the whole history under another id."""

    target: Id
    scope: DataScope = "user"


class PruneThreadsRequest(Request):
    """`POST /v1/threads/prune`: keep the newest checkpoint of each namespace, or nothing."""

    thread_ids: Annotated[list[Id], Field(max_length=MAX_IDS_PER_CALL)]
    strategy: Literal["keep_latest", "delete"] = "keep_latest"
    scope: DataScope = "user"


class DeleteRunsRequest(Request):
    """`POST /v1/threads/delete_runs`: the checkpoints whose metadata names one of the runs."""

    run_ids: Annotated[list[Id], Field(max_length=MAX_IDS_PER_CALL)]
    scope: DataScope = "user"


class ChannelHistoryRequest(Request):
    """`POST /v1/threads/{thread_id}/history`: what the ancestors of a checkpoint wrote to some channels."""

    ns: CheckpointNamespace = ""
    checkpoint_id: CheckpointKey | None = Field(default=None, description="Null: the newest checkpoint.")
    channels: Annotated[list[ChannelName], Field(max_length=MAX_CHANNELS)]
    scope: DataScope = "user"


class Stored(Response):
    """Numbers of checkpoints or writes that are stored now, and of checkpoints that were dropped."""

    stored: int
    dropped: int = 0


class ThreadCounts(Response):
    """Numbers of threads and checkpoints that an operation affected."""

    threads: int
    checkpoints: int


class Blob(_Value, Response):
    """The value of one channel at one of its versions, in one namespace of one thread."""

    thread_id: str
    ns: str
    channel: str
    version: Version


class Write(_Value, Response):
    """One pending write."""

    task_id: str
    channel: str


class StoredCheckpoint(_Value, Response):
    """One checkpoint without its values, and the writes on top of it in the order of their tasks."""

    thread_id: str
    ns: str
    checkpoint_id: str
    parent_id: str | None = None
    metadata: str
    versions: dict[str, Version]
    writes: list[Write]


class CheckpointPage(Response):
    """Checkpoints, newest first, and each of their values once."""

    checkpoints: list[StoredCheckpoint]
    blobs: list[Blob]
    next_cursor: str | None = None


class ChannelHistory(Response):
    """The writes to one channel since its nearest stored value, oldest first, and that value if there is one."""

    writes: list[Write]
    seed: Blob | None = None


class ChannelHistories(Response):
    """The history of each requested channel."""

    channels: dict[str, ChannelHistory]
