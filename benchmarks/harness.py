"""What the benchmarks share: a real service in a process of its own, and what kind of machine this is."""

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
    """A server in a process of its own."""

    url: str
    pid: int
    seconds: float
    """From its start until it was ready."""


@contextmanager
def running_service(database_url: str | None, *options: str) -> Generator[str]:
    """`threefold serve` on a free port of this machine, over a throw-away SQLite file or the given database."""
    with tempfile.TemporaryDirectory(prefix="threefold-bench-") as directory:
        store = ["--data", directory] if database_url is None else ["--database-url", database_url]
        if database_url is not None:
            upgrade(database_url)
        with started(THREEFOLD, "serve", "--port", "0", *store, *options) as process:
            yield process.url


@contextmanager
def started(*command: str) -> Generator[Process]:
    """A server that tells its address in the first line on standard error; ready, and stopped at the end."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().strip()
    # Somebody has to read its log: a full pipe would stop it.
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
    """The machine that a figure was taken on, in a line."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def _await_ready(url: str) -> None:
    transport = httpx.HTTPTransport(retries=5)
    with httpx.Client(base_url=url, transport=transport, timeout=60) as client:
        client.get("/readyz").raise_for_status()
