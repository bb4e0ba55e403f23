"""Speed of the service compared with the floor, the least work that its answers need on this machine.

The service and the floor (`floor.py`) serve copies of one store, in which every user has 100 facts and a session of 80
turns. Every round runs all loads for a short time in random order, so that other load on the machine affects all of
them; ratios are taken within a round, and the median of the rounds is shown.

write           two turns of some 60 tokens, in a session of the client, a new one after 40 writes; another process
                indexes
write + index   the same, but the serving process indexes too, as by default; its CPU includes all of this work
recall          a query to the memory of one user: window, digest and the ten best memories
window          only the newest turns of a session

CPU is the processor time of the server process per request, without the database server's. Late answers lack one or all
tiers because of a deadline. They cost less than complete ones, so ratios with many late answers look too good.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import uvloop
from harness import THREEFOLD, Process, machine, started
from load import Measured, drive, resident_mb
from rank_alone import rank_ms
from rich.console import Console
from rich.table import Table
from seeding import EMBEDDERS, FACTS, LONG_TURNS, TURNS, seed
from sqlalchemy import select
from stores import Stores, add_engine_options, chosen_engines, stores_of
from talk import Talk, identity

from threefold_server.clock import now_micros
from threefold_server.models import build_embedder
from threefold_server.models.ports import Embedder, Vectors
from threefold_server.rules.access import owner_key
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import passages
from threefold_server.storage.sessions.tasks import TaskKind
from threefold_server.storage.store import system

CLIENTS = (1, 8, 32)
FEW = 10
"""Users of the small store."""
MEMORIES = FACTS + TURNS
QUESTIONS = 20
WARMING_SECONDS = 0.1

FLOOR_GOAL, GROWTH_GOAL, SCALE_GOAL = 2.0, 1.3, 1.5
START_SECONDS = 2.0
RANKING_MS = {100: 5.0, 10_000: 15.0}

SERVERS = {
    "floor": (sys.executable, str(Path(__file__).with_name("floor.py"))),
    "serve": (THREEFOLD, "serve", "--port", "0"),
    "apart": (THREEFOLD, "serve", "--port", "0", "--consolidate", "off"),
}
AGAINST_FLOOR = {"write": ("write", "apart"), "write + index": ("write", "serve"), "recall": ("recall", "serve")}
"""Title, operation, and the server that is compared with the floor."""

console = Console(width=120)


class Cell(NamedTuple):
    """One load on one server of one store; the number of users identifies the store."""

    users: int
    operation: str
    clients: int
    server: str


class Finding(NamedTuple):
    """A figure and its goal, an upper bound."""

    what: str
    value: float
    unit: str
    goal: float | None


@dataclass(frozen=True)
class Store:
    """The servers of one store, their requests, and the database of the server that indexes."""

    servers: dict[str, Process]
    talk: Talk
    database: Database

    async def indexed(self) -> None:
        """Return when all written turns are indexed."""
        kinds: list[TaskKind] = ["index", "embed", "fold"]
        while self.database.read_sync("system", lambda c: system.due_tasks(c, kinds, now_micros())):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def vectors(self, user: str) -> Vectors:
        """Return the vectors of all memories of a user."""
        owner = owner_key("user", user)
        chosen = select(passages.c.vector).where(passages.c.pool == owner)
        return np.vstack(self.database.read_sync(owner, lambda c: c.execute(chosen).scalars().all()))


Stored = dict[int, Store]
Results = dict[Cell, list[Measured]]


def main() -> None:
    """Measure on each database, then print the tables."""
    options = _options()
    began = time.perf_counter()
    results: dict[str, Results] = {}
    findings = [
        Finding(f"ranking alone, {count:,} memories of one owner, p50", rank_ms(count), "ms", goal)
        for count, goal in RANKING_MS.items()
    ]
    for engine in chosen_engines(options):
        with stores_of(engine, options.database_url) as stores:
            results[engine], found = measure(engine, stores, options)
        findings += [finding._replace(what=f"{engine}: {finding.what}") for finding in found]
    for engine, measured in results.items():
        console.print(comparison(engine, measured, options.users))
    console.print(goals(findings))
    console.print(f"{machine()}, {datetime.now(UTC).date()}; embedder {options.embedder}")
    console.print(f"median of {options.rounds} rounds of {options.seconds} s a load (recall: twice)")
    console.print(f"{time.perf_counter() - began:.0f} s in all")
    if options.json:
        _keep(options, results, findings)


def measure(engine: str, stores: Stores, options: argparse.Namespace) -> tuple[Results, list[Finding]]:
    """Run all loads on one database, and collect the other figures."""
    more = -(-max(0, options.others - TURNS * options.users) // LONG_TURNS)
    long_sessions = {FEW: 0, options.users: 1 + more}
    with ExitStack() as stack:
        stored = {
            users: stack.enter_context(_serving(stores, users, count, options.embedder))
            for users, count in long_sessions.items()
        }
        results = uvloop.run(run_rounds(engine, stored, options))
        large = stored[options.users]
        findings = [
            *growth(results, options.users, TURNS * options.users + LONG_TURNS * more),
            exactness(large, options.users, build_embedder(options.embedder, redact=str)),
            *resources(large),
        ]
    return results, [*findings, *([first_start()] if engine == "SQLite" else [])]


@contextmanager
def _serving(stores: Stores, users: int, long_sessions: int, embedder: str) -> Generator[Store]:
    """Run every server, each on a copy of one seeded store."""
    seeded = stores.create()
    seed(seeded, embedder, users, long_sessions)
    urls = {name: stores.copy(seeded) for name in SERVERS}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(started(*command, "--embedder", embedder, "--database-url", urls[name]))
            for name, command in SERVERS.items()
        }
        database = Database(urls["serve"])
        stack.callback(database.close)
        yield Store(servers, Talk(users), database)


async def run_rounds(engine: str, stored: Stored, options: argparse.Namespace) -> Results:
    """Run every load in every round, after a short run of each to warm up the servers."""
    results: Results = defaultdict(list)
    loads = cells(options.users)
    for number in range(options.rounds + 1):
        began = time.perf_counter()
        warming = number == 0
        for cell in random.sample(loads, len(loads)):
            seconds = WARMING_SECONDS if warming else options.seconds * (2 if cell.operation == "recall" else 1)
            measured = await run(stored[cell.users], cell, number, seconds)
            if not warming:
                results[cell].append(measured)
        title = "warming" if warming else f"round {number} of {options.rounds}"
        console.print(f"{engine}, {title}: {time.perf_counter() - began:.0f} s")
    return dict(results)


def cells(users: int) -> list[Cell]:
    """Return all loads."""
    pairs = (("write", "floor"), ("write", "apart"), ("recall", "floor"), ("recall", "serve"))
    return [
        *(Cell(size, what, clients, server) for size in (FEW, users) for what, server in pairs for clients in CLIENTS),
        *(Cell(users, "write", clients, "serve") for clients in CLIENTS),
        *(Cell(size, "window", 1, "serve") for size in (FEW, users)),
        Cell(users, "window long", 1, "serve"),
        Cell(users, "write long", 1, "apart"),
    ]


async def run(store: Store, cell: Cell, number: int, seconds: float) -> Measured:
    """Run one load in one round; if the server indexes, wait until it has finished."""
    make = store.talk.maker(cell.operation, f"{number}-{cell.clients}")
    settle = store.indexed if (cell.operation, cell.server) == ("write", "serve") else None
    return await drive(store.servers[cell.server], cell.clients, seconds, make, settle)


def growth(results: Results, users: int, others: int) -> list[Finding]:
    """Return the cost of a long session, and of turns and memories of other users: p50 divided by the small store's."""

    def ratio(grown: Cell, base: Cell) -> float:
        return _median(results, grown, base, lambda one, other: one.p50 / other.p50)

    write, window, recall = (
        Cell(FEW, operation, 1, server)
        for operation, server in (("write", "apart"), ("window", "serve"), ("recall", "serve"))
    )
    long = f"in a session of {LONG_TURNS:,} turns against a short one"
    beside = f"beside {others:,} turns of others against {FEW * TURNS:,}"
    memories = f"among {users * MEMORIES:,} memories of all against {FEW * MEMORIES:,}"
    return [
        Finding(f"write {long}", ratio(Cell(users, "write long", 1, "apart"), write), "x", GROWTH_GOAL),
        Finding(f"window {long}", ratio(Cell(users, "window long", 1, "serve"), window), "x", GROWTH_GOAL),
        Finding(f"write {beside}", ratio(write._replace(users=users), write), "x", GROWTH_GOAL),
        Finding(f"window {beside}", ratio(window._replace(users=users), window), "x", GROWTH_GOAL),
        Finding(f"recall {memories}", ratio(recall._replace(users=users), recall), "x", SCALE_GOAL),
    ]


