"""Row-level security for every statement on Postgres: statements of one user return nothing for another.

Each statement of all operations is recorded, then run again without a scope and in the scope of another user.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple, cast
from uuid import UUID

import psycopg
import pytest

import threefold_server.storage
from fixtures.openai_server import OpenAIServer, chat_reply
from fixtures.sample_memory import MARKS, answers, fill_memory
from threefold import MemoryClient
from threefold.contract import (
    ChannelHistoryRequest,
    CopyThreadRequest,
    DeleteRunsRequest,
    ForgetSource,
    PruneThreadsRequest,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
)
from threefold_server.local import LocalService
from threefold_server.rules.access import owner_key
from threefold_server.storage.engine.tables import TENANT_TABLES

ANA, BOB = owner_key("user", "ana"), owner_key("user", "bob")
TENANT = re.compile(rf"\b({'|'.join(table.name for table in TENANT_TABLES)})\b")

SET_SCOPE = "SELECT set_config('threefold.owner', %(owner)s, true), set_config('threefold.system', '', true)"

CROSS_OWNERS = {"system", "system_audit", "system_owners", "system_rename", "archive", "audit", "transfer"}
"""Modules for system work, which other tests cover, and for administrators."""
WITHOUT_OWNERS = {
    *("database", "erased_ids", "forget_records", "group_commit", "keys", "log_files", "migrate", "prepared"),
    *("purge", "row_security"),
    *("pseudonyms", "statistics", "store_secrets", "upgrade"),
}
"""Modules whose functions read no memory, or are used by other modules."""


WHEN_SOMETHING_FAILS = {
    *("tasks.extend", "tasks.failed_attempts", "tasks.park", "tasks.postpone", "tasks.retry_later"),
    *("tasks.release", "tasks.restart"),
    *("index.discard", "items.renew_ttl", "erase.refuse_late_checkpoint"),
    "revisions.add_version",
}
"""Functions for failures and long waits of workers in the scope of the owner, for items and threads deleted during a
request, and for a fact that replaces another, which is an insert and an update."""


class Statement(NamedTuple):
    """A statement sent to the database, and the owner in its scope."""

    scope: str
    sql: str
    values: Any


def storage_modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(threefold_server.storage.__path__, "threefold_server.storage."):
        if not found.ispkg and ".migrations." not in found.name:
            yield importlib.import_module(found.name)


def storage_functions() -> dict[str, Callable[..., Any]]:
    """Return every public function that works for one owner on a connection."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": function
        for module in storage_modules()
        if module.__name__.rpartition(".")[2] not in CROSS_OWNERS | WITHOUT_OWNERS
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and next(iter(inspect.signature(function).parameters), None) == "connection"
    }


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the storage functions that were called."""
    names: set[str] = set()
    importlib.import_module("threefold_server.app")
    importlib.import_module("threefold_server.operations.archive")

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            names.add(name)
            return function(*args, **kwargs)

        return noted

    for name, function in storage_functions().items():
        for module in [module for key, module in sys.modules.items() if key.startswith("threefold_server")]:
            for attribute, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, attribute, noting(name, function))
    return names


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    """Every statement of any connection, with the owner in its scope."""
    sent: list[Statement] = []
    scopes: dict[int, str] = {}

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
            sql = str(query)
            if isinstance(params, dict) and {"owner", "system"} <= params.keys():  # begins a transaction
                scopes[id(self.connection)] = params["owner"]
            sent.append(Statement(scopes.get(id(self.connection), ""), sql, params))
            return original(self, query, params, **options)

        return execute

    for cursor in (psycopg.Cursor, psycopg.ServerCursor):
        monkeypatch.setattr(cursor, "execute", recording(cursor.execute))
    return sent


SETTINGS: dict[str, Any] = {
    **MARKS,
    "embedder": "hash",
    "allow_user_level": True,
    "max_turns_per_user": 1_000,
    "max_facts_per_user": 1_000,
}


def use_items_and_threads(memory: MemoryClient) -> None:
    memory.items_batch(
        [
            {"op": "search", "prefix": [], "query": "quince"},
            {"op": "search", "prefix": ["likes"]},
            {"op": "list_namespaces"},
        ]
    )
    memory.threads.query(QueryCheckpointsRequest(thread_id="s1"))
    memory.threads.history("s1", ChannelHistoryRequest(channels=["c"]))
    memory.threads.copy("s1", CopyThreadRequest(target="s8"))
    memory.threads.put_checkpoint(
        "s8", PutCheckpointRequest(type="json", data=b"{}", checkpoint_id="2", metadata='{"run_id": "r"}', keep_last=1)
    )
    memory.threads.put_writes("s8", PutWritesRequest(checkpoint_id="2", task_id="t", writes=[]))
    memory.threads.prune(PruneThreadsRequest(thread_ids=["s8"]))
    memory.threads.delete_runs(DeleteRunsRequest(run_ids=["r"]))
    memory.threads.delete("s8")
    memory.threads.put_writes("s8", PutWritesRequest(checkpoint_id="2", task_id="t", writes=[]))


def use_beliefs(memory: MemoryClient) -> None:
    belief = memory.beliefs.record("to be forgotten", kind="assumption")
    memory.beliefs.record("leaning", kind="assumption", support=[[belief.id]])
    memory.beliefs.update(belief.id, 1, confidence=0.9)
    memory.beliefs.list(as_of=datetime.now(UTC), verdict="pending", standing="supported", limit=1)
    memory.beliefs.list(cursor=memory.beliefs.list(limit=1).next_cursor)
    memory.beliefs.delete(belief.id)


def use_facts_by_a_model(memory: MemoryClient, model: OpenAIServer) -> None:
    """Extract a new fact, extract it again from another session, then forget the first session."""
    for session in ("m1", "m2"):
        fact = {"text": "Ana lives in Oslo.", "sources": [1], "attributed_to": "user"}
        model.script(chat_reply(json.dumps({"memory": [fact]})))
        memory.write(session, [{"role": "user", "content": "I live in Oslo."}], state="{}")
        status = memory.end(session, wait=60)
        assert (status.state, status.extracted_upto) == ("idle", 1), status.reason
    for _ in range(2):  # only turns, into a new session and into an existing one
        memory.write("m3", [{"role": "user", "content": "Hello."}])
    memory.state("m1")
    memory.recall("Oslo", as_of=datetime.now(UTC))
    memory.forget(session_id="m1")


def use_every_verb(memory: MemoryClient) -> None:
    fill_memory(memory, shared=False)  # shared facts are readable by all
    answers(memory)
    use_items_and_threads(memory)
    use_beliefs(memory)
    memory.write("s4", [{"role": "assistant", "content": f"Step {number} is done."} for number in range(210)])
    memory.recall("step", session_id="s4")  # the newest user turn is looked for beyond the first page
    memory.recall("step", session_id="s4", token_budget=20_000)  # the first page does not fill it
    memory.sessions(limit=1)
    memory.list(order="access_count", level="user")
    memory.digest("s2", 1)
    memory.status("s2")
    memory.end("s2")
    [fact, *_] = memory.list(kinds=["fact"]).items
    memory.restore_fact(memory.update_fact(fact.id, text="told otherwise").id)
    memory.delete_fact(fact.id)
    for selector in (
        {"source": ForgetSource(kind="tool", name="web")},
        {"source": ForgetSource(kind="agent", name="support")},
        {"session_id": "s3"},
        {"level": "user"},
    ):
        memory.forget(**selector, dry_run=True)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def used(
    postgres_url: str, called: set[str], statements: list[Statement], openai_server: OpenAIServer
) -> list[Statement]:
    """The statements of one user who has used every operation; the memory still exists."""
    model: dict[str, Any] = {"model": "scripted", "model_base_url": openai_server.url, "model_api_key": "key"}
    budget: dict[str, Any] = {"model_tokens_per_user_day": 1_000_000, "max_turns_per_user": None}
    with (
        LocalService(database_url=postgres_url, **SETTINGS | model | budget, rolling_summary=False) as service,
        service.client(user="ana", agent="drawn", timeout=60.0) as memory,
    ):
        use_facts_by_a_model(memory, openai_server)
    with (
        LocalService(database_url=postgres_url, **SETTINGS) as service,
        service.client(user="ana", agent="support", timeout=60.0) as memory,
    ):
        use_every_verb(memory)
    with (
        LocalService(database_url=postgres_url, **SETTINGS, index_cache_mb=0) as service,
        service.client(user="ana", agent="support", timeout=60.0) as memory,
    ):
        memory.recall("Oslo", include=["long_term", "shared"])  # searched in the database
    return [one for one in statements if one.scope == str(ANA) and TENANT.search(one.sql)]


def test_every_storage_function_is_used(used: list[Statement], called: set[str]) -> None:
    """A new function must be reached by `use_every_verb`, or be listed here with a reason."""
    assert used
    assert len(storage_functions()) > 80
    assert sorted(storage_functions().keys() - called - WHEN_SOMETHING_FAILS) == []


def run_as(connection: psycopg.Connection[Any], scope: UUID | None, statement: Statement) -> list[Any]:
    """Return the rows that the statement returns or changes, rolled back; none if it is refused."""
    with connection.transaction(force_rollback=True):
        connection.execute(SET_SCOPE, {"owner": "" if scope is None else str(scope)})
        try:
            with connection.transaction():
                cursor = connection.execute(cast("Any", statement.sql), statement.values)
        except psycopg.Error:
            return []
        if cursor.description is None:
            return [cursor.statusmessage] * cursor.rowcount
        return [row for row in cursor.fetchall() if any(row)]


def test_no_statement_returns_rows_of_another_owner(used: list[Statement], postgres_url: str) -> None:
    assert len({statement.sql for statement in used}) > 80
    with psycopg.connect(postgres_url) as connection:
        for scope in (None, BOB):
            for statement in used:
                found = run_as(connection, scope, statement)
                assert found == [], (scope, statement.sql)
