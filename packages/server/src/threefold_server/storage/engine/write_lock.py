"""SQLite's write lock: how a transaction waits for another process that holds it."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

TRY_SECONDS = 0.000_3
"""Pause between two tries of a request. SQLite's own busy handler pauses for up to 100 ms: with another process that
indexed in transactions of 8 ms, the 99th percentile of a write was 350 ms."""

BACKGROUND_TRY_SECONDS = 0.002


def begin_immediate(driver: Any, seconds: float, *, background: bool = False) -> None:
    """Begin a writing transaction as soon as no other process has one.

    Args:
        driver: The driver's connection.
        seconds: How long to wait.
        background: Try less often, so that requests of other processes come first.

    Raises:
        sqlite3.OperationalError: Another process held the lock for all of that time.
    """
    pause = BACKGROUND_TRY_SECONDS if background else TRY_SECONDS
    end = time.monotonic() + seconds
    driver.execute("PRAGMA busy_timeout=0")
    while True:
        try:
            driver.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= end:
                raise
            time.sleep(pause)
        else:
            return


def is_busy(error: BaseException | None) -> bool:
    """Return whether SQLite refused a statement because another connection held a lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
