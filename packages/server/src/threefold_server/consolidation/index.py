"""Indexing and embedding of turns, facts and items: the words first, which need no model, then the vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from uuid import UUID

import anyio.to_thread

from threefold_server.models.ports import Vectors
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import index
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import Claim
from threefold_server.storage.store import system
from threefold_server.text.indexed import Passage, fact_passages, turn_passages
from threefold_server.text.item_fields import stored_passages
from threefold_server.text.redaction import Redact

WORDS_AT_ONCE = 50  # turns per read
TERMS_PER_COMMIT = 200
"""Postings per transaction, of one turn at least: about 1 ms on SQLite, where every writer waits for it."""

VECTORS_AT_ONCE = 32  # passages per call of the embedder
GATHER_SECONDS = 0.2  # waiting for more turns of a busy session: indexed one by one, each took 6 ms and two commits

Entries = Sequence[tuple[AnyRow, list[Passage]]]
Pending = tuple[Sequence[AnyRow], dict[tuple[UUID, int], AnyRow]]


async def index_words(service: Service, claim: Claim) -> None:
    """Add the words of a session's turns to the index, and make the embedding of their passages due."""
    done = False
    while not done:
        read = partial(
            index.next_turns, owner=claim.owner, session=claim.subject, after=claim.upto, limit=WORDS_AT_ONCE
        )
        turns, more = await service.database.read(claim.owner, read, background=True)
        entries = await anyio.to_thread.run_sync(_entries, turns, service.redact)
        for part in slices(entries):
            store = partial(_store_words, claim=claim, entries=part, now=service.clock())
            claim, done = await service.database.write(claim.owner, store, background=True)
        if not done and not more:
            await anyio.sleep(GATHER_SECONDS)


async def embed_passages(service: Service, claim: Claim) -> None:
    """Compute the missing vectors of the passages of a session, or of an owner's facts or items."""
    done = False
    while not done:
        pending = await service.database.read(claim.owner, partial(_pending, claim=claim), background=True)
        texts = await anyio.to_thread.run_sync(_texts, pending, service.redact)
        rows, _ = pending
        current = [(row, text) for row, text in zip(rows, texts, strict=True) if text is not None]
        stale = [row for row, text in zip(rows, texts, strict=True) if text is None]
        vectors = await service.embedder.embed([text for _, text in current])
        store = partial(
            _store_vectors,
            claim=claim,
            embedder=service.embedder.name,
            rows=[row for row, _ in current],
            vectors=vectors,
            stale=stale,
        )
        done = await service.database.write(claim.owner, store, background=True)


def _entries(turns: Sequence[AnyRow], redact: Redact) -> Entries:
    return [(turn, turn_passages(turn, redact)) for turn in turns]


def slices(entries: Entries) -> Iterator[Entries]:
    """Yield the turns in slices for one transaction each; without turns, one empty slice."""
    start = terms = 0
    for place, (_, found) in enumerate(entries):
        more = sum(len(passage.tf) for passage in found)
        if terms and terms + more > TERMS_PER_COMMIT:
            yield entries[start:place]
            start, terms = place, 0
        terms += more
    yield entries[start:]


def _store_words(connection: Connection, claim: Claim, entries: Entries, now: int) -> tuple[Claim, bool]:
    session = tasks.confirm_lease(connection, claim)
    if session is not None and entries:
        index.add_turns(connection, session.agent, entries)
        claim = tasks.advance(connection, claim, entries[-1][0].seq)
    tasks.schedule(connection, claim.owner, claim.subject, "embed", now)
    done = session is None or session.last_seq == claim.upto
    if done:
        tasks.complete(connection, claim)
    return claim, done


def _pending(connection: Connection, claim: Claim) -> Pending:
    rows = index.pending(connection, claim.owner, claim.subject, VECTORS_AT_ONCE)
    return rows, index.sources_of(connection, claim.owner, rows)


def _texts(pending: Pending, redact: Redact) -> list[str | None]:
    """Return the text of each pending passage; None if its source has no such passage any more.

    The texts are cut again from their turns, facts and items, as the index keeps no copy.
    """
    rows, sources = pending
    texts = {(source, seq): _texts_by_part(seq, row, redact) for (source, seq), row in sources.items()}
    return [texts.get((row.source, row.seq), {}).get(row.part) for row in rows]


def _texts_by_part(seq: int, row: AnyRow, redact: Redact) -> dict[int, str]:
    if seq == index.OF_ITEM:
        return dict(enumerate(stored_passages(row.value, row.fields, redact)))
    found = turn_passages(row, redact) if seq else fact_passages(row.text)
    return {passage.part: passage.text for passage in found}


def _store_vectors(
    connection: Connection,
    claim: Claim,
    embedder: str,
    rows: Sequence[AnyRow],
    vectors: Vectors,
    stale: Sequence[AnyRow],
) -> bool:
    tasks.confirm_lease(connection, claim)
    system.claim_embedder(connection, embedder)
    if rows:
        index.set_vectors(connection, claim.owner, embedder, rows, vectors)
    if stale:
        index.discard(connection, claim.owner, stale)
    tasks.advance(connection, claim, claim.upto)
    done = not index.pending(connection, claim.owner, claim.subject, limit=1)
    if done:
        tasks.complete(connection, claim)
    return done
