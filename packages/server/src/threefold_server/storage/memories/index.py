"""The write side of the search index: passages, postings and vectors. Queries are in `search_queries.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, insert, select, update

from threefold_server.rules.access import SHARED_POOL
from threefold_server.rules.trust import trust_of
from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.tables import facts, items, owners, passages, postings, turns
from threefold_server.storage.engine.types import AnyRow
from threefold_server.text.indexed import Passage

OF_FACT, OF_ITEM = 0, -1
"""The `seq` of passages of facts and of items. Passages of turns have the number of the turn."""

SLICE_TOKENS = 20_000
"""Most tokens of turns whose words are stored in one transaction, because on SQLite all writers wait for it."""

MAX_TF = 32_767  # the largest smallint

_WITHOUT_PAYLOAD = [column for column in turns.c if column.name != "payload"]
_KEY = (passages.c.pool, passages.c.source, passages.c.seq, passages.c.part)

# Prepared, because a transaction on SQLite keeps all writers waiting: with plain Core it took four times as long.
_ADD_PASSAGE = Prepared(
    insert(passages).values(
        {column.name: bindparam(column.name) for column in passages.c if column.name not in ("embedder", "vector")}
    )
)
_ADD_POSTING = Prepared(insert(postings).values({column.name: bindparam(column.name) for column in postings.c}))
_SET_VECTOR = Prepared(
    update(passages)
    .where(*(column == bindparam(f"key_{column.name}") for column in _KEY))
    .values(embedder=bindparam("stamp"), vector=bindparam("values"), rev=bindparam("raised"))
)


def next_turns(
    connection: Connection, owner: UUID, session: UUID, after: int, limit: int
) -> tuple[Sequence[AnyRow], bool]:
    """Return the turns of a session after a watermark, oldest first, and whether there may be more.

    These are at most `limit` turns with at most `SLICE_TOKENS` tokens together, but at least one turn.
    """
    following = and_(turns.c.owner == owner, turns.c.session == session, turns.c.seq > after)
    sizes = select(turns.c.seq, turns.c.tokens).where(following).order_by(turns.c.seq).limit(limit)
    chosen: list[int] = []
    used = 0
    found = connection.execute(sizes).all()
    for seq, tokens in found:
        used += tokens
        if chosen and used > SLICE_TOKENS:
            break
        chosen.append(seq)
    if not chosen:
        return [], False
    statement = select(*_WITHOUT_PAYLOAD).where(following, turns.c.seq <= chosen[-1]).order_by(turns.c.seq)
    return connection.execute(statement).all(), len(chosen) < len(found) or len(chosen) == limit


def raise_revision(connection: Connection, owner: UUID, *, cut: bool = False) -> int:
    """Raise the revision of an owner's index, because rows that its search reads change; return the new revision.

    A process that keeps the index in memory compares the revision at each recall (`owner_index.py`). The owner is
    locked until the transaction ends, so that changes become visible in the order of their revisions. A transaction
    that holds a weaker lock on the owner must not call this: two of them would wait for each other.

    Args:
        cut: Whether passages are removed, not only added or changed.
    """
    following = owners.c.index_rev + 1
    values = {"index_rev": following, **({"index_cut": following} if cut else {})}
    statement = update(owners).where(owners.c.owner == owner).values(values).returning(owners.c.index_rev)
    return connection.execute(statement).scalar_one_or_none() or 0


def add_turns(connection: Connection, agent: str, entries: Sequence[tuple[AnyRow, Sequence[Passage]]]) -> None:
    """Add turns of one agent's session to the index. Search finds them by words; their vectors are pending."""
    added = [
        (
            {
                "pool": turn.owner,
                "source": turn.session,
                "seq": turn.seq,
                "owner": turn.owner,
                "agent": agent,
                "session": turn.session,
                "visibility": turn.visibility,
                "event_at": turn.event_at,
                "trust": trust_of(turn),
                "expires_at": None,
            },
            found,
        )
        for turn, found in entries
    ]
    if entries:
        _add(connection, added, raise_revision(connection, entries[0][0].owner))


def add_fact(connection: Connection, fact: AnyRow, found: Sequence[Passage]) -> None:
    """Add a fact to the index, in its owner's pool or the shared one. Its vector is pending."""
    columns = {
        "pool": SHARED_POOL if fact.shared else fact.owner,
        "source": fact.fact,
        "seq": OF_FACT,
        "owner": fact.owner,
        "agent": fact.agent,
        "session": fact.session,
        "visibility": fact.visibility,
        **_dates(fact),
        "trust": fact.trust,
    }
    _add(connection, [(columns, found)], 0 if fact.shared else raise_revision(connection, fact.owner))


def add_items(
    connection: Connection, entries: Iterable[tuple[Mapping[str, Any], int, NDArray[np.float32] | None]], embedder: str
) -> None:
    """Add the texts of items to the index, in a pool that no recall searches. They have vectors and no words.

    Args:
        entries: The columns of each item by name, the number of its texts, and their vectors, or None if the vectors
            are pending.
    """
    rows = [
        {
            "pool": item["pool"],
            "source": item["item"],
            "seq": OF_ITEM,
            "part": part,
            "owner": item["owner"],
            "agent": item["agent"],
            "visibility": 0,
            "length": 0,
            "event_at": item["updated_at"],
            "trust": 0.0,
            "embedder": None if vectors is None else embedder,
            "vector": None if vectors is None else vectors[part],
        }
        for item, texts, vectors in entries
        for part in range(texts)
    ]
    if rows:
        connection.execute(insert(passages), rows)


def update_fact(connection: Connection, fact: AnyRow) -> None:
    """Update the dates of an indexed fact."""
    own = (passages.c.owner == fact.owner, passages.c.source == fact.fact)
    rev = raise_revision(connection, fact.owner)
    connection.execute(update(passages).where(*own).values({**_dates(fact), "rev": rev}))


def _dates(fact: AnyRow) -> dict[str, Any]:
    """Return the dates of a fact's passages. A search as of a time before `valid_from` must not find the fact."""
    return {"event_at": fact.valid_from, "expires_at": None if fact.pinned else fact.expires_at}


def remove(
    connection: Connection,
    owner: UUID,
    sources: Sequence[UUID] | Select[tuple[UUID]],
    seqs: Sequence[int] | None = None,
) -> int:
    """Remove sessions or facts from the index, or only turns of a session; return the number of removed passages."""
    chosen: list[ColumnElement[bool]] = [passages.c.owner == owner, passages.c.source.in_(sources)]
    # Postings are ordered by pool: with the pools known first, the shared pool is read only if it has such passages.
    pools = list(connection.execute(select(passages.c.pool).where(*chosen).distinct()).scalars())
    within = [postings.c.pool.in_(pools), postings.c.owner == owner, postings.c.source.in_(sources)]
    if seqs is not None:
        chosen.append(passages.c.seq.in_(seqs))
        within.append(postings.c.seq.in_(seqs))
    if owner in pools:
        raise_revision(connection, owner, cut=True)
    connection.execute(delete(postings).where(*within))
    return connection.execute(delete(passages).where(*chosen)).rowcount


def pending(connection: Connection, owner: UUID, subject: UUID, limit: int) -> Sequence[AnyRow]:
    """Return keys of passages without a vector.

    Args:
        subject: A session or, for all facts and items, the owner.
    """
    of_subject = passages.c.seq <= OF_FACT if subject == owner else passages.c.source == subject
    statement = select(*_KEY).where(passages.c.owner == owner, passages.c.embedder.is_(None), of_subject)
    ordered = statement.order_by(passages.c.source, passages.c.seq, passages.c.part)
    return connection.execute(ordered.limit(limit)).all()


def sources_of(connection: Connection, owner: UUID, rows: Sequence[AnyRow]) -> dict[tuple[UUID, int], AnyRow]:
    """Return the turns, facts and items of passages, by (source, seq).

    This is not a join: without statistics, Postgres compared all turns with all passages, which took 130 ms for a
    session of 1,000 turns.
    """
    owned = {kind: {row.source for row in rows if row.seq == kind} for kind in (OF_FACT, OF_ITEM)}
    fact_rows = select(facts).where(facts.c.owner == owner, facts.c.fact.in_(owned[OF_FACT]))
    item_rows = select(items).where(items.c.owner == owner, items.c.item.in_(owned[OF_ITEM]))
    turn_rows = select(*_WITHOUT_PAYLOAD).where(
        turns.c.owner == owner,
        turns.c.session.in_({row.source for row in rows if row.seq > OF_FACT}),
        turns.c.seq.in_({row.seq for row in rows if row.seq > OF_FACT}),
    )
    found: dict[tuple[UUID, int], AnyRow] = {(row.fact, OF_FACT): row for row in connection.execute(fact_rows)}
    found |= {(row.item, OF_ITEM): row for row in connection.execute(item_rows)}
    return found | {(row.session, row.seq): row for row in connection.execute(turn_rows)}


def set_vectors(
    connection: Connection, owner: UUID, embedder: str, rows: Sequence[AnyRow], vectors: NDArray[np.float32]
) -> None:
    """Store the vectors of an owner's pending passages, with the name of their embedder."""
    rev = raise_revision(connection, owner)
    _SET_VECTOR.run_batch(
        connection,
        [
            _key_of(row) | {"stamp": embedder, "values": vector, "raised": rev}
            for row, vector in zip(rows, vectors, strict=True)
        ],
    )


def discard(connection: Connection, owner: UUID, rows: Sequence[AnyRow]) -> None:
    """Remove single passages of an owner. An earlier release may have cut a turn into more parts than this one does."""
    raise_revision(connection, owner, cut=True)
    for table in (postings, passages):
        same_key = (table.c[column.name] == bindparam(f"key_{column.name}") for column in _KEY)
        connection.execute(delete(table).where(*same_key), [_key_of(row) for row in rows])


def _key_of(row: AnyRow) -> dict[str, Any]:
    return {f"key_{column.name}": getattr(row, column.name) for column in _KEY}


def _add(connection: Connection, entries: Sequence[tuple[dict[str, Any], Sequence[Passage]]], rev: int) -> None:
    parts = [(columns, passage) for columns, found in entries for passage in found]
    if not parts:
        return
    _ADD_PASSAGE.run_batch(
        connection,
        [
            columns
            | {"part": passage.part, "speaker": passage.speaker, "length": passage.length}
            | {"rev": rev, "terms": _terms(passage)}
            for columns, passage in parts
        ],
    )
    rows = [
        {key: columns[key] for key in ("pool", "source", "seq", "owner")}
        | {"part": passage.part, "term": term, "tf": min(tf, MAX_TF)}
        for columns, passage in parts
        for term, tf in passage.tf.items()
    ]
    _ADD_POSTING.run_batch(connection, rows)


def _terms(passage: Passage) -> str:
    """Return the terms of a passage as the column holds them: no term contains white space."""
    return " ".join(f"{term} {min(tf, MAX_TF)}" for term, tf in passage.tf.items())
