"""A long thread: do its checkpoints stay as cheap and as small as they were, and what do they cost above the least?

One graph runs turn after turn on one thread, once with each checkpointer. Its state is what agents keep: `window`, the
newest 20 messages of 200 characters, a state that stops growing; or `log`, every message, in a channel of which only
differences are stored. A put is the wall time of one `aput`, and the database is measured on disk.

Then the same put, byte for byte, goes to the service and to the floor (`floor.py`, an upsert of the body) in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import httpx
from floor import POSTGRES_SCHEMA, SQLITE_SCHEMA
from harness import THREEFOLD, machine, started
from langgraph.channels.delta import DeltaChannel  # pyright: ignore[reportMissingTypeStubs]
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from rich.console import Console
from rich.table import Table
from stores import Stores, add_engine_options, chosen_engines, stores_of

from threefold_langgraph import ThreefoldConnection, ThreefoldSaver, checkpoints
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.migrate import upgrade

WINDOW = 20
CHARACTERS = 200
FLOOR_PUTS = 400
PAIRS = 200
CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "user_id": "ana"}}

Saver = BaseCheckpointSaver[Any]
Opening = Callable[[Stores], AbstractAsyncContextManager[tuple[Saver, str]]]
"""A saver, and the URL of the database behind it."""

console = Console(width=120)


class Sample(NamedTuple):
    """How things stand after so many turns."""

    turn: int
    megabytes: float
    put_ms: float
    """Median of the turns before."""


def windowed(state: list[str], new: list[str]) -> list[str]:
    """The newest messages."""
    return [*state, *new][-WINDOW:]


def joined(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    """Every message."""
    return [*state, *(message for write in writes for message in write)]


class Window(TypedDict):
    """A state that stops growing."""

    messages: Annotated[list[str], windowed]


class Log(TypedDict):
    """A state of which differences are stored, and the whole now and then."""

    messages: Annotated[list[str], DeltaChannel(joined, list, snapshot_frequency=200)]


def message(turn: int, role: str) -> str:
    """As long as any other, and nothing that a database could compress."""
    return random.Random(f"{role} {turn}").randbytes(CHARACTERS // 2).hex()


def answer(state: Window | Log) -> Window:
    """The one node."""
    return {"messages": [message(len(state["messages"]), "assistant")]}


@asynccontextmanager
async def ours(stores: Stores) -> AsyncGenerator[tuple[Saver, str]]:
    """The service in a process of its own."""
    url = stores.create()
    with started(*service(url)) as process:
        connection = ThreefoldConnection.connect(process.url)
        yield ThreefoldSaver(connection), url
        await connection.aclose()


@asynccontextmanager
async def upstream_sqlite(stores: Stores) -> AsyncGenerator[tuple[Saver, str]]:
    """LangGraph's own, in this process."""
    url = stores.create()
    async with AsyncSqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
        yield saver, url


@asynccontextmanager
async def upstream_postgres(stores: Stores) -> AsyncGenerator[tuple[Saver, str]]:
    """LangGraph's own, from this process straight to the database."""
    url = stores.create()
    async with AsyncPostgresSaver.from_conn_string(url.replace("+psycopg", "")) as saver:
        await saver.setup()
        yield saver, url


RUNS: dict[str, list[tuple[str, type[Any], Opening]]] = {
    "SQLite": [
        ("ThreefoldSaver, window", Window, ours),
        ("AsyncSqliteSaver, window", Window, upstream_sqlite),
        ("ThreefoldSaver, log", Log, ours),
    ],
    "Postgres": [
        ("ThreefoldSaver, window", Window, ours),
        ("AsyncPostgresSaver, window", Window, upstream_postgres),
        ("ThreefoldSaver, log", Log, ours),
        ("AsyncPostgresSaver, log", Log, upstream_postgres),
    ],
}


def main() -> None:
    """Measure on each database, then print the tables."""
    options = _options()
    for engine in chosen_engines(options):
        with stores_of(engine, options.database_url) as stores:
            for name, state, opening in RUNS[engine]:
                samples, comparison = asyncio.run(grow(stores, state, opening, options.turns))
                console.print(growth(f"{engine}: {name}", samples))
                console.print(comparison)
            console.print(f"{engine}: {against_floor(stores)}")
    console.print(f"{machine()}, {datetime.now(UTC).date()}; {options.turns:,} turns on one thread")


