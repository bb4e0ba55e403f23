"""Every operation against the reference model: user, agent, session, level, ceiling, visibility; on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import cycle, product
from typing import Any

import httpx
import pytest

from fixtures.keys import make_key
from isolation.model import SELF, Item, Reader
from threefold import MemoryClient
from threefold.contract import DeleteRunsRequest, PutCheckpointRequest, QueryCheckpointsRequest
from threefold.errors import Forbidden, InvalidRequest, NotFound
from threefold_server.local import LocalService
from threefold_server.rules.access import Reach

USERS = ("ana", "crew/a", SELF)
"""One user has the name of an agent, but is never the owner for that agent."""

AGENTS = ("crew/a", "crew/b")
SESSIONS = ("s1", "s2")
VISIBILITIES = ("session", "agent", "user")
TOOL = "web"
SOURCES = [("tool", TOOL), ("tool", "none"), *product(("agent",), (*AGENTS, "none")), *product(("session",), SESSIONS)]
CEILINGS_OF_STORES = {"user": ("session", "agent", "user"), "agent": ("session", "agent"), "session": ("session",)}
CEILINGS = ("session", "agent", "user")

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
READERS = [Reader(*who) for who in product(USERS, AGENTS, CEILINGS, (None, *SESSIONS))]


class PopulatedService:
    """A service in mode `keys` with one memory of each kind in every place, and the ids of the items."""

    def __init__(self, service: LocalService, database_url: str, stack: ExitStack) -> None:
        self._service = service
        self._url = database_url
        self._stack = stack
        self._clients: dict[tuple[str | None, str, str], MemoryClient] = {}
        self.ids: dict[str, Item] = {}
        self.believed: dict[str, Item] = {}
        self.experiments: dict[str, str] = {}
        """Belief -> its open experiment."""
        self.held: list[Item] = []
        """Items of a framework's store and threads, which have no visibility."""
        for user, agent in product(USERS, AGENTS):
            self._hold(self.client(Reader(user, agent, "user")), user, agent)
        for user, agent, session, visibility in product(USERS, AGENTS, (*SESSIONS, None), VISIBILITIES):
            if session is None and visibility == "session":
                continue  # refused, because no caller could read it
            self._fill(self.client(Reader(user, agent, "user")), user, agent, session, visibility)

    def client(self, reader: Reader) -> MemoryClient:
        """Return the client of a reader, with a key for its identity and ceiling."""
        who = (reader.user, reader.agent, reader.ceiling)
        if who not in self._clients:
            grants: dict[str, Any] = {"ceiling": Reach[reader.ceiling], "agent_value": reader.agent}
            grants |= {"user_grant": "self", "user_value": None} if reader.user is SELF else {"user_value": reader.user}
            client = self._service.client(api_key=make_key(self._url, **grants), timeout=60.0)
            self._clients[who] = self._stack.enter_context(client)
        return self._clients[who]

    def seen(self, reader: Reader, level: str | None) -> set[str]:
        return {key for key, item in self.ids.items() if reader.sees(item, level)}

    def _fill(self, client: MemoryClient, user: str | None, agent: str, session: str | None, visibility: Any) -> None:
        place = f"{user} {agent} {session} {visibility}"
        fact = client.save(f"kumquat fact of {place}", session_id=session, visibility=visibility)
        self.ids[fact.id] = Item("fact", user, agent, session, visibility)
        options: dict[str, Any] = {"session_id": session, "visibility": visibility, "kind": "assumption"}
        belief = client.beliefs.record(f"kumquat belief of {place}", **options)
        self.believed[belief.id] = Item("belief", user, agent, session, visibility)
        self.experiments[belief.id] = client.beliefs.open_experiment(belief.id).id
        if session is not None:
            tool = TOOL if visibility == "agent" else None
            turn = {"role": "tool" if tool else "user", "name": tool, "content": f"kumquat turn of {place}"}
            client.write(session, [turn | {"id": f"turn {place}"}], visibility=visibility)
            self.ids[f"turn {place}"] = Item("turn", user, agent, session, visibility, tool)

    def _hold(self, client: MemoryClient, user: str | None, agent: str) -> None:
        """Store an item, and a thread in each session whose checkpoint and run are named after their place."""
        put = {"op": "put", "namespace": ["likes", f"{user}"], "key": agent, "value": {"of": f"{user} {agent}"}}
        client.items_batch([{**put, "index": False}])
        self.held.append(Item("item", user, agent, None, "user"))
        for session in SESSIONS:
            request = PutCheckpointRequest(
                type="json", data=b"{}", checkpoint_id=f"{user} {agent} {session}", metadata='{"run_id": "run"}'
            )
            client.threads.put_checkpoint(session, request)
            self.held.append(Item("thread", user, agent, session, "user"))


