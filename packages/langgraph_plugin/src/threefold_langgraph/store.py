"""`ThreefoldStore`: LangGraph's long-term store, kept by the service. One request for each batch, in both worlds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)
from pydantic_core import to_jsonable_python

from threefold import contract
from threefold.contract.common import DataScope
from threefold.session import fitting_query
from threefold_langgraph.connection import ThreefoldConnection
from threefold_langgraph.identity import current_config


class ThreefoldStore(BaseStore):
    """Items of the run's user with this agent, whatever the namespace says; or, with `scope="agent"`, data that the
    agent holds for all of its users. It raises: what a graph reads or writes is its data, not an aid.
    """

    supports_ttl = True

    def __init__(
        self,
        connection: ThreefoldConnection,
        *,
        scope: DataScope = "user",
        fields: Sequence[str] | Literal[False] = ("$",),
        ttl: TTLConfig | None = None,
    ) -> None:
        self._connection = connection
        self._scope: DataScope = scope
        self._fields = fields
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        sent = [self._request(op) for op in asked]
        client = self._connection.acting(current_config(), self._scope)
        with self._connection.policy.call():
            answer = client.items_batch(sent, scope=self._scope)
        return [_result(op, found) for op, found in zip(asked, answer.results, strict=True)]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        asked = list(ops)
        sent = [self._request(op) for op in asked]
        client = self._connection.acting_async(current_config(), self._scope)
        with self._connection.policy.call():
            answer = await client.items_batch(sent, scope=self._scope)
        return [_result(op, found) for op, found in zip(asked, answer.results, strict=True)]

    def _request(self, op: Op) -> dict[str, Any]:
        """An operation on the wire. LangGraph's rules for labels hold for raw operations, too."""
        validate_op_namespace(op)
        match op:
            case GetOp():
                return {"op": "get", **_place(op), "refresh_ttl": op.refresh_ttl}
            case PutOp(value=None):
                return {"op": "delete", **_place(op)}
            case PutOp():
                return {"op": "put", **_place(op), **self._content(op)}
            case SearchOp():
                return _search(op)
            case ListNamespacesOp():
                return _list_namespaces(op)
            case _:
                raise ValueError(f"there is no operation {type(op).__name__}")

    def _content(self, op: PutOp) -> dict[str, Any]:
        index = self._fields if op.index is None else op.index
        return {
            "value": to_jsonable_python(op.value),
            "index": False if isinstance(index, bool) else list(index),
            "ttl": op.ttl,
        }


def _place(op: GetOp | PutOp) -> dict[str, Any]:
    return {"namespace": list(op.namespace), "key": str(op.key)}


def _search(op: SearchOp) -> dict[str, Any]:
    return {
        "op": "search",
        "prefix": list(op.namespace_prefix),
        "query": fitting_query(op.query or ""),
        "filter": to_jsonable_python(op.filter or {}),
        "limit": op.limit,
        "offset": op.offset,
        "refresh_ttl": op.refresh_ttl,
    }


def _list_namespaces(op: ListNamespacesOp) -> dict[str, Any]:
    conditions = op.match_conditions or ()
    return {
        "op": "list_namespaces",
        "match": [{"match_type": match.match_type, "path": list(match.path)} for match in conditions],
        "max_depth": op.max_depth,
        "limit": op.limit,
        "offset": op.offset,
    }


def _result(op: Op, found: contract.OpResult) -> Result:
    match op:
        case GetOp():
            return None if found.item is None else Item(**_item(found.item))
        case SearchOp():
            return [SearchItem(**_item(item), score=item.score) for item in found.items]
        case ListNamespacesOp():
            return [tuple(labels) for labels in found.namespaces]
        case _:
            return None


def _item(item: contract.Item) -> dict[str, Any]:
    return {
        "namespace": tuple(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }
