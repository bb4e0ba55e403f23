"""The floor: a minimal memory service with hand-written statements, to compare the real service with.

A write is one two-row INSERT, answered once it is on disk. A recall calls the same embedder, reads the newest turns of
the session, and finds the user's nearest facts by an exact scan. A checkpoint is its unchanged body, upserted. The
floor has no identity, no idempotency, no search by words, no ranking and no budget. It answers the same requests as the
service, with the same uvicorn settings.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import socket
import sqlite3
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
import uvicorn
from fastapi import FastAPI, Header, Request
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection
from pydantic import BaseModel

from threefold_server.cli.serve import BACKLOG, KEEP_ALIVE_SECONDS, LOG_CONFIG, Server
from threefold_server.models import build_embedder
from threefold_server.models.ports import Vectors

T = TypeVar("T")
User = Annotated[str, Header(alias="x-threefold-user")]
Rows = list[tuple[Any, ...]]

WINDOW = 70
NEAREST = 10
CONNECTIONS = 8
READERS = 4  # as many threads as the service reads with

SCHEMA = """
    CREATE TABLE floor_turns (id {key}, user_id text, session_id text, role text, content text);
    CREATE TABLE floor_checkpoints (thread text, id text, body {bytes}, PRIMARY KEY (thread, id));
    CREATE TABLE floor_facts (id {key}, user_id text, text text, vector {vector});
    CREATE INDEX floor_turns_by_session ON floor_turns (user_id, session_id, id);
    CREATE INDEX floor_facts_by_user ON floor_facts (user_id);