def exactness(store: Store, users: int, embedder: Embedder) -> Finding:
    """Check that a recall of everything has the same ten nearest memories as a full scan."""
    differ = 0
    with httpx.Client(base_url=store.servers["serve"].url, timeout=60) as client:
        for number in range(QUESTIONS):
            user, query = f"u{number * users // QUESTIONS}", store.talk.query()
            vector = asyncio.run(embedder.embed([query]))[0]
            asked = {"query": query, "include": ["long_term"], "min_score": 0, "top_k": 1_000}
            answer = client.post("/v1/recall", json=asked, headers=identity(user)).raise_for_status().json()
            cosines = [fact["score_parts"]["cosine"] or 0.0 for fact in answer["memories"]]
            differ += not np.allclose(sorted(cosines)[-10:], np.sort(store.vectors(user) @ vector)[-10:], atol=1e-4)
    return Finding(f"of {QUESTIONS} questions, those whose ten nearest differ from an exact scan's", differ, "", 0)


def resources(store: Store) -> list[Finding]:
    """Return the start time of a process, and its memory at the end."""
    served = store.servers["serve"]
    memory = resident_mb(served.pid)
    start = Finding("start to ready on this store", served.seconds, "s", START_SECONDS)
    return [start, *([Finding("memory of the process after all loads", memory, "MB", None)] if memory else [])]


