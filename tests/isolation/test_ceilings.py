"""The limit of each route: every operation of the contract is called with a key whose ceiling is `session`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fixtures.keys import make_key
from threefold_server.local import LocalService
from threefold_server.rules.access import Reach

VALUE = {"type": "json", "data": "e30="}
THREAD = "/v1/threads/{thread_id}"
SESSION = "/v1/sessions/{session_id}"
FACT = "/v1/facts/{fact_id}"
ITEM: dict[str, Any] = {"namespace": ["n"], "key": "k"}
OPS: list[dict[str, Any]] = [
    {"op": "get", **ITEM},
    {"op": "search", "prefix": []},
    {"op": "put", **ITEM, "value": {}},
    {"op": "delete", **ITEM},
    {"op": "list_namespaces"},
]
FOR_ALL = {"scope": "agent"}

BELIEF = "/v1/beliefs/{belief_id}"
NO_ID = "0" * 32

NAMED: dict[str, list[Any]] = {
    "POST /v1/write": [{"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]}],
    "POST /v1/recall": [{"query": "q", "session_id": "s1"}, {"query": "q", "session_id": "s1", "level": "session"}],
    "POST /v1/list": [{"session_id": "s1"}, {"session_id": "s1", "level": "session"}],
    "POST /v1/forget": [
        {"session_id": "s9"},
        {"source": {"kind": "session", "name": "s9"}},
        {"memory_ids": ["0" * 32]},
        {"memory_ids": ["0" * 32], "sources": True, "in_session": "s9"},
    ],
    "POST /v1/facts": [{"text": "a fact"}],
    f"GET {FACT}": [None],
    f"PATCH {FACT}": [{"pinned": False}],
    f"GET {FACT}/history": [None],
    f"POST {FACT}/restore": [None],
    f"GET {SESSION}/state": [None],
    f"GET {SESSION}/turns": [None],
    f"GET {SESSION}/digests": [None],
    f"GET {SESSION}/digests/{{version}}": [None],
    f"GET {SESSION}/status": [None],
    f"POST {SESSION}/end": [None],
    "POST /v1/threads/query": [{"thread_id": "s1"}],
    "POST /v1/threads/prune": [{"thread_ids": ["s1"]}, {"thread_ids": ["s8"], "strategy": "delete"}],
    f"POST {THREAD}/checkpoints": [{**VALUE, "checkpoint_id": "c"}],
    f"POST {THREAD}/writes": [{"checkpoint_id": "c", "task_id": "t", "writes": []}],
    f"POST {THREAD}/history": [{"channels": ["c"]}],
    f"POST {THREAD}/copy": [{"target": "s8"}],
    f"DELETE {THREAD}": [None],
    f"DELETE {FACT}": [None],
    "GET /v1/whoami": [None],
    "POST /v1/beliefs": [{"statement": "a belief", "kind": "assumption", "session_id": "s1"}],
    "GET /v1/beliefs?session_id=s1": [None],
    f"GET {BELIEF}": [None],
    f"PATCH {BELIEF}": [{"revision": 1, "confidence": 0.5}],
    f"DELETE {BELIEF}": [None],
    f"GET {BELIEF}/history": [None],
    f"GET {BELIEF}/dependents": [None],
    f"POST {BELIEF}/reverify": [{"reason": "the network changed"}],
    "POST /v1/experiments": [{"belief_id": "0" * 32}],
    "POST /v1/experiments/{experiment_id}/close": [{"verdict": "confirmed", "justification": "it held"}],
}
"""Requests that name a session, thread or memory: allowed at every ceiling."""

ACROSS: dict[str, list[Any]] = {
    "POST /v1/recall": [{"query": "q", "level": level} for level in ("agent", "user", "store")],
    "POST /v1/list": [{"level": level} for level in ("agent", "user", "store")],
    "POST /v1/forget": [
        *({"level": level} for level in ("agent", "user", "store")),
        *({"source": {"kind": "agent", "name": name}} for name in ("support", "other")),
        *({"source": {"kind": "tool", "name": "web"}, "dry_run": dry_run} for dry_run in (False, True)),
        {"source": {"kind": "tool", "name": "web"}, "since": "2020-01-01T00:00:00Z"},
        {"memory_ids": ["0" * 32], "sources": True},
    ],
    f"DELETE {FACT}?sources=1": [None],
    "GET /v1/sessions": [None],
    "GET /v1/sessions?state=1": [None],
    "POST /v1/items/batch": [{"scope": scope, "ops": [op]} for scope in ("user", "agent") for op in OPS],
    "POST /v1/threads/query": [{}, {"ns": ""}, {"checkpoint_id": "c"}, {"thread_id": "s1", **FOR_ALL}, FOR_ALL],
    "POST /v1/threads/prune": [{"thread_ids": ["s1"], "strategy": how, **FOR_ALL} for how in ("delete", "keep_latest")],
    "POST /v1/threads/delete_runs": [{"run_ids": ["r"]}, {"run_ids": ["r"], **FOR_ALL}],
    f"POST {THREAD}/checkpoints": [{**VALUE, "checkpoint_id": "c", **FOR_ALL}],
    f"POST {THREAD}/writes": [{"checkpoint_id": "c", "task_id": "t", "writes": [], **FOR_ALL}],
    f"POST {THREAD}/history": [{"channels": ["c"], **FOR_ALL}],
    f"POST {THREAD}/copy": [{"target": "s8", **FOR_ALL}],
    f"DELETE {THREAD}?scope=agent": [None],
    "GET /v1/beliefs?level=agent": [None],
    "GET /v1/beliefs?level=user": [None],
    "GET /v1/beliefs?level=store": [None],
}
"""Requests across sessions, or for data without a session: refused below ceiling `agent`."""

WITHOUT_IDENTITY = {"GET /healthz", "GET /readyz", "GET /metrics"}


@pytest.fixture
def narrow(database_url: str) -> Iterator[httpx.Client]:
    """A caller with ceiling `session`, and a turn in session `s1`."""
    headers = {"Authorization": f"Bearer {make_key(database_url, ceiling=Reach.session)}"}
    url = "http://threefold.local"
    with (
        LocalService(database_url=database_url, mode="keys", embedder="hash", max_read_level="user") as service,
        httpx.Client(base_url=url, transport=service.transport(), headers=headers, timeout=60.0) as client,
    ):
        turn = {"role": "user", "content": "hello", "id": "t"}
        assert client.post("/v1/write", json={"session_id": "s1", "turns": [turn]}).is_success
        yield client


def send(client: httpx.Client, route: str, body: Any) -> httpx.Response:
    method, path = route.split(" ", 1)
    names = {
        "session_id": "s1",
        "thread_id": "s7",
        "fact_id": NO_ID,
        "belief_id": NO_ID,
        "experiment_id": NO_ID,
        "version": "1",
    }
    return client.request(method, path.format(**names), json=body)


def test_every_route_is_limited_by_the_ceiling(narrow: httpx.Client) -> None:
    """A new route must be listed here with the requests that its ceiling allows and refuses."""
    paths: dict[str, Any] = narrow.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
    open_to_callers = {route for route in routes if "/v1/admin/" not in route} - WITHOUT_IDENTITY
    listed = {route.partition("?")[0] for route in (*NAMED, *ACROSS)}
    assert open_to_callers == listed
    for route, bodies in NAMED.items():
        for body in bodies:
            answer = send(narrow, route, body)
            assert answer.is_success or answer.status_code == 404, (route, body, answer.text)
    for route, bodies in ACROSS.items():
        for body in bodies:
            answer = send(narrow, route, body)
            assert answer.status_code == 403, (route, body, answer.text)
    for route in routes - open_to_callers - WITHOUT_IDENTITY:
        answer = send(narrow, route.replace("{key_id}", "k"), None)
        assert answer.status_code == 403, (route, answer.text)


def test_sources_of_a_fact_are_erased_only_in_the_named_session(narrow: httpx.Client) -> None:
    selector = {"memory_ids": ["t"], "sources": True, "in_session": "s2", "dry_run": True}
    assert send(narrow, "POST /v1/forget", selector).json()["counts"]["turns"] == 0
    here = send(narrow, "POST /v1/forget", {**selector, "in_session": "s1"})
    assert here.json()["counts"]["turns"] == 1
