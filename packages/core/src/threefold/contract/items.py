"""Items of a framework's store: JSON values under a key in a namespace, found by key, by fields or by meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from threefold.contract.common import (
    MAX_ID_CHARS,
    MAX_QUERY_CHARS,
    DataScope,
    Query,
    Request,
    Response,
    Timestamp,
    check_exact,
    check_json,
)

MAX_OPS = 1_000
MAX_LABELS = 64
MAX_ITEM_NAMESPACE_BYTES = 2_000
MAX_ITEM_KEY_CHARS = 2_048
MAX_ITEM_VALUE_BYTES = 4_000_000
MAX_ITEM_VALUE_DEPTH = 64
MAX_ITEMS = 10_000
MAX_FIELDS = 100
MAX_TTL_MINUTES = 60 * 24 * 36_500


def check_labels(labels: list[str]) -> list[str]:
    """Refuse a namespace that is too long for an index."""
    if sum(len(label.encode()) + 1 for label in labels) > MAX_ITEM_NAMESPACE_BYTES:
        raise ValueError(f"must not exceed {MAX_ITEM_NAMESPACE_BYTES} bytes in all")
    return labels


def check_value(value: dict[str, Any]) -> dict[str, Any]:
    """Check a value or a filter: JSON within the limits of depth and size."""
    return check_json(value, MAX_ITEM_VALUE_DEPTH, MAX_ITEM_VALUE_BYTES)


Label = Annotated[str, BeforeValidator(check_exact), Field(min_length=1, max_length=MAX_ID_CHARS)]
Labels = Annotated[list[Label], Field(max_length=MAX_LABELS), AfterValidator(check_labels)]
ItemNamespace = Annotated[Labels, Field(min_length=1)]
ItemKey = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_ITEM_KEY_CHARS)]
ItemObject = Annotated[dict[str, Any], AfterValidator(check_value)]
FieldPath = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_QUERY_CHARS)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]
Limit = Annotated[int, Field(ge=0, le=MAX_ITEMS)]
RefreshTtl = Annotated[bool, Field(description="Restart the time to live of the items that are read (default true).")]


class GetItem(Request):
    """Return one item."""

    op: Literal["get"]
    namespace: ItemNamespace
    key: ItemKey
    refresh_ttl: RefreshTtl = True


class SearchItems(Request):
    """Return the items below a prefix: nearest to the query first, or without a query newest first."""

    op: Literal["search"]
    prefix: Labels = Field(
        description="Leading labels of the namespace, compared literally; empty: every item of the owner."
    )
    query: Query = ""
    filter: ItemObject = Field(
        default_factory=dict,
        description="Field to value, or to operators ($eq, $ne, $gt, $gte, $lt, $lte). A missing field never matches.",
    )
    limit: Limit = 10
    offset: Offset = 0
    refresh_ttl: RefreshTtl = True


class PutItem(Request):
    """Write one item; an item with the same key is replaced."""

    op: Literal["put"]
    namespace: ItemNamespace
    key: ItemKey
    value: ItemObject
    index: Literal[False] | Annotated[list[FieldPath], Field(max_length=MAX_FIELDS)] = Field(
        default_factory=lambda: ["$"],
        description="Paths whose texts are found by meaning (default `$`, the whole value); false: none.",
    )
    ttl: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TTL_MINUTES,
        allow_inf_nan=False,
        description="Minutes until the item expires; a read restarts them. Null: never (default).",
    )


class DeleteItem(Request):
    """Delete one item; deleting a missing item has no effect."""

    op: Literal["delete"]
    namespace: ItemNamespace
    key: ItemKey


class NamespaceMatch(Request):
    """A condition on the first or last labels of a namespace; `*` matches exactly one label."""

    match_type: Literal["prefix", "suffix"]
    path: Labels


class ListNamespaces(Request):
    """Return the namespaces that contain items, sorted."""

    op: Literal["list_namespaces"]
    match: Annotated[list[NamespaceMatch], Field(max_length=MAX_LABELS)] = Field(default_factory=list[NamespaceMatch])
    max_depth: int | None = Field(default=None, ge=1, description="Cut longer namespaces to this number of labels.")
    limit: Limit = 100
    offset: Offset = 0


ItemOp = Annotated[GetItem | SearchItems | PutItem | DeleteItem | ListNamespaces, Field(discriminator="op")]


class ItemsRequest(Request):
    """`POST /v1/items/batch`: all operations or none. Reads see the state before the writes of the same request."""

    scope: DataScope = Field(
        default="user", description="`user`: the caller's, with this agent; `agent`: shared by all users of the agent."
    )
    ops: Annotated[list[ItemOp], Field(max_length=MAX_OPS)]


class Item(Response):
    """One item."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: Timestamp
    updated_at: Timestamp
    score: float | None = Field(default=None, description="Cosine similarity to the query, -1 to 1.")


class OpResult(Response):
    """The result of one operation; empty for writes."""

    item: Item | None = Field(default=None, description="Result of `get`; null if there is no such item.")
    items: list[Item] = Field(default_factory=list[Item], description="Results of `search`.")
    namespaces: list[list[str]] = Field(default_factory=list[list[str]], description="Results of `list_namespaces`.")


class ItemsResponse(Response):
    """One result per operation, in the order of the request."""

    results: list[OpResult]
