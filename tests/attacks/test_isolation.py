"""A key that may read one session tries to erase and to list the memory of other sessions, agents and users."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from fixtures.keys import make_key
from threefold import MemoryClient
from threefold.contract import (
    CopyThreadRequest,
    DeleteRunsRequest,
    ForgetSource,
    PruneThreadsRequest,
    PutCheckpointRequest,
    QueryCheckpointsRequest,
)
from threefold.errors import Forbidden
from threefold_server.local import LocalService
from threefold_server.rules.access import Reach

ITEM: dict[str, Any] = {"namespace": ["profile"], "key": "card"}
SWEEPS: list[dict[str, Any]] = [
    {"source": {"kind": "agent", "name": "support"}},
    {"source": {"kind": "agent", "name": "billing"}},
    {"source": {"kind": "tool", "name": "web"}},
    {"source": {"kind": "tool", "name": "web"}, "since": "2020-01-01T00:00:00Z"},
    {"level": "agent"},
    {"level": "user"},
]
ITEM_SWEEPS: list[dict[str, Any]] = [
    {"op": "search", "prefix": []},
    {"op": "list_namespaces"},
    {"op": "delete", **ITEM},
]
THREAD_SWEEPS: list[dict[str, Any]] = [
    {},
    {"ns": ""},
    {"checkpoint_id": "theirs"},
    {"before": "z"},
    {"filter": {"run_id": "run"}},
]


def fill(client: MemoryClient, session: str) -> None:
    """Store an entry of every kind in one session."""
    said = {"role": "user", "content": f"the heron of {session}", "id": f"{session}-said"}
    found = {"role": "tool", "name": "web", "content": f"the page of {session}", "id": f"{session}-page"}
    client.write(session, [said, found])
    client.save(f"the fact of {session}", session_id=session)
    request = PutCheckpointRequest(
        type="json", data=session.encode(), checkpoint_id=session, metadata='{"run_id": "run"}'
    )
    client.threads.put_checkpoint(session, request)


def held(client: MemoryClient) -> list[Any]:
    """Return all data of the user with this agent, for comparison."""
    return [
        sorted(memory.text for memory in client.list(level="user").items),
        client.items_batch([{"op": "get", **ITEM}]),
        client.threads.query(QueryCheckpointsRequest()),
        client.sessions(),
    ]


@pytest.fixture
def keys(database_url: str) -> dict[str, str]:
    grants: dict[str, dict[str, Any]] = {"narrow": {"ceiling": Reach.session}, "wide": {"ceiling": Reach.user}}
    grants["billing"] = grants["wide"] | {"agent_value": "billing"}
    return {name: make_key(database_url, **grant) for name, grant in grants.items()}


def test_key_of_one_session_cannot_erase_or_list_others(database_url: str, keys: dict[str, str]) -> None:
    with (
        LocalService(database_url=database_url, mode="keys", embedder="hash", max_read_level="user") as service,
        ExitStack() as stack,
    ):
        narrow, wide, billing = (
            stack.enter_context(service.client(api_key=keys[name], timeout=60.0))
            for name in ("narrow", "wide", "billing")
        )
        for client, session in ((wide, "mine"), (wide, "theirs"), (billing, "invoices")):
            fill(client, session)
        wide.items_batch([{"op": "put", **ITEM, "value": {"n": 1}, "index": False}])
        before = held(wide), held(billing)
        for selector in SWEEPS:
            with pytest.raises(Forbidden):
                narrow.forget(**selector)
        for op in ITEM_SWEEPS:
            with pytest.raises(Forbidden):
                narrow.items_batch([op])
        threads = narrow.threads
        for asked in THREAD_SWEEPS:
            with pytest.raises(Forbidden):
                threads.query(QueryCheckpointsRequest(**asked))
        with pytest.raises(Forbidden):
            threads.delete_runs(DeleteRunsRequest(run_ids=["run"]))
        with pytest.raises(Forbidden):
            threads.prune(PruneThreadsRequest(thread_ids=["theirs"], strategy="delete", scope="agent"))
        assert threads.copy("invoices", CopyThreadRequest(target="mine")).checkpoints == 0
        assert (held(wide), held(billing)) == before


def test_ceiling_agent_does_not_reach_other_agents_of_the_user(database_url: str, keys: dict[str, str]) -> None:
    agent = make_key(database_url, ceiling=Reach.agent)
    with (
        LocalService(database_url=database_url, mode="keys", embedder="hash", max_read_level="user") as service,
        service.client(api_key=agent, timeout=60.0) as caller,
        service.client(api_key=keys["billing"], timeout=60.0) as billing,
    ):
        fill(billing, "invoices")
        before = held(billing)
        with pytest.raises(Forbidden):
            caller.forget(source=ForgetSource(kind="agent", name="billing"))
        assert caller.forget(source=ForgetSource(kind="tool", name="web")).counts["turns"] == 0
        assert caller.forget(source=ForgetSource(kind="session", name="invoices")).counts["turns"] == 0
        assert caller.threads.query(QueryCheckpointsRequest()).checkpoints == []
        assert caller.threads.delete_runs(DeleteRunsRequest(run_ids=["run"])).checkpoints == 0
        assert held(billing) == before
