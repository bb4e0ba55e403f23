"""Transactions that lose a race with another one: which errors say so, and how often they are run again.

Postgres undoes such a transaction as a whole, so that running it again is safe: the second run sees what the winner
committed. SQLite has one writer and no such races.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from threefold_server.telemetry import logger

T = TypeVar("T")

RACES = {"40001": "serialization failure", "40P01": "deadlock", "23505": "unique violation", "23503": "missing parent"}
"""SQLSTATE and its name in the log. The last two are races too: between a look at a row and the insert that rests on
it, another transaction inserted or deleted that row. One that is no race comes again each time, and is raised."""

ATTEMPTS = 6
FIRST_PAUSE = 0.01
"""Seconds, at most, before the second attempt; doubled before each further one. Postgres itself takes one second to
find a deadlock."""


def run_again(attempt: Callable[[], T], errors: tuple[type[Exception], ...]) -> T:
    """Run a transaction until it loses no race, at most `ATTEMPTS` times; then raise its error.

    Args:
        attempt: Runs one whole transaction, from BEGIN to COMMIT. It may run several times, so that it must leave
            nothing outside of the database, or begin by resetting it.
        errors: The driver's errors.
    """
    for number in range(1, ATTEMPTS):
        try:
            return attempt()
        except (DBAPIError, *errors) as error:
            lost = RACES.get(sqlstate(error))
            if lost is None:
                raise
        logger.info("transaction runs again", extra={"fields": {"lost": lost, "attempt": number}})
        time.sleep(random.uniform(0, FIRST_PAUSE * 2 ** (number - 1)))
    return attempt()


def sqlstate(error: BaseException) -> str:
    """Return Postgres's code of an error, from the driver or from SQLAlchemy around it; empty if there is none."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return getattr(original, "sqlstate", None) or ""
