"""Making anew what is derived: all of it, or only the vectors; and giving parked work another go."""

from __future__ import annotations

from functools import partial

from threefold_server.consolidation.worker import Progress, run_until_idle
from threefold_server.service import Service
from threefold_server.storage.store import system


async def rebuild(service: Service, progress: Progress | None = None) -> None:
    """Drop digests and index, and with a model the facts it drew, and make them again. What somebody saved, edited or
    pinned stays as it is; what was forgotten or expired stays away."""
    settings = service.settings
    trigger = settings.trigger if settings.rolling_summary else None
    extract = service.extractor is not None
    for owner in await service.database.read("system", system.all_owners):
        now, redact = service.clock(), service.redact
        reset = partial(system.rebuild_owner, owner=owner, now=now, trigger=trigger, redact=redact, extract=extract)
        await service.database.write("system", reset, background=True)
    await run_until_idle(service, progress)


async def reembed(service: Service, progress: Progress | None = None) -> None:
    """Replace the vectors of another embedder by those of the present one. Until it has one, words find a memory.

    The store changes hands last, in one short transaction: until then its old embedder may still be serving it.
    """
    name = service.embedder.name
    for owner in await service.database.read("system", system.all_owners):
        drop = partial(system.drop_vectors, owner=owner, embedder=name)
        await service.database.write("system", drop, background=True)
    replace = partial(system.replace_embedder, name=name, now=service.clock())
    await service.database.write("system", replace, background=True)
    await run_until_idle(service, progress)


async def retry_parked(service: Service) -> int:
    """Make parked tasks due again; returns how many there were."""
    requeue = partial(system.requeue_parked, now=service.clock())
    return await service.database.write("system", requeue, background=True)


async def extract_now(service: Service) -> None:
    """Make the extraction of everything that was said so far due; nothing without a model."""
    if service.extractor is not None:
        queue = partial(system.queue_extraction, now=service.clock())
        await service.database.write("system", queue, background=True)