@pytest.fixture
def populated(database_url: str) -> Iterator[PopulatedService]:
    settings: dict[str, Any] = {"mode": "keys", "max_read_level": "user"}
    with (
        LocalService(database_url=database_url, embedder="hash", **settings) as service,
        ExitStack() as stack,
    ):
        yield PopulatedService(service, database_url, stack)


def test_every_operation_agrees_with_the_model(populated: PopulatedService) -> None:
    """One populated service for all checks, because populating it takes longer than the checks."""
    for reader, level in product(READERS, (None, "session", "agent", "user", "store")):
        check_recall_and_list(populated, reader, level)
        check_list_of_beliefs(populated, reader, level)
    for reader in READERS:
        check_session_tiers(populated, reader)
    for reader in [reader for reader in READERS if reader.session is None]:
        check_by_id(populated, reader)
        check_beliefs_by_id(populated, reader)
        check_forget(populated, reader)
        check_forget_by_source(populated, reader)
        check_items(populated, reader)
        check_threads(populated, reader)


def check_recall_and_list(populated: PopulatedService, reader: Reader, level: Any) -> None:
    client = populated.client(reader)
    if reader.refused(level):
        with pytest.raises(InvalidRequest if level in (None, "session") else Forbidden):
            client.recall("kumquat", level=level, session_id=reader.session)
        with pytest.raises(InvalidRequest if level in (None, "session") else Forbidden):
            client.list(level=level, session_id=reader.session)
        return
    expected = populated.seen(reader, level)
    recalled = client.recall(
        "kumquat", level=level, session_id=reader.session, include=["long_term"], top_k=1_000, token_budget=100_000
    )
    assert {memory.id for memory in recalled.memories} == expected, (reader, level)
    listed = client.list(level=level, session_id=reader.session, limit=1_000).items
    assert {memory.id for memory in listed} == expected, (reader, level)
    shown = {populated.ids[key] for key in expected}
    for item in populated.ids.values():
        place = f"{item.user} {item.agent} {item.session} {item.visibility}"
        assert (f"{item.kind} of {place}" in recalled.block) == (item in shown)


def check_list_of_beliefs(populated: PopulatedService, reader: Reader, level: Any) -> None:
    client = populated.client(reader)
    if reader.refused(level):
        with pytest.raises(InvalidRequest if level in (None, "session") else Forbidden):
            client.beliefs.list(level=level, session_id=reader.session)
        return
    listed = {one.id for one in client.beliefs.list(level=level, session_id=reader.session, limit=1_000).beliefs}
    assert listed == {key for key, item in populated.believed.items() if reader.sees(item, level)}, (reader, level)
    then = datetime.now(UTC)
    earlier = client.beliefs.list(level=level, session_id=reader.session, limit=1_000, as_of=then).beliefs
    assert {one.id for one in earlier} == listed


def check_beliefs_by_id(populated: PopulatedService, reader: Reader) -> None:
    """Check that only a caller that manages a belief reads, changes, judges, erases or leans on it."""
    client = populated.client(reader)
    verbs: list[Callable[[str], object]] = [
        client.beliefs.get,
        client.beliefs.history,
        client.beliefs.dependents,
        client.beliefs.delete,
        lambda key: client.beliefs.update(key, 1, confidence=0.9),
        lambda key: client.beliefs.reverify(key, "planted"),
        client.beliefs.open_experiment,
        lambda key: client.beliefs.close_experiment(populated.experiments[key], "falsified", "planted"),
    ]
    for (key, item), verb in zip(populated.believed.items(), cycle(verbs), strict=False):
        if reader.manages(item):
            assert client.beliefs.get(key).statement.startswith("kumquat belief")
            continue
        with pytest.raises(NotFound, match="no such"):
            verb(key)
        with pytest.raises(InvalidRequest, match="no such belief"):
            client.beliefs.record("leaning", kind="assumption", support=[[key]])
    counts = client.forget(memory_ids=list(populated.believed), dry_run=True).counts
    assert counts["beliefs"] == sum(reader.manages(item) for item in populated.believed.values())
    for level in ("agent", "user"):
        if not reader.refused(level):
            erased = sum(reader.erases(item, level) for item in populated.believed.values())
            assert client.forget(level=level, dry_run=True).counts["beliefs"] == erased
    for session in SESSIONS:
        own = [item for item in populated.believed.values() if reader.erases(item, "agent") and item.session == session]
        assert client.forget(session_id=session, dry_run=True).counts["beliefs"] == len(own)


