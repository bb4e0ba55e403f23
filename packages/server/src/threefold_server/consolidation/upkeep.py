"""Housekeeping at intervals: store counters, chain the audit, delete expired and old rows, set gauges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice

import anyio

from threefold.errors import Unavailable
from threefold_server.clock import DAY, MICROS
from threefold_server.service import Refusal, Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.store import audit, keys, spending, system, system_audit
from threefold_server.telemetry import logger

FLUSH_SECONDS = 5
SWEEP_SECONDS = 60
RETIRE_SECONDS = 3_600
AT_ONCE = 200
"""Rows per transaction, so that no writer waits long for it."""

THREADS_AT_ONCE = 20
"""Threads per transaction: fewer, as one thread may have thousands of checkpoints."""

Action = Callable[[Service], Awaitable[bool | None]]
"""One short piece of housekeeping; returns True if more of it is left."""


async def every(seconds: float, service: Service, action: Action) -> None:
    """Run `action` every `seconds`, and without a pause while more is left.

    Errors are logged. A cancellation waits for the current run.
    """
    while True:
        more: bool | None = False
        try:
            with anyio.CancelScope(shield=True):
                more = await action(service)
        except Unavailable:
            pass  # requests and the worker report the outage; the next run catches up
        except Exception as error:  # noqa: BLE001 - a bug in one action must not end all background work
            fields = {"job": action.__name__, "error": type(error).__name__}
            logger.warning("housekeeping failed", extra={"fields": fields})
        await anyio.sleep(0 if more else seconds)


async def flush_reads(service: Service) -> bool:
    """Store how often each fact was recalled. Facts that are recalled often get a later expiry, once."""
    counts = dict(islice(service.reads.items(), AT_ONCE))
    if not counts:
        return False
    for fact in counts:
        del service.reads[fact]
    try:
        add = partial(system.add_reads, counts=counts, now=service.clock())
        await service.database.write("system", add, background=True)
    except Unavailable:
        service.reads.update(counts)
        raise
    return bool(service.reads)


async def flush_key_uses(service: Service) -> None:
    """Store when each API key was last used."""
    uses, service.key_uses = service.key_uses, {}
    if not uses:
        return
    try:
        await service.database.write("system", partial(keys.note_uses, uses=uses), background=True)
    except Unavailable:
        service.key_uses = uses | service.key_uses
        raise


async def flush_refusals(service: Service) -> bool:
    """Add the refused requests, counted by caller, operation and error, to the audit."""
    counts = dict(islice(service.refusals.items(), AT_ONCE))
    if not counts:
        return False
    for refusal in counts:
        del service.refusals[refusal]
    try:
        add = partial(_note_refusals, counts=counts, now=service.clock())
        await service.database.write("system", add, background=True)
    except Unavailable:
        service.refusals.update(counts)
        raise
    return bool(service.refusals)


def _note_refusals(connection: Connection, counts: Mapping[Refusal, int], now: int) -> None:
    for (caller, operation, code), times in counts.items():
        owner, actor = (audit.STORE, audit.NOBODY) if caller is None else (caller.owner, audit.actor_of(caller))
        audit.note(connection, owner, actor, "refused", target=operation, counts={"times": times}, outcome=code, at=now)


async def chain_audit(service: Service) -> bool:
    """Add the new entries of the audit to its hash chain, and delete entries that are past their retention."""
    chained = await service.database.write("system", partial(system_audit.chain, limit=AT_ONCE), background=True)
    days = service.settings.audit_retention_days
    if days is not None:
        drop = partial(system_audit.drop_old, before=service.clock() - int(days * DAY))
        await service.database.write("system", drop, background=True)
    return chained == AT_ONCE


async def sweep(service: Service) -> bool:
    """Delete expired facts and items, finish purges, make folds of idle sessions due, and set the gauges of tasks."""
    now = service.clock()
    expired = partial(system.sweep_expired_facts, now=now, limit=AT_ONCE)
    swept = await service.database.write("system", expired, background=True)
    expired = partial(system.sweep_expired_items, now=now, limit=AT_ONCE)
    swept = max(swept, await service.database.write("system", expired, background=True))
    await service.database.write("system", partial(system.sweep_erased_turns, now=now), background=True)
    await service.database.write("system", partial(system.drop_erased_owners, now=now, limit=AT_ONCE), background=True)
    await service.database.write("system", partial(spending.sweep, day=now // DAY), background=True)
    await service.database.purge()  # if an open read prevented it at the time of the forget
    await service.database.write("system", partial(_fold_idle, service=service, now=now), background=True)
    counts = await service.database.read("system", partial(system.task_counts, now=now))
    service.metrics.tasks.clear()
    for (kind, state), count in counts.items():
        service.metrics.tasks.labels(kind, state).set(count)
    return swept == AT_ONCE


def _fold_idle(connection: Connection, service: Service, now: int) -> None:
    """Make a fold due for sessions that have just become idle and have more undigested tokens than the target."""
    settings = service.settings
    if settings.rolling_summary:
        idle_since = now - int(settings.idle_seconds * MICROS)
        since = idle_since - 2 * SWEEP_SECONDS * MICROS  # twice the interval, as the last sweep may have been late
        system.fold_idle(connection, since, idle_since, settings.target, now)


async def retire_turns(service: Service) -> bool:
    """Erase turns older than `turn_retention_days`, in the same way as a forget."""
    days = service.settings.turn_retention_days
    if days is None:
        return False
    now = service.clock()
    retire = partial(system.retire_turns, before=now - int(days * DAY), now=now, limit=AT_ONCE)
    return await service.database.write("system", retire, background=True) > 0


async def retire_threads(service: Service) -> bool:
    """Erase threads that were idle for longer than `thread_retention_days`."""
    days = service.settings.thread_retention_days
    if days is None:
        return False
    now = service.clock()
    retire = partial(system.retire_threads, before=now - int(days * DAY), now=now, limit=THREADS_AT_ONCE)
    return await service.database.write("system", retire, background=True) == THREADS_AT_ONCE