"""
SQLITE_SCHEMA = SCHEMA.format(key="integer PRIMARY KEY", vector="blob", bytes="blob")
POSTGRES_SCHEMA = SCHEMA.format(key="bigserial PRIMARY KEY", vector="vector", bytes="bytea")


class Turn(BaseModel):
    """One message."""

    role: str
    content: str


class Write(BaseModel):
    """Two turns of a session."""

    session_id: str
    turns: list[Turn]


class Written(BaseModel):
    """Answer to a write: the turns are on disk."""

    appended: int


class Recall(BaseModel):
    """A query."""

    session_id: str
    query: str


class Fact(BaseModel):
    """A memory and its cosine."""

    text: str
    score: float


class Recalled(BaseModel):
    """The newest turns of the session, and the facts nearest to the query."""

    window: list[Turn]
    facts: list[Fact]


class Store(Protocol):
    """The statements of a recall, a write and a checkpoint."""

    async def open(self) -> None:
        """Open the connections."""
        ...

    async def insert(self, values: tuple[str, ...]) -> None:
        """Insert two turns, durably."""
        ...

    async def upsert(self, values: tuple[str, str, bytes]) -> None:
        """Store the body of a checkpoint, durably."""
        ...

    async def read(self, user: str, session: str, query: Vectors) -> tuple[Rows, Rows]:
        """Return the newest turns (newest first), and the nearest facts with their cosines."""
        ...


class Postgres:
    """Eight connections; each statement is its own transaction."""

    INSERT = "INSERT INTO floor_turns (user_id, session_id, role, content) VALUES (%s, %s, %s, %s), (%s, %s, %s, %s)"
    UPSERT = """
        INSERT INTO floor_checkpoints VALUES (%s, %s, %s) ON CONFLICT (thread, id) DO UPDATE SET body = EXCLUDED.body
    """
    WINDOW = "SELECT role, content FROM floor_turns WHERE user_id = %s AND session_id = %s ORDER BY id DESC LIMIT %s"
    NEAREST = """
        SELECT text, -(vector <#> %(query)s) FROM floor_facts
        WHERE user_id = %(user)s ORDER BY vector <#> %(query)s LIMIT %(limit)s
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: asyncio.LifoQueue[AsyncConnection[Any]] = asyncio.LifoQueue()

    async def open(self) -> None:
        for _ in range(CONNECTIONS):
            connection = await AsyncConnection[Any].connect(self._url, autocommit=True)
            await register_vector_async(connection)
            self._free.put_nowait(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection[Any]]:
        connection = await self._free.get()
        try:
            yield connection
        finally:
            self._free.put_nowait(connection)

    async def insert(self, values: tuple[str, ...]) -> None:
        async with self._connection() as connection:
            await connection.execute(self.INSERT, values)

    async def upsert(self, values: tuple[str, str, bytes]) -> None:
        async with self._connection() as connection:
            await connection.execute(self.UPSERT, values)

    async def read(self, user: str, session: str, query: Vectors) -> tuple[Rows, Rows]:
        async with self._connection() as connection:
            turns = await connection.execute(self.WINDOW, (user, session, WINDOW))
            facts = await connection.execute(self.NEAREST, {"user": user, "query": query, "limit": NEAREST})
            return await turns.fetchall(), await facts.fetchall()


class Sqlite:
    """One connection with its own thread for writes, four for reads."""

    INSERT = "INSERT INTO floor_turns (user_id, session_id, role, content) VALUES (?, ?, ?, ?), (?, ?, ?, ?)"
    UPSERT = "INSERT OR REPLACE INTO floor_checkpoints VALUES (?, ?, ?)"
    WINDOW = "SELECT role, content FROM floor_turns WHERE user_id = ? AND session_id = ? ORDER BY id DESC LIMIT ?"
    VECTORS = "SELECT text, vector FROM floor_facts WHERE user_id = ?"

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer, self._readers = ThreadPoolExecutor(1), ThreadPoolExecutor(READERS)
        self._free: SimpleQueue[sqlite3.Connection] = SimpleQueue()

    async def open(self) -> None:
        self._write = _connect(self._path)
        for _ in range(READERS):
            self._free.put(_connect(self._path))

    async def insert(self, values: tuple[str, ...]) -> None:
        await _in(self._writer, lambda: self._write.execute(self.INSERT, values))

    async def upsert(self, values: tuple[str, str, bytes]) -> None:
        await _in(self._writer, lambda: self._write.execute(self.UPSERT, values))

    async def read(self, user: str, session: str, query: Vectors) -> tuple[Rows, Rows]:
        return await _in(self._readers, lambda: self._read(user, session, query))

    def _read(self, user: str, session: str, query: Vectors) -> tuple[Rows, Rows]:
        connection = self._free.get()
        try:
            turns = connection.execute(self.WINDOW, (user, session, WINDOW)).fetchall()
            facts = connection.execute(self.VECTORS, (user,)).fetchall()
        finally:
            self._free.put(connection)
        cosines = np.frombuffer(b"".join(row[1] for row in facts), np.float32).reshape(len(facts), -1) @ query
        return turns, [(facts[i][0], float(cosines[i])) for i in np.argsort(-cosines)[:NEAREST]]


def create_app(url: str, embedder_name: str) -> FastAPI:
    """Create the application of the floor; its tables must exist in the database."""
    sqlite = url.startswith("sqlite:///")
    store: Store = Sqlite(url.removeprefix("sqlite:///")) if sqlite else Postgres(url)
    embedder = build_embedder(embedder_name, redact=str)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await store.open()
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/write")
    async def write(body: Write, user: User) -> Written:  # pyright: ignore[reportUnusedFunction]
        await store.insert(tuple(v for turn in body.turns for v in (user, body.session_id, turn.role, turn.content)))
        return Written(appended=len(body.turns))

    @app.post("/v1/recall")
    async def recall(body: Recall, user: User) -> Recalled:  # pyright: ignore[reportUnusedFunction]
        query = (await embedder.embed([body.query]))[0]
        turns, facts = await store.read(user, body.session_id, query)
        window = [Turn(role=role, content=content) for role, content in reversed(turns)]
        return Recalled(window=window, facts=[Fact(text=text, score=score) for text, score in facts])

    @app.post("/v1/threads/{thread}/checkpoints")
    async def put(thread: str, request: Request) -> Written:  # pyright: ignore[reportUnusedFunction]
        body = await request.body()
        await store.upsert((thread, str(json.loads(body)["checkpoint_id"]), body))
        return Written(appended=1)

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    return app


def main() -> None:
    """Serve on a free port of loopback; the address is the first line on standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--embedder", default="minilm")
    options = parser.parse_args()
    config = uvicorn.Config(
        create_app(options.database_url, options.embedder),
        lifespan="on",
        ws="none",
        log_config=LOG_CONFIG,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    Server(config, options.database_url).run(sockets=[socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)])


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


async def _in(threads: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, function)


if __name__ == "__main__":
    main()