async def grow(stores: Stores, state: type[Any], opening: Opening, turns: int) -> tuple[list[Sample], str]:
    """Run the turns, and look now and then; at the end compare the thread with a new one."""
    looks = {20, turns // 10, turns // 2, turns}
    async with opening(stores) as (saver, url):
        put_ms = _timed(saver)
        building: Any = StateGraph(state)
        building.add_node("answer", answer)
        building.add_edge(START, "answer")
        graph = building.compile(checkpointer=saver)
        empty = database_bytes(url)
        samples: list[Sample] = []
        for turn in range(1, turns + 1):
            await graph.ainvoke({"messages": [message(turn, "user")]}, CONFIG)
            if turn in looks:
                size = (database_bytes(url) - empty) / 1e6
                samples.append(Sample(turn, size, statistics.median(put_ms[-60:])))
        return samples, await long_and_new(saver)


async def long_and_new(saver: Saver) -> str:
    """The same put on the long thread and on a new one in turn, so that what else the machine does falls on both."""
    spent: dict[str, list[float]] = {"t": [], "new": []}
    for number in range(PAIRS):
        made, new = _checkpoint(number)
        for thread, times in spent.items():
            config: Any = {"configurable": {**CONFIG["configurable"], "thread_id": thread}}
            began = time.perf_counter()
            await saver.aput(config, made, CheckpointMetadata(source="loop", step=number), new)
            times.append(1e3 * (time.perf_counter() - began))
    long, fresh = (statistics.median(times) for times in spent.values())
    return (
        f"a put on this thread takes {long / fresh:.2f} times as long as on a new one ({long:.2f} ms, {fresh:.2f} ms)"
    )


def _timed(saver: Any) -> list[float]:
    """The milliseconds of every put from now on."""
    spent: list[float] = []
    put = saver.aput

    async def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        config = await put(*arguments)
        spent.append(1e3 * (time.perf_counter() - began))
        return config

    saver.aput = timed
    return spent


def database_bytes(url: str) -> int:
    """What a database takes on disk."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.stat().st_size
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(row[0]) if row else 0


def against_floor(stores: Stores) -> str:
    """The median of one and the same put, on the service and on the floor in turn."""
    urls = [stores.create() for _ in range(2)]
    with ExitStack() as stack:
        floor = _floor(urls[1])
        servers = [stack.enter_context(started(*command)).url for command in (service(urls[0]), floor)]
        clients = [stack.enter_context(httpx.Client(base_url=url)) for url in servers]
        spent: list[list[float]] = [[], []]
        for number in range(FLOOR_PUTS):
            for client, times in zip(clients, spent, strict=True):
                times.append(_put(client, number))
    mine, least = (1e3 * statistics.median(times[FLOOR_PUTS // 10 :]) for times in spent)
    size = len(_body(0))
    return f"a put of {size:,} bytes takes {mine:.2f} ms, on the floor {least:.2f} ms: {mine / least:.2f} times as long"


def service(url: str) -> tuple[str, ...]:
    """The command that serves a database, which gets its tables."""
    upgrade(url)
    return (THREEFOLD, "serve", "--port", "0", "--embedder", "hash", "--no-consolidate", "--database-url", url)


def _floor(url: str) -> tuple[str, ...]:
    database = Database(url)
    schema = SQLITE_SCHEMA if database.is_sqlite else "CREATE EXTENSION IF NOT EXISTS vector;" + POSTGRES_SCHEMA
    for statement in schema.split(";")[:-1]:
        database.write_sync("system", lambda c, statement=statement: c.exec_driver_sql(statement))
    database.close()
    script = str(Path(__file__).with_name("floor.py"))
    return (sys.executable, script, "--database-url", url.replace("+psycopg", ""), "--embedder", "hash")


def _put(client: httpx.Client, number: int) -> float:
    body = _body(number)
    identity = {"Content-Type": "application/json", "X-Threefold-User": "ana", "X-Threefold-Agent": "a"}
    began = time.perf_counter()
    client.post("/v1/threads/t/checkpoints", content=body, headers=identity).raise_for_status()
    return time.perf_counter() - began


def _body(number: int) -> bytes:
    """What `aput` sends."""
    made, new = _checkpoint(number)
    metadata = CheckpointMetadata(source="loop", step=number)
    request = checkpoints.checkpoint_request(JsonPlusSerializer(), CONFIG, made, metadata, new)
    return request.model_dump_json(exclude_unset=True).encode()


def _checkpoint(number: int) -> tuple[Checkpoint, Any]:
    """One of the steady state of `window`, and the versions that are new in it; its id is before all real ones."""
    made = empty_checkpoint()
    made["id"] = f"{number:036d}"
    made["channel_values"] = {"messages": [message(turn, "user") for turn in range(WINDOW)]}
    made["channel_versions"] = {"messages": f"{number}.x", "__start__": "1.x", "branch:to:answer": f"{number}.x"}
    return made, {"messages": f"{number}.x"}


def growth(title: str, samples: Sequence[Sample]) -> Table:
    """How size and put change with the turns."""
    table = Table(title=title)
    for column in ("turns", "MB", "kB a turn", "put p50 ms"):
        table.add_column(column, justify="right")
    for sample in samples:
        per_turn = 1e3 * sample.megabytes / sample.turn
        table.add_row(f"{sample.turn:,}", f"{sample.megabytes:.1f}", f"{per_turn:.1f}", f"{sample.put_ms:.2f}")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2_000)
    parser.add_argument("--quick", dest="turns", action="store_const", const=200, help="200 turns, for no real figures")
    add_engine_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
