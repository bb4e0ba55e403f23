"""Items of a framework's store: JSON values under a key in a namespace, found by their place, fields or meaning."""

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
MAX_NAMESPACE_BYTES = 2_000
MAX_KEY_CHARS = 2_048
MAX_VALUE_BYTES = 4_000_000
MAX_VALUE_DEPTH = 64
MAX_ITEMS = 10_000
MAX_FIELDS = 100
MAX_TTL_MINUTES = 60 * 24 * 36_500


def check_labels(labels: list[str]) -> list[str]:
    """Refuse a namespace that is too long for an index."""
    if sum(len(label.encode()) + 1 for label in labels) > MAX_NAMESPACE_BYTES:
        raise ValueError(f"must not exceed {MAX_NAMESPACE_BYTES} bytes in all")
    return labels


def check_value(value: dict[str, Any]) -> dict[str, Any]:
    """The rule for values and filters."""
    return check_json(value, MAX_VALUE_DEPTH, MAX_VALUE_BYTES)


Label = Annotated[str, BeforeValidator(check_exact), Field(min_length=1, max_length=MAX_ID_CHARS)]
Labels = Annotated[list[Label], Field(max_length=MAX_LABELS), AfterValidator(check_labels)]
Namespace = Annotated[Labels, Field(min_length=1)]
ItemKey = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_KEY_CHARS)]
JsonObject = Annotated[dict[str, Any], AfterValidator(check_value)]
FieldPath = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_QUERY_CHARS)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]
Limit = Annotated[int, Field(ge=0, le=MAX_ITEMS)]
RefreshTtl = Annotated[bool, Field(description="Reading an item starts its time to live anew.")]


class GetItem(Request):
    """One item."""

    op: Literal["get"]
    namespace: Namespace
    key: ItemKey
    refresh_ttl: RefreshTtl = True


class SearchItems(Request):
    """The items below a prefix: those nearest to a query, or else the most recently written first."""

    op: Literal["search"]
    prefix: Labels = Field(description="Whole labels, taken literally; none: everything of the owner.")
    query: Query = ""
    filter: JsonObject = Field(
        default_factory=dict,
        description="Field to value, or to operators: $eq, $ne, $gt, $gte, $lt, $lte. A missing field never matches.",
    )
    limit: Limit = 10
    offset: Offset = 0
    refresh_ttl: RefreshTtl = True


class PutItem(Request):
    """Write one item, whatever was there."""

    op: Literal["put"]
    namespace: Namespace
    key: ItemKey
    value: JsonObject
    index: Literal[False] | Annotated[list[FieldPath], Field(max_length=MAX_FIELDS)] = Field(
        default_factory=lambda: ["$"],
        description="What is found by meaning: paths into the value, `$` for all of it; false: nothing.",
    )
    ttl: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TTL_MINUTES,
        allow_inf_nan=False,
        description="Minutes after which the item is gone, unless it is read; null: never.",
    )


class DeleteItem(Request):
    """Delete one item; nothing happens where there is none."""

    op: Literal["delete"]
    namespace: Namespace
    key: ItemKey


class NamespaceMatch(Request):
    """How a namespace begins or ends; `*` stands for exactly one label."""

    match_type: Literal["prefix", "suffix"]
    path: Labels


class ListNamespaces(Request):
    """The namespaces that hold items, in order."""

    op: Literal["list_namespaces"]
    match: Annotated[list[NamespaceMatch], Field(max_length=MAX_LABELS)] = Field(default_factory=list[NamespaceMatch])
    max_depth: int | None = Field(default=None, ge=1, description="Longer ones are cut to so many labels.")
    limit: Limit = 100
    offset: Offset = 0


ItemOp = Annotated[GetItem | SearchItems | PutItem | DeleteItem | ListNamespaces, Field(discriminator="op")]


class ItemsRequest(Request):
    """`POST /v1/items/batch`: all or nothing; reads see what was there before the writes of the same request."""

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
    """What one operation found; empty for writes."""

    item: Item | None = Field(default=None, description="Of `get`; null where there is none.")
    items: list[Item] = Field(default_factory=list[Item], description="Of `search`.")
    namespaces: list[list[str]] = Field(default_factory=list[list[str]], description="Of `list_namespaces`.")


class ItemsResponse(Response):
    """One result per operation, in their order."""

    results: list[OpResult]
