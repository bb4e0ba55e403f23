"""Checkpoints of a long thread: whether time and size per checkpoint stay constant, and their cost against the floor.

One graph runs turn after turn on one thread, once with each checkpointer. Its state is what agents keep: `window`, the
newest 20 messages of 200 characters, a state that stops growing; or `log`, every message, in a channel that stores only
differences. The time of a put is the wall time of one `aput`; the size is that of the database on disk.

Then the same put, byte for byte, goes to the service and to the floor (`floor.py`, an upsert of the body) alternately.
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
    """Size and put time after a number of turns."""

    turn: int
    megabytes: float
    put_ms: float
    """Median put time of the turns since the last sample, in milliseconds."""


def windowed(state: list[str], new: list[str]) -> list[str]:
    """Return the newest messages."""
    return [*state, *new][-WINDOW:]


def joined(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    """Return every message."""
    return [*state, *(message for write in writes for message in write)]


class Window(TypedDict):
    """A state that stops growing."""

    messages: Annotated[list[str], windowed]


class Log(TypedDict):
    """A state whose differences are stored, with the whole state from time to time."""

    messages: Annotated[list[str], DeltaChannel(joined, list, snapshot_frequency=200)]


def message(turn: int, role: str) -> str:
    """Return a message of fixed length that a database cannot compress."""
    return random.Random(f"{role} {turn}").randbytes(CHARACTERS // 2).hex()


def answer(state: Window | Log) -> Window:
    """The only node: answer the newest message."""
    return {"messages": [message(len(state["messages"]), "assistant")]}


@asynccontextmanager
async def ours(stores: Stores) -> AsyncGenerator[tuple[Saver, str]]:
    """Yield a saver on the service, which runs in its own process."""
    url = stores.create()
    with started(*service(url)) as process:
        connection = ThreefoldConnection.connect(process.url)
        yield ThreefoldSaver(connection), url
        await connection.aclose()


@asynccontextmanager
async def upstream_sqlite(stores: Stores) -> AsyncGenerator[tuple[Saver, str]]:
    """Yield LangGraph's SQLite saver, in this process."""
    url = stores.create()
    async with AsyncSqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
        yield saver, url


@asynccontextmanager
async def upstream_postgres(stores: Stores) -> AsyncGenerator[tuple[Saver, str]]:
    """Yield LangGraph's Postgres saver, which connects from this process to the database."""
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
    """Run the turns and take samples; at the end compare a put on this thread with one on a new thread."""
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
    """Time the same put on the long and a new thread alternately, so that other load on the machine affects both."""
    spent: dict[str, list[float]] = {"t": [], "new": []}
    for number in range(PAIRS):
        checkpoint, new = _checkpoint(number)
        for thread, times in spent.items():
            config: Any = {"configurable": {**CONFIG["configurable"], "thread_id": thread}}
            began = time.perf_counter()
            await saver.aput(config, checkpoint, CheckpointMetadata(source="loop", step=number), new)
            times.append(1e3 * (time.perf_counter() - began))
    long, fresh = (statistics.median(times) for times in spent.values())
    return (
        f"a put on this thread takes {long / fresh:.2f} times as long as on a new one ({long:.2f} ms, {fresh:.2f} ms)"
    )


def _timed(saver: Any) -> list[float]:
    """Collect the milliseconds of every later put."""
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
    """Return the size of a database on disk."""
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
    """Compare the median time of the same put on the service and on the floor, run alternately."""
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
    """Create the tables of a database, and return the command that serves it."""
    upgrade(url)
    return (THREEFOLD, "serve", "--port", "0", "--embedder", "hash", "--consolidate", "off", "--database-url", url)


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
    """Return the body that `aput` sends."""
    checkpoint, new = _checkpoint(number)
    metadata = CheckpointMetadata(source="loop", step=number)
    request = checkpoints.checkpoint_request(JsonPlusSerializer(), CONFIG, checkpoint, metadata, new)
    return request.model_dump_json(exclude_unset=True).encode()


def _checkpoint(number: int) -> tuple[Checkpoint, Any]:
    """Return a checkpoint of a full `window` and its new versions; its id sorts before all real ones."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = f"{number:036d}"
    checkpoint["channel_values"] = {"messages": [message(turn, "user") for turn in range(WINDOW)]}
    checkpoint["channel_versions"] = {"messages": f"{number}.x", "__start__": "1.x", "branch:to:answer": f"{number}.x"}
    return checkpoint, {"messages": f"{number}.x"}


def growth(title: str, samples: Sequence[Sample]) -> Table:
    """Print how size and put time change with the number of turns."""
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
    parser.add_argument(
        "--quick",
        dest="turns",
        action="store_const",
        const=200,
        help="a trial of 200 turns",
    )
    add_engine_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
