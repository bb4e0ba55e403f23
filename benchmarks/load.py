"""A closed-loop load client on plain sockets, cheap because it shares the machine, and the server's resources."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness import Process

Make = Callable[[int, int], bytes]
"""(client, number of requests that it has sent) -> its next request."""

FEWEST = 2
"""Least number of requests of a client, even after its time is over: the machine may be busy with other work."""


@dataclass(frozen=True)
class Measured:
    """Results of one run of one load."""

    p50: float
    """Milliseconds."""
    p95: float
    p99: float
    rate: float
    """Requests per second."""
    cpu: float | None
    """Processor time of the server process per request, in milliseconds; None without /proc."""
    requests: int
    late: int
    """Number of answers that lack a tier, and of 503 answers."""


async def drive(
    process: Process, clients: int, seconds: float, make: Make, settle: Callable[[], Awaitable[None]] | None = None
) -> Measured:
    """Run a number of clients; each sends its next request when it has the answer to the last one.

    `settle` waits for background work of the requests, whose processor time is counted too.
    """
    address = urlsplit(process.url)
    connections = [await asyncio.open_connection(address.hostname, address.port) for _ in range(clients)]
    latencies: list[float] = []
    late: list[bytes] = []
    cpu, began = cpu_seconds(process.pid), time.perf_counter()
    loops = (
        _client(*connection, number, began + seconds, make, latencies, late)
        for number, connection in enumerate(connections)
    )
    await asyncio.gather(*loops)
    elapsed = time.perf_counter() - began
    if settle is not None:
        await settle()
    spent = None if cpu is None else (cpu_seconds(process.pid) or 0.0) - cpu
    for _, writer in connections:
        writer.close()
    return Measured(
        p50=1e3 * statistics.median(latencies),
        p95=1e3 * statistics.quantiles(latencies, n=20)[-1],
        p99=1e3 * statistics.quantiles(latencies, n=100)[-1],
        rate=len(latencies) / elapsed,
        cpu=None if spent is None else 1e3 * spent / len(latencies),
        requests=len(latencies),
        late=len(late),
    )


async def _client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    number: int,
    until: float,
    make: Make,
    latencies: list[float],
    late: list[bytes],
) -> None:
    sent = 0
    while (now := time.perf_counter()) < until or sent < FEWEST:  # percentiles need two values
        writer.write(make(number, sent))
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        latencies.append(time.perf_counter() - now)
        sent += 1
        if head.startswith(b"HTTP/1.1 503") or b'"degraded":["' in body:
            late.append(body)
        elif not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"{head.splitlines()[0]!r}: {body[:500]!r}")


def cpu_seconds(pid: int) -> float | None:
    """Return the user and system time of a process so far, in seconds."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return None
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float | None:
    """Return the current memory of a process in MB."""
    statm = Path(f"/proc/{pid}/statm")
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
