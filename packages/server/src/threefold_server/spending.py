"""What background work may spend on models, per store and per user and day (UTC), and what it did spend."""

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
"""What waits for a new day does not all come back in its first second."""

SETTLE_SECONDS = 5

_payer: ContextVar[UUID | None] = ContextVar("payer", default=None)


@contextmanager
def paid_by(owner: UUID) -> Generator[None]:
    """Charge what models cost in this block to an owner. Outside of one, as in a recall, nothing is charged."""
    token = _payer.set(owner)
    try:
        yield
    finally:
        _payer.reset(token)


class Spending:
    """The meter of one service's models. Every call is charged before it is made, so that a crash spends no more."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics, clock: Callable[[], int]) -> None:
        self._limits = spending.Limits(settings.model_tokens_per_day, settings.model_tokens_per_user_day)
        self._database, self._metrics, self._clock = database, metrics, clock

    @asynccontextmanager
    async def call(self, tokens: int) -> AsyncGenerator[Bill]:
        """Charge a call of about so many tokens, unless a budget is spent; then correct it to what it was."""
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
            raise BudgetSpent(f"the {spent}'s model budget of this day is spent", left / MICROS + self._spread())

    def _spread(self) -> float:
        return random.uniform(0, SPREAD_SECONDS)
