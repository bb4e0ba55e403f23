"""Checks of a store and its environment, each with the command that fixes the problem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from threefold_server.clock import MICROS, from_micros
from threefold_server.models.ports import Comparison, DigestTurn, ModelError, Statement
from threefold_server.service import Service
from threefold_server.storage.engine import files
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.erasure import forget_records
from threefold_server.storage.store import system

LATE_SECONDS = 120
"""Tasks that are due longer than this are late. Workers claim within 0.25 s; a dead worker's lease lasts a minute."""

SKEW_SECONDS = 5
"""Largest difference between two clocks."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. `remedy` says what to do and is empty if nothing is wrong."""

    check: str
    detail: str
    remedy: str = ""


async def examine(service: Service) -> list[Finding]:
    """Return the results of all checks of a store, its models and its clocks."""
    findings = [await _embedder(service), await _digest_model(service), *await _fact_model(service)]
    return findings + await service.database.read("system", partial(_store, service=service))


def _store(connection: Connection, service: Service) -> list[Finding]:
    now = service.clock()
    return [
        _parked(connection),
        _stale_leases(connection, now),
        _late(connection, now),
        _vectors(connection, service.embedder.name),
        _index(connection, service),
        _clocks(connection, service),
        _purge(connection),
        _files(service),
    ]


def _parked(connection: Connection) -> Finding:
    parked = [f"{row.count} {row.kind}: {row.parked}" for row in system.parked_tasks(connection)]
    remedy = "fix the cause, then run: threefold consolidate --retry-parked" if parked else ""
    return Finding("parked work", "; ".join(parked) or "none", remedy)


def _stale_leases(connection: Connection, now: int) -> Finding:
    stale = system.stale_leases(connection, now - LATE_SECONDS * MICROS)
    detail = f"{stale} left by a worker that died or hangs" if stale else "none"
    return Finding("stale leases", detail, "run: threefold worker (it claims these tasks)" if stale else "")


def _late(connection: Connection, now: int) -> Finding:
    since = system.oldest_due(connection, now)
    if since is None or now - since < LATE_SECONDS * MICROS:
        return Finding("background work", "up to date")
    detail = f"due since {from_micros(since).isoformat(timespec='seconds')}, and no worker does it"
    return Finding("background work", detail, "run: threefold worker, or threefold serve without --consolidate off")


def _vectors(connection: Connection, embedder: str) -> Finding:
    stamp, others = system.embedder_stamp(connection), system.vectors_of_others(connection, embedder)
    if stamp in (None, embedder) and not others:
        return Finding("vectors", f"made by {embedder}")
    detail = f"{others} made by another embedder; the store's is {stamp}, the configured one {embedder}"
    return Finding("vectors", detail, "run: threefold reembed, or configure the store's embedder")


def _index(connection: Connection, service: Service) -> Finding:
    most = service.settings.index_cache_mb
    if not most:
        return Finding("search index", "not kept in memory (THREEFOLD_INDEX_CACHE_MB is 0)")
    large = system.owners_with_more_passages(connection, service.index.most_passages)
    if not large:
        return Finding("search index", f"of every user, fits into {most} MB of memory")
    detail = f"of {large} users does not fit into {most} MB of memory; they are searched in the database"
    return Finding("search index", detail, "raise THREEFOLD_INDEX_CACHE_MB")


def _clocks(connection: Connection, service: Service) -> Finding:
    """Compare this clock with that of the database, if it has one, and with the newest write."""
    database, newest = system.database_clock(connection), system.newest_write(connection)
    now = service.clock()
    ahead = max((newest or now) - now, abs((database or now) - now)) / MICROS
    if ahead < SKEW_SECONDS:
        return Finding("clocks", "agree")
    return Finding(
        "clocks", f"differ by {ahead:.0f} s", "synchronise the clocks, for example by: timedatectl set-ntp true"
    )


def _purge(connection: Connection) -> Finding:
    since = forget_records.purge_pending_since(connection)
    if since is None:
        return Finding("purge", "nothing to purge")
    detail = f"data erased since {from_micros(since).isoformat(timespec='seconds')} is still in the files"
    return Finding("purge", detail, "run: threefold purge")


def _files(service: Service) -> Finding:
    loose = files.loose(service.database.url)
    if not loose:
        return Finding("file permissions", "other users cannot read the store's files")
    return Finding(
        "file permissions", "; ".join(each.found for each in loose), "; ".join(each.remedy for each in loose)
    )


async def _embedder(service: Service) -> Finding:
    try:
        await service.embedder.embed(["Are you there?"])
    except ModelError as error:
        return _no_answer("embedder", error)
    return Finding("embedder", f"{service.embedder.name} answers")


async def _digest_model(service: Service) -> Finding:
    try:
        await service.summarizer.fold(None, [DigestTurn(1, "user", "user", "Are you there?")])
    except ModelError as error:
        return _no_answer("digest model", error)
    return Finding("digest model", f"{service.summarizer.name} answers")


async def _fact_model(service: Service) -> list[Finding]:
    """Ask the model to compare two statements: it checks the endpoint for a tenth of the tokens of an extraction."""
    if service.extractor is None:
        return []
    at = from_micros(service.clock())
    new, known = Statement("N1", "The heron is grey.", at), Statement("K1", "The heron was grey.", at)
    try:
        await service.extractor.compare([Comparison(new, (known,))])
    except ModelError as error:
        return [_no_answer("fact model", error)]
    return [Finding("fact model", f"{service.extractor.name} answers")]


def _no_answer(check: str, error: ModelError) -> Finding:
    remedy = "check THREEFOLD_MODEL_BASE_URL and THREEFOLD_MODEL_API_KEY"
    return Finding(check, f"no usable answer: {error}", remedy)
