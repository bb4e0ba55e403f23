"""Search indexes of owners in memory, so that a recall computes on arrays instead of reading rows.

A process keeps an `OwnerIndex` (`owner_arrays.py`) for the owners that it served last, up to a number of bytes.

- Each transaction that changes rows of a search raises `owners.index_rev` (`index.raise_revision`) and stores the new
  revision in each passage that it adds or changes. It locks the owner, so revisions become visible in their order.
- Each recall reads the owner's revision. If it equals that of the arrays, no other row of the index is read.
- If it has changed, passages with a later revision are read and replace their earlier versions. If `index_cut` has
  changed, passages were removed: the keys of the remaining ones are read. If `facts_rev` has changed, the sources of
  facts are read.
- If `erase_epoch` has changed, there was a forget: the arrays are dropped and loaded again.
- The revision is read before the rows. So the arrays may be newer than their revision, never older; a row that is read
  twice replaces itself.
- The memories of an answer are always read from the database, within the scope of the request. A forgotten memory is
  not there, whatever the arrays contain. The arrays, too, are loaded within that scope, under row-level security.
- An owner whose index does not fit, or is being loaded, is searched in the database (`search_queries.py`), with the
  same ranking. An index that takes longer to load than a recall may take is loaded in the background.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, bindparam, func, select

from threefold_server.storage.engine.prepared import Pending, Prepared
from threefold_server.storage.engine.tables import owners, passages
from threefold_server.storage.memories import facts
from threefold_server.storage.memories.owner_arrays import Citation, OwnerIndex, PassageRow
from threefold_server.telemetry import Metrics

AT_ONCE = 2_000
"""Most passages that a recall loads itself, in about 50 ms. A larger index is loaded in the background."""
CHANGES_AT_ONCE = 40
"""Most changes, of about 50 passages each, that a recall applies itself for an owner with more than `AT_ONCE`."""
PASSAGE_BYTES = 1_000
"""Bytes that a passage takes at least. An owner with too many passages is not loaded at all."""
ENTRIES = 10_000
"""Most owners in the cache, including those whose index does not fit."""


class Revision(NamedTuple):
    """The columns of an owner's row that say whether an index is current."""

    rev: int = 0
    cut: int = 0
    epoch: int = 0
    facts: int = 0
    born: int = 0
    """When the owner's row was created: a row that was deleted and created again counts from 0."""


def send_revision(connection: Connection, owner: UUID) -> Pending[Revision]:
    """Send for the revision of an owner's index. Send it before any statement that reads the index."""
    rows = _REVISION.send(connection, owner=owner)
    return lambda: next(iter(rows()), Revision())


@dataclass
class _Entry:
    """The index of one owner in the cache. The lock is held while the arrays are loaded."""

    lock: Lock = field(default_factory=Lock)
    index: OwnerIndex | None = None
    """None: not loaded yet, or too large at `revision`."""
    revision: Revision = field(default_factory=Revision)
    nbytes: int = 0
    is_too_large: bool = False

    def can_follow(self, embedder: str, to: Revision) -> bool:
        """Return whether the arrays can be updated to a revision."""
        known = self.revision
        return (
            self.index is not None
            and self.index.embedder == embedder
            and (known.epoch, known.born) == (to.epoch, to.born)
            and known.rev <= to.rev
        )

    def takes_long(self, embedder: str, to: Revision) -> bool:
        """Return whether the update may take long if the owner has many passages."""
        return not self.can_follow(embedder, to) or to.rev - self.revision.rev > CHANGES_AT_ONCE