def first_start() -> Finding:
    """Return the time of the first start, which also creates the database."""
    with tempfile.TemporaryDirectory() as directory, started(*SERVERS["serve"], "--data", directory) as process:
        return Finding("start to ready on a new store", process.seconds, "s", START_SECONDS)


def comparison(engine: str, results: Results, users: int) -> Table:
    """Print service and floor side by side."""
    table = Table(title=f"{engine}: service against floor; goal: both ratios at most {FLOOR_GOAL:g}")
    for column in ("", "users", "clients", "p50 ms", "floor", "x", "req/s", "floor", "x", "CPU ms", "floor", "late"):
        table.add_column(column, justify="right" if column else "left")
    for title, (operation, server) in AGAINST_FLOOR.items():
        for size, clients in product((FEW, users), CLIENTS):
            ours = Cell(size, operation, clients, server)
            if ours in results:
                table.add_row(title, f"{size:,}", str(clients), *_row(results, ours))
        table.add_section()
    return table


def _row(results: Results, ours: Cell) -> list[str]:
    floor = ours._replace(server="floor")
    slower = _median(results, ours, floor, lambda one, other: one.p50 / other.p50)
    fewer = _median(results, ours, floor, lambda one, other: other.rate / one.rate)
    return [
        *(f"{statistics.median(run.p50 for run in results[cell]):.2f}" for cell in (ours, floor)),
        _marked(slower, FLOOR_GOAL),
        *(f"{statistics.median(run.rate for run in results[cell]):,.0f}" for cell in (ours, floor)),
        _marked(fewer, FLOOR_GOAL),
        *(_cpu(results[cell]) for cell in (ours, floor)),
        f"{sum(run.late for run in results[ours]) / sum(run.requests for run in results[ours]):.0%}",
    ]


def goals(findings: Sequence[Finding]) -> Table:
    """Print the figures that have their own goal."""
    table = Table(title="growth, ranking, processes")
    for column in ("", "measured", "goal"):
        table.add_column(column, justify="right" if column else "left")
    for what, value, unit, goal in findings:
        measured = f"{value:.2f}" if isinstance(value, float) else str(value)
        table.add_row(what, f"{measured} {unit}", "" if goal is None else f"{goal:g} {_mark(value, goal)}")
    return table


def _median(results: Results, ours: Cell, other: Cell, ratio: Callable[[Measured, Measured], float]) -> float:
    """Return the median over the rounds of a ratio taken within each round."""
    return statistics.median(map(ratio, results[ours], results[other]))


def _cpu(runs: Sequence[Measured]) -> str:
    known = [run.cpu for run in runs if run.cpu is not None]
    return f"{statistics.median(known):.2f}" if known else "-"


def _marked(ratio: float, goal: float) -> str:
    return f"{ratio:.2f} {_mark(ratio, goal)}"


def _mark(value: float, goal: float) -> str:
    return "[green]✓[/]" if value <= goal else "[red]✗[/]"


def _keep(options: argparse.Namespace, results: dict[str, Results], findings: Sequence[Finding]) -> None:
    """Write all numbers as JSON."""
    kept = {
        "machine": machine(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": vars(options),
        "runs": [
            {"engine": engine, **cell._asdict(), "rounds": [asdict(run) for run in runs]}
            for engine, measured in results.items()
            for cell, runs in measured.items()
        ],
        "findings": [finding._asdict() for finding in findings],
    }
    Path(options.json).write_text(json.dumps(kept, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a load in a round; recalls twice (default 0.4)")
    parser.add_argument("--users", type=int, default=560, help="of the large store (default 560: 100,800 memories)")
    parser.add_argument("--others", type=int, default=200_000, help="turns of others in it (default 200000)")
    parser.add_argument("--embedder", choices=sorted(EMBEDDERS), default="minilm")
    add_engine_options(parser)
    parser.add_argument("--json", help="a file to keep all numbers in")
    parser.add_argument("--quick", action="store_true", help="a short trial on a small store, for no real figures")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.users, options.others = 2, 0.2, 50, 40_000
    return options


if __name__ == "__main__":
    main()
