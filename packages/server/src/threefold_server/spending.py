"""The budgets of background work on models: tokens per day (UTC), for the store and for each user."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from uuid import UUID

import anyio

from threefold.errors import Unavailable
from threefold_server.clock import DAY, MICROS
from threefold_server.models.ports import Bill, BudgetSpent
from threefold_server.settings import Settings
from threefold_server.storage.engine.database import Database
from threefold_server.storage.store import spending
from threefold_server.telemetry import Metrics

SPREAD_SECONDS = 600
"""Tasks that wait for a new day are retried within this time, not all in its first second."""

SETTLE_SECONDS = 5
"""Limit for storing what a call has cost."""

_payer: ContextVar[UUID | None] = ContextVar("payer", default=None)


@contextmanager
def paid_by(owner: UUID) -> Generator[None]:
    """Charge the model calls of this block to an owner. Calls outside of a block, as in a recall, are free."""
    token = _payer.set(owner)
    try:
        yield
    finally:
        _payer.reset(token)


class Spending:
    """The meter of one service's models. It charges before each call, so that a crash loses no cost."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics, clock: Callable[[], int]) -> None:
        self._limits = spending.Limits(settings.model_tokens_per_day, settings.model_tokens_per_user_day)
        self._database, self._metrics, self._clock = database, metrics, clock

    @asynccontextmanager
    async def call(self, tokens: int) -> AsyncGenerator[Bill]:
        """Charge an estimate of `tokens`, then correct it to what the call used.

        Raises:
            BudgetSpent: The day's budget of the store or of the owner is spent.
        """
        owner = _payer.get()
        bill = Bill(tokens)
        if owner is None:
            yield bill
            return
        day = self._clock() // DAY
        await self._charge(owner, day, tokens)
        outcome = "failed"
        try:
            yield bill
            outcome = "answered"
        finally:
            self._metrics.model_calls.labels(outcome).inc()
            self._metrics.model_tokens.inc(bill.tokens)
            settle = partial(spending.settle, owner=owner, day=day, tokens=bill.tokens - tokens, outcome=outcome)
            with anyio.move_on_after(SETTLE_SECONDS, shield=True), suppress(Unavailable):
                await self._database.write("system", settle, background=True)

    async def _charge(self, owner: UUID, day: int, tokens: int) -> None:
        charge = partial(spending.charge, owner=owner, day=day, tokens=tokens, limits=self._limits)
        spent = await self._database.write("system", charge, background=True)
        if spent is not None:
            self._metrics.model_calls.labels("over budget").inc()
            left = (day + 1) * DAY - self._clock()
            raise BudgetSpent(f"the {spent}'s model budget for today is spent", left / MICROS + self._spread())

    def _spread(self) -> float:
        return random.uniform(0, SPREAD_SECONDS)
