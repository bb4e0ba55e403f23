"""`threefold migrate | consolidate | rebuild | reembed | purge`: maintenance of a store, which they open themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import typer

from threefold_server.cli.output import Failed, confirm, progress, say
from threefold_server.cli.store import MODELS, check_exists, explained, open_database, store_verb, with_service
from threefold_server.consolidation import rebuild as rebuilding
from threefold_server.consolidation.worker import Progress, run_until_idle
from threefold_server.service import Service
from threefold_server.settings import Settings
from threefold_server.storage.engine import migrate as migrations
from threefold_server.storage.erasure import purge as purging
from threefold_server.storage.store import system

app = typer.Typer()


@store_verb(app, "threefold migrate --database-url postgresql://threefold_app@db/threefold")
def migrate(settings: Settings) -> None:
    """Migrate a database to the current schema. Safe to repeat."""
    with explained():
        migrations.upgrade(settings.url)
    say("The schema is current.")


@store_verb(app, "threefold consolidate", "threefold consolidate --retry-parked", flags=MODELS)
def consolidate(
    settings: Settings,
    retry: Annotated[bool, typer.Option("--retry-parked", help="Also retry parked tasks.")] = False,
) -> None:
    """Run all background work now, without waiting until sessions are idle. A running service does it by itself."""

    async def work(service: Service, shown: Progress) -> None:
        if retry:
            say(f"Parked tasks made due again: {await rebuilding.retry_parked(service)}.")
        await rebuilding.extract_now(service)
        await run_until_idle(service, shown)

    _run(settings, work)


@store_verb(app, "threefold rebuild --data ./memory", flags=MODELS)
def rebuild(settings: Settings) -> None:
    """Rebuild digests, index and extracted facts from the turns.

    Facts that somebody saved or edited are kept. Forgotten memories do not come back.
    """
    _run(settings, rebuilding.rebuild)


@store_verb(app, "threefold reembed --embedder openai:text-embedding-3-small", flags=MODELS)
def reembed(settings: Settings) -> None:
    """Replace all vectors by those of another embedder. Until then, memories are found by words only."""
    _run(settings, rebuilding.reembed, claim=False)


@store_verb(app, "threefold purge --yes", "threefold purge --data ./memory --compact")
def purge(
    settings: Settings,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="On Postgres: do not ask for confirmation.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="On SQLite: also return free space to the file system.")
    ] = False,
) -> None:
    """Remove forgotten data from the files of the database. Backups and archived logs are not changed.

    The output names the files that may still contain forgotten data, and until when.
    """
    check_exists(settings)
    if not settings.embedded:
        say("Postgres rewrites every table (VACUUM FULL). Requests wait until it is done. It needs as much free space.")
        if not yes:
            confirm("Continue?")
    with open_database(settings) as database:
        done = purging.purge_files(database, lambda name: say(f"  {name}"), compact=compact)
    if done.held:
        raise Failed("not purged: an open transaction still reads erased rows; end it and purge again")
    say(f"Purged: no forgotten data is in {', '.join(done.cleared)}.")
    for part in done.remains:
        say(f"May still contain forgotten data: {part}.")
    say("Not changed: backups, archived logs, replicas, and log files of the database server.")


def _run(settings: Settings, work: Callable[[Service, Progress], Awaitable[None]], *, claim: bool = True) -> None:
    """Run `work` with a progress bar. Raise Failed if tasks are left."""
    check_exists(settings)

    async def run(service: Service) -> None:
        with progress() as bar:
            task = bar.add_task("tasks", total=None)
            await work(service, lambda done, left: bar.update(task, completed=done, total=done + left))
        counts = await service.database.read("system", partial(system.task_counts, now=service.clock()))
        if counts:
            left = ", ".join(f"{count} {kind} {state}" for (kind, state), count in sorted(counts.items()))
            raise Failed(f"tasks are left: {left}; retry with `threefold consolidate --retry-parked`")
        say("No work is left.")

    with_service(settings, run, claim=claim)
