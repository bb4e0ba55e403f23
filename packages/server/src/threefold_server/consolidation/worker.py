"""The worker: claims due tasks, extends their leases while it works, and stores the outcome of each.

done          The handler completed the task in its last transaction.
model error   The task is retried with growing delays, eight attempts in all, then parked.
refusal       The task is parked at once: an operator has to fix the cause.
budget spent  The task is postponed to the next day. Not counted as an attempt.
facts moved   The owner's facts changed during each of ten comparisons. Handled like a model error.
lease lost    Another worker claimed the task, or a forget ran. The result is discarded; after a forget the task is
              released.
no database   The task is released once the database answers again. Not counted as an attempt.
bug           Handled like a model error, and the log has its type, file and line.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from threefold.contract.common import clean_text
from threefold.errors import EmbedderMismatch, Unavailable
from threefold_server.clock import MICROS
from threefold_server.consolidation.extract import extract_session
from threefold_server.consolidation.fold import fold_session
from threefold_server.consolidation.index import embed_passages, index_words
from threefold_server.consolidation.merge import FactsMoved
from threefold_server.consolidation.upkeep import (
    FLUSH_SECONDS,
    RETIRE_SECONDS,
    SWEEP_SECONDS,
    chain_audit,
    every,
    flush_key_uses,
    flush_reads,
    flush_refusals,
    retire_threads,
    retire_turns,
    sweep,
)
from threefold_server.models.ports import BudgetSpent, ModelError, ModelRefused
from threefold_server.service import Service
from threefold_server.spending import paid_by
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.sessions import tasks
from threefold_server.storage.sessions.tasks import MAX_ATTEMPTS, Claim, LeaseLost, TaskKind
from threefold_server.storage.store import system
from threefold_server.telemetry import logger, span

POLL_SECONDS = 0.25  # with `index.GATHER_SECONDS`, a new turn has its vector well within a second
LEASE_SECONDS = 60
HEARTBEAT_SECONDS = LEASE_SECONDS / 3
GRACE_SECONDS = 10
FIRST_RETRY_SECONDS = 5  # doubled each time: eight attempts take over ten minutes, longer than most rate limits last
LONGEST_WAIT_SECONDS = 3_600
MAX_REASON_CHARS = 300

Handler = Callable[[Service, Claim], Awaitable[None]]
Progress = Callable[[int, int], None]
"""Called with the number of tasks that are done and the number of those that are left."""

FLUSHES = {flush_reads: FLUSH_SECONDS, flush_refusals: FLUSH_SECONDS, flush_key_uses: SWEEP_SECONDS}
"""Functions that store the counters of this process, and the seconds between two calls."""

HANDLERS: dict[TaskKind, Handler] = {
    "index": index_words,
    "embed": embed_passages,
    "fold": fold_session,
    "extract": extract_session,
}


class Worker:
    """Runs the background work of one process.

    Each kind of task has its own slots, so that a slow model does not delay the index.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._changed = anyio.Event()
        self._running: dict[Claim, anyio.CancelScope] = {}
        self._done = 0
        self._stopping = False
        self._outage = False

    def wake(self) -> None:
        """Look for due tasks now, without waiting for the next poll. Call it in the event loop of `run`."""
        self._changed.set()

    def stop(self) -> None:
        """Claim no more tasks; `run` returns once the running ones are done, after at most ten seconds."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Work until stopped or cancelled, then let running tasks finish for at most ten seconds."""
        async with anyio.create_task_group() as group:
            try:
                while not self._stopping:
                    await self._claim_due(group)
                    await self._wait()
            finally:
                await self._drain()

    async def run_until_idle(self, progress: Progress | None = None) -> None:
        """Work until no task is due, except those that other workers have claimed."""
        async with anyio.create_task_group() as group:
            while await self._claim_more(group):
                if progress is not None:
                    progress(self._done, await self._count_due())
                await self._wait()
        if progress is not None:
            progress(self._done, await self._count_due())

    async def _claim_more(self, group: TaskGroup) -> bool:
        """Claim due tasks and return True if one runs, or if one that has just ended may have made another due."""
        return await self._claim_due(group) or bool(self._running) or self._changed.is_set()

    async def _claim_due(self, group: TaskGroup) -> bool:
        """Claim and start as many due tasks as there are free slots. Return False if no task was claimed."""
        self._changed = anyio.Event()  # replaced before the query, so that a wake during it is not lost
        busy = Counter(claim.kind for claim in self._running)
        limit = self._service.settings.consolidators
        slots: dict[TaskKind, int] = {kind: limit - busy[kind] for kind in HANDLERS if busy[kind] < limit}
        now = self._service.clock()
        until = now + LEASE_SECONDS * MICROS
        can_claim = partial(system.can_claim, kinds=list(slots), now=now, until=until)
        claim_due = partial(system.claim_due, wanted=slots, now=now, until=until)
        database = self._service.database
        try:
            due = await database.read("system", can_claim, background=True)
            claims = await database.write("system", claim_due, background=True) if due else []
        except Unavailable as error:
            self._note_outage(error)
            return True  # unknown whether a task is due; the caller asks again
        self._outage = False
        for claim in claims:
            # Shielded, so that a cancelled worker can finish its tasks in `_drain`.
            self._running[claim] = anyio.CancelScope(shield=True)
            group.start_soon(self._run_task, claim)
        return bool(claims)

    async def _wait(self) -> None:
        with anyio.move_on_after(POLL_SECONDS):
            await self._changed.wait()

    def _note_outage(self, error: Unavailable) -> None:
        if not self._outage:
            logger.warning("background work waits for the database", extra={"fields": {"reason": error.message}})
        self._outage = True

    async def _count_due(self) -> int:
        count = partial(system.due_tasks, kinds=list(HANDLERS), now=self._service.clock())
        return await self._service.database.read("system", count)

    async def _run_task(self, claim: Claim) -> None:
        with self._running[claim] as task_scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._extend_lease, claim, group.cancel_scope)
                await self._run_handler(claim)
                group.cancel_scope.cancel()
        if task_scope.cancelled_caught:  # `_drain` cancelled the task after ten seconds
            with anyio.move_on_after(1, shield=True):
                await self._store_outcome(claim, partial(tasks.release, claim=claim))
        del self._running[claim]
        self._done += 1
        self.wake()

    async def _extend_lease(self, claim: Claim, work: anyio.CancelScope) -> None:
        """Extend the lease of a running task every 20 seconds; cancel `work` if another worker has taken the task."""
        while True:
            await anyio.sleep(HEARTBEAT_SECONDS)
            until = self._service.clock() + LEASE_SECONDS * MICROS
            try:
                extend = partial(tasks.extend, claim=claim, until=until)
                still_ours = await self._service.database.write(claim.owner, extend, background=True)
            except Unavailable:
                continue
            if not still_ours:
                work.cancel()

    async def _run_handler(self, claim: Claim) -> None:
        try:
            with paid_by(claim.owner), span(claim.kind):
                await HANDLERS[claim.kind](self._service, claim)
            return
        except LeaseLost as error:
            logger.info("task lost its lease", extra={"fields": {"kind": claim.kind, "reason": str(error)}})
            outcome: Callable[[Connection], None] = partial(tasks.release, claim=claim)
        except Unavailable:
            await anyio.sleep(POLL_SECONDS)
            outcome = partial(tasks.release, claim=claim)
        except BudgetSpent as error:
            due_at = self._service.clock() + int((error.retry_after or 0) * MICROS)
            outcome = partial(tasks.postpone, claim=claim, due_at=due_at, reason=str(error))
        except (ModelError, EmbedderMismatch, FactsMoved) as error:
            outcome = self._failed(claim, error, str(error))
        except Exception as error:  # noqa: BLE001 - a bug in one task must not end the work on all others
            outcome = self._failed(claim, error, f"unexpected {type(error).__name__}; see the service log")
        await self._store_outcome(claim, outcome)

    def _failed(self, claim: Claim, error: Exception, reason: str) -> Callable[[Connection], None]:
        permanent = isinstance(error, ModelRefused)
        self._service.metrics.task_failures.labels(claim.kind, str(permanent).lower()).inc()
        fields = {"kind": claim.kind, "error": type(error).__name__, "permanent": permanent, "at": _source_line(error)}
        logger.warning("task failed", extra={"fields": fields})
        return partial(
            _record_failure,
            claim=claim,
            permanent=permanent,
            reason=str(clean_text(reason))[:MAX_REASON_CHARS],  # without characters that no database can store
            retry_after=error.retry_after if isinstance(error, ModelError) else None,
            now=self._service.clock(),
        )

    async def _store_outcome(self, claim: Claim, outcome: Callable[[Connection], None]) -> None:
        """Store an outcome, and try again until the database answers.

        A worker that is stopping tries only once: the lease expires by itself.
        """
        while True:
            try:
                return await self._service.database.write(claim.owner, outcome, background=True)
            except Unavailable:
                if self._stopping:
                    return None
                await anyio.sleep(POLL_SECONDS)
            except Exception as error:  # noqa: BLE001 - the lease expires by itself; other tasks must go on
                fields = {"kind": claim.kind, "error": type(error).__name__, "at": _source_line(error)}
                return logger.error("outcome of a task not stored", extra={"fields": fields})

    async def _drain(self) -> None:
        self._stopping = True
        with anyio.move_on_after(GRACE_SECONDS, shield=True):
            while self._running:
                self._changed = anyio.Event()
                await self._changed.wait()
        for scope in self._running.values():
            scope.cancel()