def check_session_tiers(populated: PopulatedService, reader: Reader) -> None:
    """Check that window, turns, sessions and status contain only the reader's own session, at every ceiling."""
    client = populated.client(reader)
    own = [item for item in populated.ids.values() if item.kind == "turn" and reader.erases(item, "agent")]
    if reader.ceiling == "session":
        with pytest.raises(Forbidden):
            client.sessions()
    else:
        assert {session.session_id for session in client.sessions().sessions} == {item.session for item in own}
    if reader.session is None:
        return
    said = {f"kumquat turn of {item.user} {item.agent} {item.session} {item.visibility}" for item in own}
    here = {text for text in said if f" {reader.session} " in text}
    recalled = client.recall("kumquat", session_id=reader.session, level="session", include=["short_term"])
    assert {turn.content for turn in recalled.window} == here, reader
    assert {turn.content for turn in client.turns(reader.session).turns} == here
    assert client.status(reader.session).last_seq == len(here)
    with pytest.raises(NotFound):
        client.turns("s-unknown")


def check_by_id(populated: PopulatedService, reader: Reader) -> None:
    client = populated.client(reader)
    verbs: list[Callable[[str], object]] = [
        client.get_fact,
        client.fact_history,
        client.restore_fact,
        client.delete_fact,
        lambda key: client.update_fact(key, text="planted"),
    ]
    facts = [(key, item) for key, item in populated.ids.items() if item.kind == "fact"]
    for (key, item), verb in zip(facts, cycle(verbs), strict=False):
        if reader.manages(item):
            assert client.update_fact(key, pinned=False).id == key
        else:
            with pytest.raises(NotFound, match="no such fact"):
                verb(key)


def check_forget(populated: PopulatedService, reader: Reader) -> None:
    client = populated.client(reader)
    counts = client.forget(memory_ids=list(populated.ids), dry_run=True).counts
    assert counts["facts"] == sum(reader.manages(item) for item in populated.ids.values() if item.kind == "fact")
    mine = [item for item in populated.ids.values() if item.kind == "turn" and reader.erases(item, reader.ceiling)]
    assert counts["turns"] == len(mine), reader
    for session in SESSIONS:
        counts = client.forget(session_id=session, dry_run=True).counts
        own = [item for item in populated.ids.values() if reader.erases(item, "agent") and item.session == session]
        assert counts["turns"] + counts["facts"] == len(own)
    for level in ("agent", "user"):
        if reader.refused(level):
            with pytest.raises(Forbidden):
                client.forget(level=level, dry_run=True)
            continue
        counts = client.forget(level=level, dry_run=True).counts
        assert counts["turns"] + counts["facts"] == sum(reader.erases(item, level) for item in populated.ids.values())
        held = [item for item in populated.held if reader.erases(item, level)]
        assert counts["items"] == sum(item.kind == "item" for item in held)
        assert counts["threads"] == sum(item.kind == "thread" for item in held)


def check_forget_by_source(populated: PopulatedService, reader: Reader) -> None:
    client = populated.client(reader)
    for (kind, name), since in product(SOURCES, (None, LONG_AGO)):
        selector: dict[str, Any] = {"source": {"kind": kind, "name": name}, "since": since}
        if not reader.may_forget_source(kind, name):
            for dry_run in (True, False):
                with pytest.raises(Forbidden):
                    client.forget(**selector, dry_run=dry_run)
            continue
        counts = client.forget(**selector, dry_run=True).counts
        gone = [item for item in populated.ids.values() if reader.erases_source(item, kind, name)]
        assert counts["turns"] + counts["facts"] == len(gone), (reader, kind, name, since)
        held = [item for item in populated.held if reader.erases_source(item, kind, name)]
        assert counts["items"] == sum(item.kind == "item" for item in held), (reader, kind, name, since)
        threads = 0 if since is not None else sum(item.kind == "thread" for item in held)
        assert counts["threads"] == threads, (reader, kind, name, since)


