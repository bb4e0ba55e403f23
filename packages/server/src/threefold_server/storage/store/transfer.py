"""The copy of a whole store into an empty one, between any two databases, and the comparison of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, RowMapping, Table, delete, func, insert, select

from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import metadata, store

ROWS_AT_ONCE = 500

Progress = Callable[[int, int], None]
"""A function that is called with the number of rows just copied and the number of all rows."""


class TransferError(RuntimeError):
    """The target is not empty, or differs from the source after the copy. The target is unchanged."""


class Content(NamedTuple):
    """The number of rows of a table, and a hash of them that does not depend on their order."""

    table: str
    rows: int
    hash: str


def copy_store(source: Database, target: Database, progress: Progress) -> list[Content]:
    """Copy a snapshot of the source in one transaction of the target, compare the two, and return the contents."""

    def into(there: Connection) -> list[Content]:
        _check_empty(there)
        there.execute(delete(store))  # the embedder of a service that only looked
        return source.snapshot_sync("system", partial(_copy_all, there=there, progress=progress))

    return target.write_sync("system", into)


def contents(connection: Connection) -> list[Content]:
    """Return the contents of a store, table by table."""
    return [_content(table, _batches(connection, table)) for table in metadata.sorted_tables]


def _check_empty(connection: Connection) -> None:
    for table in metadata.sorted_tables:
        if table is not store and connection.execute(select(table).limit(1)).first() is not None:
            raise TransferError(f"the target holds memory already (in {table.name}); name an empty store")


def _copy_all(here: Connection, there: Connection, progress: Progress) -> list[Content]:
    tables = metadata.sorted_tables  # referenced tables come first
    total = sum(here.execute(select(func.count()).select_from(table)).scalar_one() for table in tables)

    def moved(table: Table) -> Iterator[Sequence[RowMapping]]:
        for batch in _batches(here, table):
            there.execute(insert(table), [dict(row) for row in batch])
            progress(len(batch), total)
            yield batch

    sent = [_content(table, moved(table)) for table in tables]
    if sent != (found := contents(there)):
        differing = [one.table for one, other in zip(sent, found, strict=True) if one != other]
        raise TransferError(f"the copy differs from its source in {', '.join(differing)}; nothing was kept")
    return sent


def _batches(connection: Connection, table: Table) -> Iterator[Sequence[RowMapping]]:
    return connection.execute(select(table).execution_options(yield_per=ROWS_AT_ONCE)).mappings().partitions()


def _content(table: Table, batches: Iterable[Sequence[RowMapping]]) -> Content:
    """Return the content of a table. Hashes are added, because databases may sort texts differently."""
    rows = total = 0
    for batch in batches:
        rows += len(batch)
        total += sum(int.from_bytes(hashlib.sha256(_row(row)).digest()) for row in batch)
    return Content(table.name, rows, f"{total % 2**256:064x}")


def _row(row: RowMapping) -> bytes:
    return repr([_plain(value) for value in row.values()]).encode()


def _plain(value: Any) -> Any:
    """Return a value in a form that is the same for both databases."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, np.ndarray):
        return value.astype("<f4").tobytes()
    return value
