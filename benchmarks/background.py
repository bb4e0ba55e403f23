"""What background work costs the requests beside it: `serve` with it off, in threads, and in a process of its own.

Each server has a store of its own. Every round runs every load on every server in random order; ratios are taken within
a round, and the median over the rounds is shown. After a load the server indexes what was written before the next one.

write           two turns of some 60 tokens, in a session of the client's own, as in `speed.py`
recall          a question, while one other client writes
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import uvloop
from harness import THREEFOLD, Process, machine, started
from load import Measured, drive
from rich.console import Console
from rich.table import Table
from seeding import seed
from stores import Stores, add_engine_options, chosen_engines, stores_of
from talk import Talk

from threefold_server.clock import now_micros
from threefold_server.storage.engine.database import Database
from threefold_server.storage.sessions.tasks import TaskKind
from threefold_server.storage.store import system

CLIENTS = (1, 8, 32)
USERS = 20
OFF = "off"
KINDS: list[TaskKind] = ["index", "embed", "fold"]

console = Console(width=120)


class Cell(NamedTuple):
    """One load on one server."""

    operation: str
    clients: int
    server: str


Results = dict[Cell, list[Measured]]


class Server(NamedTuple):
    """A server and its database."""

    process: Process
    database: Database
    indexes: bool

    async def settled(self) -> None:
        """Return once everything that was written is indexed."""
        while self.indexes and self.database.read_sync(  # noqa: ASYNC110
            "system", lambda c: system.due_tasks(c, KINDS, now_micros())
        ):
            await asyncio.sleep(0.05)


@contextmanager
def serving(stores: Stores, seeded: str, command: list[str], embedder: str, indexes: bool) -> Generator[Server]:
    """Run a server on a copy of a seeded store."""
    url = stores.copy(seeded)
    with started(*command, "--port", "0", "--embedder", embedder, "--database-url", url) as process:
        database = Database(url)
        try:
            yield Server(process, database, indexes)
        finally:
            database.close()


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the servers that are compared, by name."""
    found = {mode: [THREEFOLD, "serve", "--consolidate", mode] for mode in (OFF, "thread", "process")}
    return found | {name: program.split() for name, _, program in (text.partition("=") for text in options.also)}


async def measure(servers: dict[str, Server], options: argparse.Namespace) -> Results:
    """Run all loads in every round, after a short one to warm up."""
    talk, results = Talk(USERS), defaultdict[Cell, list[Measured]](list)
    cells = [
        Cell(what, clients, name) for what in ("write", "recall") for clients in options.clients for name in servers
    ]
    for number in range(options.rounds + 1):
        began = time.perf_counter()
        for cell in random.sample(cells, len(cells)):
            seconds = options.seconds if number else 0.3
            measured = await run(servers[cell.server], talk, cell, f"{number}-{cell.clients}-{cell.operation}", seconds)
            if number:
                results[cell].append(measured)
        console.print(f"round {number} of {options.rounds}: {time.perf_counter() - began:.0f} s")
    return dict(results)


async def run(server: Server, talk: Talk, cell: Cell, name: str, seconds: float) -> Measured:
    """Run one load, and one writing client beside it if it reads."""
    if cell.operation == "write":
        return await drive(server.process, cell.clients, seconds, talk.maker("write", name), server.settled)
    reading = drive(server.process, cell.clients, seconds, talk.maker("recall", name))
    writing = drive(server.process, 1, seconds, talk.maker("write", name), server.settled)
    measured, _ = await asyncio.gather(reading, writing)
    return measured


def comparison(engine: str, results: Results, servers: list[str]) -> Table:
    """Return the figures of each load, and their ratios to those of a server that does no background work."""
    table = Table(title=f"{engine}: times in ms, and over those without background work")
    for column in ("", "clients", "background", "p50", "x", "p95", "x", "p99", "x", "req/s", "x", "late"):
        table.add_column(column, justify="right" if column else "left")
    for operation, clients in dict.fromkeys((cell.operation, cell.clients) for cell in results):
        for name in servers:
            runs, base = results[Cell(operation, clients, name)], results[Cell(operation, clients, OFF)]
            figures = [_figure(runs, base, get) for get in _FIGURES]
            late = sum(run.late for run in runs) / sum(run.requests for run in runs)
            table.add_row(operation, str(clients), name, *(text for pair in figures for text in pair), f"{late:.0%}")
        table.add_section()
    return table


_FIGURES: list[Callable[[Measured], float]] = [
    lambda run: run.p50,
    lambda run: run.p95,
    lambda run: run.p99,
    lambda run: run.rate,
]


def _figure(runs: list[Measured], base: list[Measured], get: Callable[[Measured], float]) -> tuple[str, str]:
    ratio = statistics.median(get(one) / get(other) for one, other in zip(runs, base, strict=True))
    return f"{statistics.median(map(get, runs)):,.1f}", f"{ratio:.2f}"


def main() -> None:
    """Measure on each database, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all loads")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per load")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="numbers of clients")
    parser.add_argument("--embedder", default="hash", help="hash: the service's own part; minilm: with the model")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND", help="one more server")
    add_engine_options(parser)
    options = parser.parse_args()
    for engine in chosen_engines(options):
        with ExitStack() as stack:
            stores = stack.enter_context(stores_of(engine, options.database_url))
            seeded = stores.create()
            seed(seeded, options.embedder, USERS, 0)
            servers = {
                name: stack.enter_context(serving(stores, seeded, command, options.embedder, name != OFF))
                for name, command in commands(options).items()
            }
            results = uvloop.run(measure(servers, options))
            console.print(comparison(engine, results, list(servers)))
    console.print(f"{machine()}; embedder {options.embedder}; median of {options.rounds} rounds of {options.seconds} s")


if __name__ == "__main__":
    main()