def check_items(populated: PopulatedService, reader: Reader) -> None:
    """Check items of both scopes. They have no session, so ceiling `session` reads and writes none."""
    client = populated.client(reader)
    place: dict[str, Any] = {"namespace": ["likes", f"{reader.user}"], "key": reader.agent}
    reads: list[dict[str, Any]] = [
        {"op": "get", **place},
        {"op": "search", "prefix": []},
        {"op": "search", "prefix": [], "filter": {"of": f"{reader.user} {reader.agent}"}},
        {"op": "list_namespaces"},
    ]
    writes: list[dict[str, Any]] = [{"op": "put", **place, "value": {}, "index": False}, {"op": "delete", **place}]
    scopes: tuple[Any, ...] = ("user", "agent")
    if not reader.spans():
        for op, scope in product((*reads, *writes), scopes):
            with pytest.raises(Forbidden):
                client.items_batch([op], scope=scope)
        return
    own = {f"{item.user} {item.agent}" for item in populated.held if item.kind == "item" and reader.holds(item)}
    one, *found, named = client.items_batch(reads).results
    assert one.item is not None
    assert {item.value["of"] for item in [one.item, *found[0].items, *found[1].items]} == own
    assert named.namespaces == [place["namespace"]]
    others = [{"op": "get", "namespace": ["likes", f"{item.user}"], "key": item.agent} for item in populated.held]
    mine = [item for item in populated.held if reader.holds(item)]
    results = client.items_batch(others).results
    assert sum(result.item is not None for result in results) == len(mine)
    for_all = client.items_batch(reads, scope="agent").results
    assert all(result.item is None and not result.items and not result.namespaces for result in for_all)


def check_threads(populated: PopulatedService, reader: Reader) -> None:
    """Check that a named thread is readable like its session, and that listing threads is across sessions."""
    threads = populated.client(reader).threads
    own = {
        item.session: f"{item.user} {item.agent} {item.session}" for item in populated.held if thread_of(reader, item)
    }
    for session in SESSIONS:
        [found] = threads.query(QueryCheckpointsRequest(thread_id=session)).checkpoints
        assert (found.thread_id, found.checkpoint_id) == (session, own[session])
    every: list[dict[str, Any]] = [{}, {"ns": ""}, {"checkpoint_id": own["s1"]}, {"filter": {"run_id": "run"}}]
    for_all: list[dict[str, Any]] = [{"scope": "agent"}, {"scope": "agent", "thread_id": "s1"}]
    if not reader.spans():
        for asked in [*every, *for_all]:
            with pytest.raises(Forbidden):
                threads.query(QueryCheckpointsRequest(**asked))
        with pytest.raises(Forbidden):
            threads.delete_runs(DeleteRunsRequest(run_ids=["run"]))
        return
    listed = [
        {one.checkpoint_id for one in threads.query(QueryCheckpointsRequest(**asked)).checkpoints} for asked in every
    ]
    assert listed == [{*own.values()}, {*own.values()}, {own["s1"]}, {*own.values()}]
    for asked in for_all:
        assert threads.query(QueryCheckpointsRequest(**asked)).checkpoints == []


def thread_of(reader: Reader, item: Item) -> bool:
    return item.kind == "thread" and reader.holds(item)


def test_shared_facts_are_read_on_request_and_erased_by_their_writer(database_url: str) -> None:
    """Shared facts are returned only on request, marked as shared with their writer, and erased by their writer
    only."""
    settings: dict[str, Any] = {"mode": "keys", "max_read_level": "user", "embedder": "hash"}
    grants = [dict(zip(("user_value", "agent_value"), who, strict=True)) for who in product(("ana", "bob"), AGENTS)]
    with LocalService(database_url=database_url, **settings) as service, ExitStack() as stack:
        clients: list[MemoryClient] = []
        for grant in grants:
            key = make_key(database_url, **grant, may_share=True)
            clients.append(stack.enter_context(service.client(api_key=key, timeout=60.0)))
        for number, client in enumerate(clients):
            client.save(f"kumquat for all {number}", shared=True)
            client.save(f"kumquat of my own {number}")
        everything = {f"kumquat for all {number}" for number in range(len(clients))}
        for client in clients:
            assert everything.isdisjoint(item.text for item in client.list().items if item.agent not in AGENTS)
            shared = client.list(include=["shared"]).items
            assert {item.text for item in shared} == everything
            assert {item.user for item in shared} == {"ana", "bob"}
            assert all(item.shared and item.session_id is None for item in shared)
            recalled = client.recall("kumquat", include=["shared"], top_k=100)
            assert {memory.text for memory in recalled.memories} == everything
        clients[0].forget(level="agent")
        assert {item.text for item in clients[-1].list(include=["shared"]).items} == everything - {"kumquat for all 0"}
        for fact in clients[-1].list(include=["shared"]).items:
            if fact.user != "bob":
                with pytest.raises(NotFound):
                    clients[-1].delete_fact(fact.id)


