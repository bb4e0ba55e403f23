"""Rebuilding of derived data (digests, index, extracted facts, vectors), and retrying of parked tasks."""

from __future__ import annotations

from functools import partial

from threefold_server.consolidation.worker import Progress, run_until_idle
from threefold_server.service import Service
from threefold_server.storage.store import system


async def rebuild(service: Service, progress: Progress | None = None) -> None:
    """Delete the digests and the index of every owner, and make them again from the turns.

    With an extractor, extracted facts are deleted and extracted again, too. Facts that somebody saved, edited or pinned
    are kept as they are. Forgotten and expired memories do not come back.
    """
    settings = service.settings
    trigger = settings.trigger if settings.rolling_summary else None
    extract = service.extractor is not None
    for owner in await service.database.read("system", system.all_owners):
        now, redact = service.clock(), service.redact
        reset = partial(system.rebuild_owner, owner=owner, now=now, trigger=trigger, redact=redact, extract=extract)
        await service.database.write("system", reset, background=True)
    await run_until_idle(service, progress)


async def reembed(service: Service, progress: Progress | None = None) -> None:
    """Replace the vectors of other embedders by vectors of the current one.

    A memory is found by words only until it has its new vector. The name of the store's embedder changes last, in one
    short transaction, because a service with the old embedder may run until then.
    """
    name = service.embedder.name
    for owner in await service.database.read("system", system.all_owners):
        drop = partial(system.drop_vectors, owner=owner, embedder=name)
        await service.database.write("system", drop, background=True)
    replace = partial(system.replace_embedder, name=name, now=service.clock())
    await service.database.write("system", replace, background=True)
    await run_until_idle(service, progress)


async def retry_parked(service: Service) -> int:
    """Make all parked tasks due again, and return their number."""
    requeue = partial(system.requeue_parked, now=service.clock())
    return await service.database.write("system", requeue, background=True)


async def extract_now(service: Service) -> None:
    """Make the extraction of all turns that have not been read yet due. Do nothing without an extractor."""
    if service.extractor is not None:
        queue = partial(system.queue_extraction, now=service.clock())
        await service.database.write("system", queue, background=True)
