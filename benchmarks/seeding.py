"""Stores of any size for the speed benchmark, filled in bulk with random text.

The service itself, in-process, stores the first users, so that their rows are real. Every further user is copied from
one of them in SQL, with new vectors. Vectors are random: their meaning does not matter for speed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, zip_longest
from typing import Any
from uuid import UUID, uuid4

import anyio
import numpy as np
from floor import POSTGRES_SCHEMA, SQLITE_SCHEMA
from pydantic import SecretStr
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Table,
    Text,
    case,
    cast,
    insert,
    literal,
    select,
    true,
)

from threefold.contract import SaveFactRequest, TurnIn, WriteRequest
from threefold_server.consolidation.worker import run_until_idle
from threefold_server.models.extractive import ExtractiveSummarizer
from threefold_server.models.hashing import HashEmbedder
from threefold_server.models.minilm import MiniLMEmbedder
from threefold_server.models.ports import Vectors
from threefold_server.operations.facts import save_fact
from threefold_server.operations.write import write_turns
from threefold_server.rules.access import Principal, Reach, owner_key, session_key
from threefold_server.service import Service
from threefold_server.settings import Settings
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.migrate import upgrade
from threefold_server.storage.engine.tables import digests, facts, owners, passages, postings, sessions, tasks, turns
from threefold_server.storage.engine.types import Key
from threefold_server.text.packaged import read_packaged

AGENT = "bench"
SESSION = "main"
FACTS, TURNS = 100, 80
"""Per user; turns and facts together are the memories that a recall searches."""

LONG_TURNS = 20_000
TURN_WORDS, FACT_WORDS, QUERY_WORDS = 48, 16, 12
"""Words of a turn, about 60 tokens."""

TEMPLATES = 10
EMBEDDERS = {"minilm": MiniLMEmbedder, "hash": HashEmbedder}

FLOOR_ROWS = (
    """INSERT INTO floor_turns (user_id, session_id, role, content)
    SELECT owners.name, sessions.session_id, turns.role, turns.content FROM turns
    JOIN sessions ON sessions.owner = turns.owner AND sessions.session = turns.session
    JOIN owners ON owners.owner = turns.owner ORDER BY turns.owner, turns.session, turns.seq""",
    """INSERT INTO floor_facts (user_id, text, vector) SELECT owners.name, facts.text, passages.vector FROM facts
    JOIN passages ON passages.pool = facts.owner AND passages.source = facts.fact
    JOIN owners ON owners.owner = facts.owner ORDER BY facts.owner""",
)

_CONTENT_WORD = re.compile("[a-z]{4,9}")
_FUNCTION_WORDS = "the a and of to in is it that was for on with as at by we you i they this but not so have do".split()


class Words:
    """A seeded source of text: 2,000 words of the embedder's vocabulary, a few common and most rare. As in English,
    every other word is a function word."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        known = filter(_CONTENT_WORD.fullmatch, read_packaged("vocab.txt").decode().split())
        self._words = random.Random(0).sample(list(known), k=2_000)
        self._weights = list(accumulate(1 / (rank + 20) for rank in range(len(self._words))))

    def text(self, words: int) -> str:
        """Return a text of a number of words."""
        content = self._random.choices(self._words, cum_weights=self._weights, k=-(-words // 2))
        between = self._random.choices(_FUNCTION_WORDS, k=words // 2)
        return " ".join(chain.from_iterable(zip_longest(content, between, fillvalue=""))).strip()

    def turns(self) -> list[TurnIn]:
        """Return a question and its answer, with ids like those of a client."""
        return [TurnIn(role=role, content=self.text(TURN_WORDS), id=uuid4().hex) for role in ("user", "assistant")]


class RandomEmbedder:
    """Random unit vectors, under the name of the embedder that the measured service uses."""

    def __init__(self, name: str) -> None:
        self.name, self.dimensions = EMBEDDERS[name].name, EMBEDDERS[name].dimensions
        self._random = np.random.default_rng(7)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return self.vectors(len(texts))

    def vectors(self, count: int) -> Vectors:
        """Return a number of random unit vectors."""
        drawn = self._random.standard_normal((count, self.dimensions), np.float32)
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    async def aclose(self) -> None: ...


def seed(url: str, embedder: str, users: int, long_sessions: int) -> None:
    """Fill a new database, including the tables of the floor.

    Users `u0`, `u1` ... have 100 facts and a session of 80 turns each, and `long0`, `long1` ... a session of 20,000
    turns each. Writers `w0`, `w1` ..., as many as users, have no turns yet.
    """
    upgrade(url)
    database, drawn = Database(url), RandomEmbedder(embedder)
    try:
        anyio.run(_serve, url, database, drawn)
        for number in range(TEMPLATES):
            names = [f"u{copy}" for copy in range(number + TEMPLATES, users, TEMPLATES)]
            database.write_sync("system", partial(_copy_user, template=f"u{number}", names=names, embedder=drawn))
        for number in range(long_sessions):
            database.write_sync("system", partial(_talk_long, name=f"long{number}"))
        for number in range(users):
            database.write_sync("system", partial(_copy, table=owners, name=f"w{number}"))
        database.write_sync("system", _fill_floor)
    finally:
        database.close()


async def _serve(url: str, database: Database, embedder: RandomEmbedder) -> None:
    """Store the facts and turns of the first users through the service."""
    service = Service(Settings(database_url=SecretStr(url)), database, embedder, ExtractiveSummarizer())
    words = Words(seed=1)
    for number in range(TEMPLATES):
        user = Principal(f"u{number}", AGENT, Reach.agent)
        for _ in range(FACTS):
            await save_fact(service, user, SaveFactRequest(text=words.text(FACT_WORDS)))
        for _ in range(TURNS // 2):
            await write_turns(service, user, WriteRequest(session_id=SESSION, turns=words.turns()))
    await run_until_idle(service)


def _copy_user(connection: Connection, template: str, names: Sequence[str], embedder: RandomEmbedder) -> None:
    """Copy the template's memory to every name, with new vectors."""
    columns = [column for column in passages.c if column is not passages.c.vector]
    chosen = select(*columns).where(passages.c.pool == owner_key("user", template))
    index = connection.execute(chosen).mappings().all()
    for name in names:
        for table in (owners, sessions, turns, digests, facts, tasks, postings):
            _copy(connection, table, name, template)
        keys = _keys(template, name)
        moved = [{column: keys.get(value, value) for column, value in row.items()} for row in index]
        vectors = embedder.vectors(len(moved))
        connection.execute(insert(passages), [{**row, "vector": v} for row, v in zip(moved, vectors, strict=True)])


def _talk_long(connection: Connection, name: str) -> None:
    """Create a session that repeats the template's, indexed, and digested except for the last turns."""
    times = LONG_TURNS // TURNS
    more = LONG_TURNS - TURNS
    again = select(literal(0).label("number")).cte("again", recursive=True)
    again = again.union_all(select(again.c.number + 1).where(again.c.number < times - 1))
    seq = turns.c.seq + again.c.number * TURNS
    _copy(connection, owners, name)
    _copy(
        connection,
        sessions,
        name,
        last_seq=sessions.c.last_seq + more,
        turns=sessions.c.turns + more,
        tokens=sessions.c.tokens * times,
        digested_tokens=sessions.c.tokens * times * times,  # far ahead, so that no fold becomes due
    )
    _copy(connection, turns, name, source=turns.join(again, true()), seq=seq, turn_id=cast(seq, Text))
    _copy(connection, digests, name, upto_seq=digests.c.upto_seq + more)
    _copy(connection, tasks, name, upto=tasks.c.upto + more)


def _copy(
    connection: Connection,
    table: Table,
    name: str,
    template: str = "u0",
    source: FromClause | None = None,
    **changed: ColumnElement[Any],
) -> None:
    """Copy the template's rows of a table to another owner, with the new owner's keys."""
    keys = _keys(template, name)
    if table is owners:
        changed["name"] = literal(name)
    values = [changed.get(column.name, _moved(column, keys)) for column in table.c]
    order = [value for column, value in zip(table.c, values, strict=True) if column.primary_key]
    chosen = select(*values).select_from(table if source is None else source).order_by(*order)
    chosen = chosen.where(next(iter(table.primary_key)) == owner_key("user", template))
    connection.execute(insert(table).from_select([column.name for column in table.c], chosen))


def _moved(column: Column[Any], keys: Mapping[UUID, UUID]) -> ColumnElement[Any]:
    if not isinstance(column.type, Key):
        return column
    return case(*((column == old, literal(new, Key)) for old, new in keys.items()), else_=column)


def _keys(template: str, name: str) -> dict[UUID, UUID]:
    """Map the keys of the template's owner and session to the new ones."""
    old, new = owner_key("user", template), owner_key("user", name)
    return {old: new, session_key(old, AGENT, SESSION): session_key(new, AGENT, SESSION)}


def _fill_floor(connection: Connection) -> None:
    """Copy turns and facts into the floor's tables."""
    schema = SQLITE_SCHEMA if connection.dialect.name == "sqlite" else POSTGRES_SCHEMA
    for statement in (*schema.split(";")[:-1], *FLOOR_ROWS):
        connection.exec_driver_sql(statement)