class IndexCache:
    """The indexes of the owners that a process served last, for any thread."""

    def __init__(self, most_bytes: int, metrics: Metrics) -> None:
        """Keep at most `most_bytes` bytes. With 0, every search runs in the database."""
        self._most_bytes = most_bytes
        self._metrics = metrics
        self._entries: OrderedDict[UUID, _Entry] = OrderedDict()
        self._lock = Lock()
        self._nbytes = 0
        self.waiting: set[UUID] = set()
        """Owners who are searched in the database until `load` is called for them."""

    @property
    def is_on(self) -> bool:
        """Whether indexes are kept."""
        return self._most_bytes > 0

    @property
    def most_passages(self) -> int:
        """Most passages of an owner whose index is loaded."""
        return self._most_bytes // PASSAGE_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes in the cache."""
        return self._nbytes

    def get(self, connection: Connection, owner: UUID, embedder: str, revision: Revision) -> OwnerIndex | None:
        """Return an owner's index at a revision or later; None if the search must run in the database."""
        entry = self._entry(owner)
        index = entry.index
        if index is not None and entry.revision == revision and index.embedder == embedder:
            self._count("hit")
            return index
        if entry.is_too_large and entry.revision.epoch == revision.epoch and entry.revision.cut == revision.cut:
            self._count("too_large")
            return None
        if not entry.lock.acquire(blocking=False):
            self._count("busy")
            return None
        try:
            if entry.takes_long(embedder, revision) and _count(connection, owner) > AT_ONCE:
                self._count("later")
                self.waiting.add(owner)
                return None
            return self._move(connection, owner, embedder, entry, revision)
        finally:
            entry.lock.release()

    def load(self, connection: Connection, owner: UUID, embedder: str) -> None:
        """Load or update the index of an owner, however long it takes."""
        entry = self._entry(owner)
        with entry.lock:
            self._move(connection, owner, embedder, entry, send_revision(connection, owner)())

    def _move(
        self, connection: Connection, owner: UUID, embedder: str, entry: _Entry, to: Revision
    ) -> OwnerIndex | None:
        """Update an entry to a revision. Return its index, or None if it is too large."""
        index = entry.index
        if index is None or not entry.can_follow(embedder, to):
            self._drop(entry)  # first, so that no forgotten row is kept beside the new index
            fits = _count(connection, owner) <= self.most_passages
            index = _loaded(connection, owner, embedder) if fits else None
            self._count("load" if fits else "too_large")
        else:
            index = _updated(connection, owner, index, entry.revision, to)
            self._count("update")
        self._keep(owner, entry, index, to)
        return index

    def _entry(self, owner: UUID) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(owner, _Entry())
            self._entries.move_to_end(owner)
            return entry

    def _keep(self, owner: UUID, entry: _Entry, index: OwnerIndex | None, revision: Revision) -> None:
        with self._lock:
            nbytes = 0 if index is None else index.nbytes
            entry.is_too_large = index is None or nbytes > self._most_bytes
            entry.revision = revision
            if self._entries.get(owner) is entry:
                self._nbytes += (0 if entry.is_too_large else nbytes) - entry.nbytes
                entry.index, entry.nbytes = (None, 0) if entry.is_too_large else (index, nbytes)
            self._evict()
            self._metrics.index_bytes.set(self._nbytes)

    def _drop(self, entry: _Entry) -> None:
        with self._lock:
            self._nbytes -= entry.nbytes
            entry.index, entry.nbytes = None, 0

    def _evict(self) -> None:
        """Drop the least recently used indexes until the others fit."""
        while self._nbytes > self._most_bytes or len(self._entries) > ENTRIES:
            _, entry = self._entries.popitem(last=False)
            self._nbytes -= entry.nbytes
            entry.index, entry.nbytes = None, 0
            self._metrics.index_evictions.inc()

    def _count(self, outcome: str) -> None:
        self._metrics.index_lookups.labels(outcome).inc()


def _loaded(connection: Connection, owner: UUID, embedder: str) -> OwnerIndex:
    rows = _ROWS.send(connection, owner=owner, after=-1)
    citations = facts.send_citations(connection, owner)
    return OwnerIndex.empty(embedder).with_rows(rows()).with_citations(_citations(citations()))


def _updated(connection: Connection, owner: UUID, index: OwnerIndex, known: Revision, to: Revision) -> OwnerIndex:
    rows = _ROWS.send(connection, owner=owner, after=known.rev)
    keys = _KEYS.send(connection, owner=owner) if known.cut != to.cut else None
    cites = known.cut != to.cut or known.facts != to.facts
    citations = facts.send_citations(connection, owner) if cites else None
    index = index.with_rows(rows())
    index = index if keys is None else index.with_only(keys())
    return index if citations is None else index.with_citations(_citations(citations()))


def _count(connection: Connection, owner: UUID) -> int:
    return int(_COUNT.all(connection, owner=owner)[0][0])


def _citations(rows: Sequence[Any]) -> list[Citation]:
    return [Citation(*row) for row in rows]


_REVISION = Prepared(
    select(owners.c.index_rev, owners.c.index_cut, owners.c.erase_epoch, owners.c.facts_rev, owners.c.created_at).where(
        owners.c.owner == bindparam("owner")
    ),
    Revision._make,
)
_OWN = passages.c.pool == bindparam("owner")
_ROWS = Prepared(
    select(*(passages.c[name] for name in PassageRow._fields)).where(_OWN, passages.c.rev > bindparam("after")),
    PassageRow._make,
)
_KEYS = Prepared(select(passages.c.source, passages.c.seq, passages.c.part).where(_OWN), tuple)
_COUNT = Prepared(select(func.count()).select_from(passages).where(_OWN))
