"""What the benchmarks share: a real service in a process of its own, and what kind of machine this is."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def running_service(database_url: str | None, *options: str) -> Generator[str]:
    """`threefold serve` on a free port of this machine, over a throw-away SQLite file or the given database."""
    with tempfile.TemporaryDirectory(prefix="threefold-bench-") as directory:
        store = ["--data", directory] if database_url is None else ["--database-url", database_url]
        command = [str(Path(sys.executable).parent / "threefold")]
        if database_url is not None:
            subprocess.run([*command, "migrate", *store], check=True, stdout=subprocess.DEVNULL)
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", *store, *options], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            url = process.stderr.readline().strip()
            _await_ready(url)
            yield url
        finally:
            process.terminate()
            process.wait()
            process.stderr.close()


def machine() -> str:
    """The machine that a figure was taken on, in a line."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def _await_ready(url: str) -> None:
    transport = httpx.HTTPTransport(retries=5)
    with httpx.Client(base_url=url, transport=transport, timeout=60) as client:
        client.get("/readyz").raise_for_status()