@asynccontextmanager
async def run_workers(service: Service) -> AsyncGenerator[None]:
    """Run the background work of a service in this process inside the block, and store its counters."""
    worker = Worker(service)
    async with flushing(service), anyio.create_task_group() as upkeep:
        upkeep.start_soon(every, FLUSH_SECONDS, service, chain_audit)
        upkeep.start_soon(every, SWEEP_SECONDS, service, sweep)
        upkeep.start_soon(every, RETIRE_SECONDS, service, retire_turns)
        upkeep.start_soon(every, RETIRE_SECONDS, service, retire_threads)
        async with anyio.create_task_group() as work:
            service.wake = worker.wake
            work.start_soon(worker.run)
            yield
            worker.stop()
        upkeep.cancel_scope.cancel()


@asynccontextmanager
async def flushing(service: Service) -> AsyncGenerator[None]:
    """Store what this process has counted, again and again inside the block and at its end."""
    try:
        async with anyio.create_task_group() as group:
            for flush, seconds in FLUSHES.items():
                group.start_soon(every, seconds, service, flush)
            yield
            group.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(GRACE_SECONDS, shield=True), suppress(Unavailable):
            for flush in FLUSHES:
                while await flush(service):
                    pass


async def run_until_idle(service: Service, progress: Progress | None = None) -> None:
    """Run all due tasks, including those that become due through them, and return when no task is due any more."""
    await Worker(service).run_until_idle(progress)


def retry_delay(attempts: int, retry_after: float | None) -> float:
    """Return the seconds until the next attempt, with up to 25 % of jitter so that many tasks do not come back at once.

    Args:
        attempts: The number of failed attempts in a row, at least 1.
        retry_after: The wait in seconds that the model's server asked for; the delay is not shorter.
    """
    backoff = FIRST_RETRY_SECONDS * 2 ** (attempts - 1) * random.uniform(1, 1.25)
    return min(max(backoff, retry_after or 0), LONGEST_WAIT_SECONDS)


def _record_failure(
    connection: Connection, claim: Claim, reason: str, permanent: bool, retry_after: float | None, now: int
) -> None:
    attempts = tasks.failed_attempts(connection, claim) + 1
    if permanent or attempts >= MAX_ATTEMPTS:
        tasks.park(connection, claim, reason)
    else:
        due_at = now + int(retry_delay(attempts, retry_after) * MICROS)
        tasks.retry_later(connection, claim, attempts, due_at, reason)


def _source_line(error: Exception) -> str:
    """Return file and line of an error for the log. Its message is left out, as it may quote what somebody said."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
