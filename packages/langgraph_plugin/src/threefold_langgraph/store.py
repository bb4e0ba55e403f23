"""`ThreefoldStore`: the long-term store of LangGraph in the service, with one request per batch."""

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
    """Store whose items belong to the user and agent of the run, whatever the namespace says.

    Unlike memory, the store raises every error, because items are data of the graph.

    Args:
        connection: The connection of the process.
        scope: `user` (default), or `agent` for items that all users of the agent share.
        fields: Paths whose texts are found by meaning (default `$`, the whole value); false for none. The `index` of a
            put takes precedence.
        ttl: The time to live of LangGraph, in minutes (default: items do not expire).
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
        """Run operations in one request, all or none.

        Args:
            ops: The operations of LangGraph. Reads see the state before the writes of the same batch.

        Returns:
            One result per operation, in their order.

        Raises:
            InvalidRequest: An operation is wrong, or the run has no user and the scope is `user`.
            ThreefoldError: The service refused the call or did not answer.
        """
        given = list(ops)
        sent = [self._request(op) for op in given]
        client = self._connection.acting(current_config(), self._scope)
        with self._connection.policy.call():
            answer = client.items_batch(sent, scope=self._scope)
        return [_result(op, found) for op, found in zip(given, answer.results, strict=True)]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations in one request, all or none.

        Args:
            ops: The operations of LangGraph. Reads see the state before the writes of the same batch.

        Returns:
            One result per operation, in their order.

        Raises:
            InvalidRequest: An operation is wrong, or the run has no user and the scope is `user`.
            ThreefoldError: The service refused the call or did not answer.
        """
        given = list(ops)
        sent = [self._request(op) for op in given]
        client = self._connection.acting_async(current_config(), self._scope)
        with self._connection.policy.call():
            answer = await client.items_batch(sent, scope=self._scope)
        return [_result(op, found) for op, found in zip(given, answer.results, strict=True)]

    def _request(self, op: Op) -> dict[str, Any]:
        """Return an operation in the form of the contract. LangGraph's rules for labels apply to raw operations too."""
        validate_op_namespace(op)
        match op:
            case GetOp():
                return {"op": "get", **_address(op), "refresh_ttl": op.refresh_ttl}
            case PutOp(value=None):
                return {"op": "delete", **_address(op)}
            case PutOp():
                return {"op": "put", **_address(op), **self._content(op)}
            case SearchOp():
                return _search(op)
            case ListNamespacesOp():
                return _list_namespaces(op)
            case _:
                raise ValueError(f"unknown operation {type(op).__name__}")

    def _content(self, op: PutOp) -> dict[str, Any]:
        index = self._fields if op.index is None else op.index
        return {
            "value": to_jsonable_python(op.value),
            "index": False if isinstance(index, bool) else list(index),
            "ttl": op.ttl,
        }


def _address(op: GetOp | PutOp) -> dict[str, Any]:
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
