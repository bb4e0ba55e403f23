"""Threads of a graph: checkpoints, values of their channels, pending writes. Values are bytes that nobody decodes."""

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

MAX_VALUE_BYTES = 16 * 2**20
MAX_KEY_CHARS = 128
MAX_NAMESPACE_CHARS = 4_096
MAX_CHANNELS = 10_000
MAX_KEPT = 1_000


def decode_bytes(value: object) -> object:
    """The bytes of a base64 text; bytes are left as they are."""
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
    Field(max_length=MAX_VALUE_BYTES),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Base64 in JSON: a third longer on the wire than the bytes, but one form of request, error and description for all."""
Key = Annotated[str, BeforeValidator(check_exact), Field(min_length=1, max_length=MAX_KEY_CHARS)]
Namespace = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_NAMESPACE_CHARS)]
Name = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_NAMESPACE_CHARS)]
JsonObject = Annotated[str, BeforeValidator(check_exact), AfterValidator(check_json_object)]
Version = str | int | float
"""What a graph counts a channel's changes with."""


class _Value(BaseModel):
    """Bytes, and the name of the form that they are in."""

    type: Key
    data: Binary


class BlobIn(_Value, Request):
    """The value of one channel at one of its versions."""

    channel: Name
    version: Version


class WriteIn(_Value, Request):
    """One write of a task. At a negative `idx` the last one counts, else the first."""

    idx: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    channel: Name


class PutCheckpointRequest(_Value, Request):
    """`POST /v1/threads/{thread_id}/checkpoints`: store one checkpoint, without its values, and the new values."""

    ns: Namespace = ""
    checkpoint_id: Key
    parent_id: Key | None = None
    metadata: JsonObject = Field(default="{}", description="The JSON text of an object, returned byte for byte.")
    versions: Annotated[dict[Name, Version], Field(max_length=MAX_CHANNELS)] = Field(
        default_factory=dict[str, Version], description="The version of every channel in this checkpoint."
    )
    blobs: Annotated[list[BlobIn], Field(max_length=MAX_CHANNELS)] = Field(default_factory=list[BlobIn])
    scope: DataScope = "user"
    keep_last: int | None = Field(
        default=None, ge=1, le=MAX_KEPT, description="Drop all but so many of the newest checkpoints of each namespace."
    )
    max_age: float | None = Field(
        default=None, gt=0, lt=1e10, description="Drop superseded checkpoints that are older, in seconds."
    )


class PutWritesRequest(Request):
    """`POST /v1/threads/{thread_id}/writes`: the writes of one task, which may come before their checkpoint."""

    ns: Namespace = ""
    checkpoint_id: Key
    task_id: Key
    task_path: Name = ""
    writes: Annotated[list[WriteIn], Field(max_length=MAX_CHANNELS)]
    scope: DataScope = "user"


class QueryCheckpointsRequest(Request):
    """`POST /v1/threads/query`: checkpoints with their values and writes, newest first."""

    thread_id: Id | None = Field(default=None, description="Every thread otherwise.")
    ns: Namespace | None = Field(default=None, description="Every namespace otherwise; the root's is empty.")
    checkpoint_id: Key | None = None
    before: Key | None = Field(default=None, description="Only checkpoints whose id is less.")
    filter: dict[str, JsonValue] = Field(
        default_factory=dict[str, JsonValue], description="Entries that their metadata must have."
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

    ns: Namespace = ""
    checkpoint_id: Key | None = Field(default=None, description="The newest otherwise.")
    channels: Annotated[list[Name], Field(max_length=MAX_CHANNELS)]
    scope: DataScope = "user"


class Stored(Response):
    """How many checkpoints, or writes, of a request are stored now, and how many checkpoints were dropped."""

    stored: int
    dropped: int = 0


class ThreadCounts(Response):
    """How many threads and checkpoints an operation was about."""

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
    """One checkpoint without its values, and the writes that were made on top of it, in the order of their tasks."""

    thread_id: str
    ns: str
    checkpoint_id: str
    parent_id: str | None = None
    metadata: str
    versions: dict[str, Version]
    writes: list[Write]


class CheckpointPage(Response):
    """Checkpoints, newest first, and each value that they need once."""

    checkpoints: list[StoredCheckpoint]
    blobs: list[Blob]
    next_cursor: str | None = None


class ChannelHistory(Response):
    """The writes to one channel since its nearest stored value, oldest first, and that value where there is one."""

    writes: list[Write]
    seed: Blob | None = None


class ChannelHistories(Response):
    """The history of every channel that was asked for."""

    channels: dict[str, ChannelHistory]