def test_lower_ceiling_of_the_store_applies_to_existing_keys(database_url: str) -> None:
    key = make_key(database_url, ceiling=Reach.user)
    for store, readable in CEILINGS_OF_STORES.items():
        settings: dict[str, Any] = {"mode": "keys", "max_read_level": store, "embedder": "hash"}
        with LocalService(database_url=database_url, **settings) as service, service.client(api_key=key) as client:
            assert client.whoami().ceiling == store
            for level in ("session", "agent", "user", "store"):
                if level in readable:
                    client.recall("kumquat", level=level, session_id="s1")
                    client.list(level=level, session_id="s1")
                    continue
                for refused in (client.recall, client.list):
                    arguments: tuple[str, ...] = ("kumquat",) if refused == client.recall else ()
                    with pytest.raises(Forbidden):
                        refused(*arguments, level=level, session_id="s1")  # pyright: ignore[reportArgumentType, reportCallIssue]


THREADS = "/v1/threads/{thread_id}"
VALUE = {"type": "json", "data": "e30="}
WRITE = {"checkpoint_id": "c1", "task_id": "task", "writes": [{**VALUE, "idx": 0, "channel": "c"}]}
BODIES: dict[str, Any] = {
    "/v1/facts/{fact_id}": {"text": "planted"},
    "/v1/beliefs/{belief_id}": {"revision": 1, "statement": "planted"},
    "/v1/beliefs/{belief_id}/reverify": {"reason": "planted"},
    "/v1/experiments/{experiment_id}/close": {"verdict": "falsified", "justification": "planted"},
    f"{THREADS}/checkpoints": {**VALUE, "checkpoint_id": "c1"},
    f"{THREADS}/writes": WRITE,
    f"{THREADS}/history": {"channels": ["c"]},
    f"{THREADS}/copy": {"target": "copy"},
}


def test_id_of_another_user_is_answered_like_an_unknown_one(service: LocalService) -> None:
    """The status and body are equal for every route of the OpenAPI document with an id. The id of a turn is a fact
    id."""
    with service.client(user="bob", agent="support") as bob:
        bob.write("bobs", [{"role": "user", "content": "bob's kumquat", "id": "bobs-turn"}])
        bob.threads.put_checkpoint("bobs", PutCheckpointRequest(type="json", data=b"[1]", checkpoint_id="c1"))
        belief = bob.beliefs.record("bob's kumquat", kind="assumption")
        experiment = bob.beliefs.open_experiment(belief.id)
        theirs = {"fact_id": bob.save("bob's kumquat").id, "session_id": "bobs", "thread_id": "bobs", "version": "1"}
        theirs |= {"belief_id": belief.id, "experiment_id": experiment.id}
    unknown = {"fact_id": "0123456789abcdef0123456789abcdef", "session_id": "none", "thread_id": "none", "version": "1"}
    unknown |= {"belief_id": unknown["fact_id"], "experiment_id": unknown["fact_id"]}
    pairs = [(theirs, unknown), (theirs | {"fact_id": "bobs-turn"}, unknown | {"fact_id": "no-turn"})]
    headers = {"X-Threefold-User": "ana", "X-Threefold-Agent": "support"}
    with httpx.Client(base_url="http://threefold.local", transport=service.transport(), headers=headers) as client:
        paths: dict[str, Any] = client.get("/openapi.json").json()["paths"]
        asked = [path for path in paths if "{" in path and not path.startswith("/v1/admin/")]
        routes = [(method.upper(), path) for path in asked for method in paths[path]]
        assert len(routes) > 15
        for (method, path), (ids, others) in product(routes, pairs):
            body = None if method in {"GET", "DELETE"} else BODIES.get(path)
            one, other = (client.request(method, path.format(**names), json=body) for names in (ids, others))
            assert (one.status_code, one.content) == (other.status_code, other.content), path
            assert one.status_code == 404 or (path.startswith(THREADS) and one.status_code == 200), path
    with service.client(user="bob", agent="support") as bob:
        assert len(bob.list().items) == 2
        [kept] = bob.threads.query(QueryCheckpointsRequest()).checkpoints
        assert (kept.thread_id, kept.data, kept.writes) == ("bobs", b"[1]", [])
