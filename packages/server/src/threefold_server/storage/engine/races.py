"""Transactions that lose a race with another one: which errors say so, and how often such a transaction runs again.

Postgres rolls such a transaction back as a whole, so it is safe to run it again: the second run sees what the other
transaction committed. SQLite has one writer and no such races.
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
"""SQLSTATE and its name in the log. The last two are races, too: another transaction inserted or deleted a row after
this one had read it and before this one inserted. An error with another cause occurs in each attempt and is raised."""

ATTEMPTS = 6
FIRST_PAUSE = 0.01
"""The longest pause in seconds before the second attempt, doubled before each further one. Postgres itself takes one
second to find a deadlock."""


def run_again(attempt: Callable[[], T], errors: tuple[type[Exception], ...]) -> T:
    """Run a transaction again while it loses races, at most `ATTEMPTS` times in all; then raise its error.

    Args:
        attempt: Runs one whole transaction, from BEGIN to COMMIT. It may run several times, so it must change nothing
            outside the database, or reset the change when it starts.
        errors: The error classes of the driver.
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
    """Return the SQLSTATE of an error of the driver or of SQLAlchemy; "" if it has none."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return getattr(original, "sqlstate", None) or ""
