"""Making anew what is derived: all of it, or only the vectors; and giving parked work another go."""

from __future__ import annotations

from functools import partial

from threefold_server.consolidation.worker import Progress, run_until_idle
from threefold_server.service import Service
from threefold_server.storage import system


async def rebuild(service: Service, progress: Progress | None = None) -> None:
    """Drop digests and index and make them again. Facts stay as they are; what was forgotten or expired stays away."""
    settings = service.settings
    trigger = settings.trigger if settings.rolling_summary else None
    for owner in await service.database.read("system", system.all_owners):
        reset = partial(system.rebuild_owner, owner=owner, now=service.clock(), trigger=trigger, redact=service.redact)
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
