"""Items of frameworks' stores. A request is one transaction; its reads see the state before its writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from uuid import UUID

import anyio
import anyio.to_thread
import numpy as np

from threefold.contract import (
    DeleteItem,
    GetItem,
    ItemOp,
    ItemsRequest,
    ItemsResponse,
    ListNamespaces,
    NamespaceMatch,
    OpResult,
    PutItem,
    SearchItems,
)
from threefold.errors import TooLarge, Unavailable
from threefold_server.models.ports import ModelError, Vectors
from threefold_server.rules.access import Holder, Principal, item_key, items_holder
from threefold_server.rules.filters import check_filter, matches
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import items
from threefold_server.storage.memories.items import Page, Put, to_item, to_path
from threefold_server.text.item_fields import Work, item_passages

ANY_LABEL = "*"
ONE_SECONDS, MANY_SECONDS = 3.0, 20.0
"""Time for the embedder with one and with several operations: clients wait 5 s and 30 s."""

NO_VECTORS: Vectors = np.empty((0, 0), np.float32)


async def run_items(service: Service, principal: Principal, request: ItemsRequest) -> ItemsResponse:
    """Run the operations of a request in one transaction."""
    batch = await _prepare(service, items_holder(principal, request.scope), request.ops)
    if batch.puts or batch.deletes:
        results = await service.database.write(batch.holder.owner, batch.run)
    else:
        results = await service.database.read(batch.holder.owner, batch.read)
        if batch.refreshed:
            await service.database.write(batch.holder.owner, batch.renew_ttl)
    if any(put.vectors is None for put in batch.puts.values()):
        service.wake()
    return ItemsResponse(results=results)


MAX_RESULT_CHARS = 64_000_000
"""The most characters of values in one answer. It is twice what one request can write."""


@dataclass
class _Batch:
    """One request, prepared for its transaction."""

    holder: Holder
    ops: Sequence[ItemOp]
    embedder: str
    queries: dict[str, Vectors]
    puts: dict[UUID, Put]
    deletes: list[UUID]
    now: int
    refreshed: set[UUID] = field(default_factory=set[UUID])
    """Items that were read and whose time to live starts again."""
    chars: int = 0
    """Characters of the values that were read."""

    def run(self, connection: Connection) -> list[OpResult]:
        results = self.read(connection)
        if self.refreshed:
            self.renew_ttl(connection)
        items.write(connection, self.holder, self.puts, self.deletes, self.embedder, self.now)
        return results

    def renew_ttl(self, connection: Connection) -> None:
        items.renew_ttl(connection, self.holder.owner, sorted(self.refreshed), self.now)

    def read(self, connection: Connection) -> list[OpResult]:
        self.refreshed.clear()
        self.chars = 0
        return [self._result(connection, op) for op in self.ops]

    def _result(self, connection: Connection, op: ItemOp) -> OpResult:
        match op:
            case GetItem():
                return self._get(connection, op)
            case SearchItems():
                return self._search(connection, op)
            case ListNamespaces():
                return OpResult(namespaces=self._namespaces(connection, op))
            case PutItem() | DeleteItem():
                return OpResult()

    def _get(self, connection: Connection, op: GetItem) -> OpResult:
        key = _key(self.holder, op)
        row = items.by_keys(connection, self.holder, [key], self.now).get(key)
        if row is None:
            return OpResult()
        if op.refresh_ttl and row.ttl is not None:
            self.refreshed.add(key)
        self._count(row)
        return OpResult(item=to_item(row))

    def _search(self, connection: Connection, op: SearchItems) -> OpResult:
        here = (connection, self.holder, to_path(op.prefix), self.now)
        accepts = partial(matches, condition=op.filter) if op.filter else None
        page = Page(accepts, op.offset, op.limit, self._count)
        if op.query:
            found = items.nearest(*here, self.queries[op.query], self.embedder, page)
        else:
            found = [(row, None) for row in items.newest(*here, page)]
        if op.refresh_ttl:
            self.refreshed |= {row.item for row, _ in found if row.ttl is not None}
        return OpResult(items=[to_item(row, score) for row, score in found])

    def _count(self, row: AnyRow) -> None:
        """Raise TooLarge once the items of the whole answer are too large to hold in memory."""
        self.chars += len(row.value)
        if self.chars > MAX_RESULT_CHARS:
            raise TooLarge(
                f"the items of this answer have more than {MAX_RESULT_CHARS:,} characters; ask for fewer items at once",
                {"max_chars": MAX_RESULT_CHARS},
            )

    def _namespaces(self, connection: Connection, op: ListNamespaces) -> list[list[str]]:
        known = items.namespaces(connection, self.holder, to_path(_literal_start(op.match)), self.now)
        found = (labels[: op.max_depth] for labels in known if all(_fits(labels, match) for match in op.match))
        distinct = list(dict.fromkeys(map(tuple, found)))
        return [list(labels) for labels in distinct[op.offset : op.offset + op.limit]]


async def _prepare(service: Service, holder: Holder, ops: Sequence[ItemOp]) -> _Batch:
    """Check the filters and call the embedder, before a connection is taken."""
    searches = [op for op in ops if isinstance(op, SearchItems)]
    for search in searches:
        check_filter(search.filter)
    last = {_key(holder, op): op for op in ops if isinstance(op, PutItem | DeleteItem)}
    puts = {key: op for key, op in last.items() if isinstance(op, PutItem)}
    queries = list(dict.fromkeys(search.query for search in searches if search.query))
    texts = await _texts(service, puts.values())
    seconds = ONE_SECONDS if len(ops) == 1 else MANY_SECONDS
    vectors = await _embed(service, queries, [text for found in texts for text in found], seconds)
    return _Batch(
        holder,
        ops,
        service.embedder.name,
        dict(zip(queries, vectors, strict=False)),
        dict(zip(puts, _puts(puts.values(), texts, vectors[len(queries) :]), strict=True)),
        [key for key, op in last.items() if isinstance(op, DeleteItem)],
        service.clock(),
    )


async def _texts(service: Service, puts: Iterable[PutItem]) -> list[list[str]]:
    """Return the texts of each item that are searched by meaning."""
    indexed = [(put.value, put.index or []) for put in puts]
    if not any(fields for _, fields in indexed):
        return [[] for _ in indexed]
    work = Work()
    return await anyio.to_thread.run_sync(lambda: [item_passages(*put, service.redact, work) for put in indexed])


async def _embed(service: Service, queries: Sequence[str], texts: Sequence[str], seconds: float) -> Vectors:
    """Return the vectors of queries and texts; none if only texts are late, which are embedded later."""
    if not queries and not texts:
        return NO_VECTORS
    try:
        with anyio.fail_after(seconds):
            return await service.embedder.embed([*queries, *texts])
    except (ModelError, TimeoutError) as error:
        if queries:
            raise Unavailable(
                "the embedder did not answer, so this search by meaning is not possible now; try again"
            ) from error
        return NO_VECTORS


def _puts(puts: Iterable[PutItem], texts: Sequence[Sequence[str]], vectors: Vectors) -> Iterator[Put]:
    start = 0
    for op, found in zip(puts, texts, strict=True):
        own = vectors[start : start + len(found)]
        start += len(found)
        embedded_later = len(own) < len(found)
        yield Put(
            to_path(op.namespace), op.key, op.value, op.index or [], op.ttl, len(found), None if embedded_later else own
        )


def _key(holder: Holder, op: GetItem | PutItem | DeleteItem) -> UUID:
    return item_key(holder.pool, to_path(op.namespace), op.key)


def _literal_start(conditions: Sequence[NamespaceMatch]) -> list[str]:
    """Return the longest prefix without `*` that the conditions give; all matching namespaces start with it."""
    prefixes = (match.path for match in conditions if match.match_type == "prefix")
    literal = [list(takewhile(lambda label: label != ANY_LABEL, path)) for path in prefixes]
    return max([[], *literal], key=len)


def _fits(labels: Sequence[str], match: NamespaceMatch) -> bool:
    size = len(match.path)
    part = labels[:size] if match.match_type == "prefix" else labels[max(0, len(labels) - size) :]
    return len(part) == size and all(map(_fits_label, part, match.path))


def _fits_label(label: str, expected: str) -> bool:
    return expected in (label, ANY_LABEL)
