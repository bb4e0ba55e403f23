"""Shared by the benchmarks: a real service in its own process, and a description of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import httpx

from threefold_server.storage.engine.migrate import upgrade

THREEFOLD = str(Path(sys.executable).with_name("threefold"))


@dataclass(frozen=True)
class Process:
    """A server in its own process."""

    url: str
    pid: int
    seconds: float
    """Seconds from its start until it was ready."""


@contextmanager
def running_service(database_url: str | None, *options: str) -> Generator[str]:
    """Run `threefold serve` on a free port of loopback, on a temporary SQLite file or the given database."""
    with tempfile.TemporaryDirectory(prefix="threefold-bench-") as directory:
        store = ["--data", directory] if database_url is None else ["--database-url", database_url]
        if database_url is not None:
            upgrade(database_url)
        with started(THREEFOLD, "serve", "--port", "0", *store, *options) as process:
            yield process.url


@contextmanager
def started(*command: str) -> Generator[Process]:
    """Yield a ready server, which prints its address as the first line on standard error; stop it at the end."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().strip()
    # A thread reads the log: a full pipe would block the server.
    reader = Thread(target=deque, args=(process.stderr, 0))
    reader.start()
    try:
        if not url.startswith("http"):
            raise RuntimeError(url)
        _await_ready(url)
        yield Process(url, process.pid, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()
        reader.join()
        process.stderr.close()


def machine() -> str:
    """Describe this machine in one line."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def _await_ready(url: str) -> None:
    transport = httpx.HTTPTransport(retries=5)
    with httpx.Client(base_url=url, transport=transport, timeout=60) as client:
        client.get("/readyz").raise_for_status()
