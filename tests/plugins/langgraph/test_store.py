"""`ThreefoldStore` as a store of LangGraph: the same tests on `InMemoryStore`, and the documented differences."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from plugins.langgraph.conftest import Line, opened
from threefold import CircuitOpen, InvalidRequest, Unreachable
from threefold_langgraph import ThreefoldStore
from threefold_server.models.hashing import HashEmbedder

NS = ("notes", "ana")


def embed(texts: Any) -> list[list[float]]:
    """Embed with the embedder of the service, for the store in memory."""
    return asyncio.run(HashEmbedder().embed(list(texts))).tolist()


@pytest.fixture
def ours(line: Line) -> ThreefoldStore:
    """Our store for user `ana`, used outside of a run."""
    return ThreefoldStore(line.connection(user="ana"))


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def store(request: pytest.FixtureRequest) -> Iterator[BaseStore]:
    """Each store in turn."""
    if request.param == "memory":
        yield InMemoryStore(index={"dims": HashEmbedder.dimensions, "embed": embed, "fields": ["$"]})
    else:
        with opened(request.getfixturevalue(f"{request.param}_url")) as line:
            yield ThreefoldStore(line.connection(user="ana"))


@pytest.fixture(params=["sync", "async"])
def batch(request: pytest.FixtureRequest, store: BaseStore) -> Callable[[list[Op]], list[Any]]:
    """The sync and the async batch method."""
    if request.param == "sync":
        return store.batch
    return lambda ops: asyncio.run(store.abatch(ops))


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def test_batch_returns_results_in_order_and_reads_before_it_writes(batch: Callable[[list[Op]], list[Any]]) -> None:
    assert batch([PutOp(NS, "a", {"n": 1}), PutOp(("other",), "b", {"n": 2})]) == [None, None]
    found = batch(
        [
            PutOp(NS, "a", {"n": 9}),
            GetOp(NS, "a"),
            SearchOp(("notes",)),
            ListNamespacesOp(),
            GetOp(NS, "missing"),
            PutOp(NS, "a", {"n": 10}),
        ]
    )
    assert found[0] is None
    assert (found[1].value, found[1].key, found[1].namespace) == ({"n": 1}, "a", NS)
    assert [item.value for item in found[2]] == [{"n": 1}]
    assert found[3] == [NS, ("other",)]
    assert found[4:] == [None, None]
    [after] = batch([GetOp(NS, "a")])
    assert after.value == {"n": 10}
    assert batch([PutOp(NS, "a", None), PutOp(NS, "never there", None)]) == [None, None]
    assert batch([GetOp(NS, "a")]) == [None]
    assert batch([]) == []


def test_batch_accepts_any_iterable(store: BaseStore) -> None:
    assert store.batch(PutOp(NS, str(number), {"n": number}) for number in range(3)) == [None] * 3
    assert sorted(keys(store.search(NS))) == ["0", "1", "2"]


def test_sync_methods_of_a_store(store: BaseStore) -> None:
    store.put(NS, "k", {"text": "tea"})
    item = store.get(NS, "k")
    assert item is not None
    assert isinstance(item.created_at, datetime)
    assert (item.namespace, item.key, item.value) == (NS, "k", {"text": "tea"})
    [found] = store.search(("notes",), filter={"text": "tea"})
    assert (found.namespace, found.key, found.value, found.score) == (NS, "k", {"text": "tea"}, None)
    store.delete(NS, "k")
    assert store.get(NS, "k") is None
    assert store.search(NS) == []


def test_async_methods_of_a_store(store: BaseStore) -> None:
    async def use() -> None:
        await asyncio.gather(*(store.aput(NS, f"k{number}", {"n": number}) for number in range(10)))
        assert (await store.aget(NS, "k3")).value == {"n": 3}  # pyright: ignore[reportOptionalMemberAccess]
        assert len(await store.asearch(NS, limit=20)) == 10
        await store.adelete(NS, "k3")
        assert await store.aget(NS, "k3") is None
        assert await store.alist_namespaces() == [NS]

    asyncio.run(use())


def test_namespace_prefix_matches_whole_labels_literally(store: BaseStore) -> None:
    """Users reported that a search of `john_doe` returned `john-doe`."""
    for label in ("foo", "foobar", "FOO", "fo_", "f%", "*"):
        store.put((label, "x"), label, {})
    for label in ("foo", "foobar", "FOO", "fo_", "f%", "*"):
        assert keys(store.search((label,))) == [label]
    assert store.search(("fo",)) == []
    assert len(store.search((), limit=20)) == 6


@pytest.mark.parametrize("namespace", [(), ("",), ("a.b",), ("langgraph", "x"), ("a\x00b",)])
def test_namespaces_refused_by_langgraph_are_refused(store: BaseStore, namespace: tuple[str, ...]) -> None:
    with pytest.raises((InvalidNamespaceError, InvalidRequest)):
        store.put(namespace, "k", {})


def test_namespaces_of_raw_operations_are_checked(ours: ThreefoldStore) -> None:
    for op in (GetOp(("a.b",), "k"), SearchOp(("a.b",)), PutOp(("a", ""), "k", {})):
        with pytest.raises(InvalidNamespaceError):
            ours.batch([op])


def test_namespaces_are_listed_by_prefix_suffix_and_depth(store: BaseStore) -> None:
    for path in ("a/b/c", "a/b/d", "a/x/c", "b/b/c"):
        store.put(tuple(path.split("/")), "k", {})
    assert store.list_namespaces(prefix=("a",), suffix=("c",)) == [("a", "b", "c"), ("a", "x", "c")]
    assert store.list_namespaces(prefix=("*", "b")) == [("a", "b", "c"), ("a", "b", "d"), ("b", "b", "c")]
    assert store.list_namespaces(max_depth=2) == [("a", "b"), ("a", "x"), ("b", "b")]
    assert store.list_namespaces(limit=1, offset=2) == [("a", "x", "c")]
    longer = MatchCondition("prefix", ("a", "b", "c", "d"))
    assert store.batch([ListNamespacesOp((longer,))]) == [[]]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"n": 5}, ["five"]),
        ({"n": {"$eq": 5}}, ["five"]),
        ({"n": {"$gt": 4, "$lte": 10}}, ["five", "ten"]),
        ({"n": {"$lt": 10}}, ["five"]),
        ({"tags": ["x", "y"]}, ["five"]),
        ({"d": {"k": 1}}, ["five"]),
        ({"n": 5, "d": {"k": 2}}, []),
    ],
)
def test_filters(store: BaseStore, condition: dict[str, Any], found: list[str]) -> None:
    store.put(NS, "five", {"n": 5, "tags": ["x", "y"], "d": {"k": 1, "l": 2}})
    store.put(NS, "ten", {"n": 10, "tags": [], "d": {}})
    assert sorted(keys(store.search(NS, filter=condition))) == found


def test_nearest_items_are_first(store: BaseStore) -> None:
    store.put(NS, "soup", {"text": "pumpkin soup with ginger"})
    store.put(NS, "train", {"text": "the evening train to Bern"})
    found = store.search(NS, query="pumpkin soup with ginger")
    assert keys(found) == ["soup", "train"]
    assert found[0].score is not None
    assert found[1].score is not None
    assert 1 >= found[0].score > found[1].score >= -1
    found = store.search(NS, query="train to Bern", limit=1)
    assert keys(found) == ["train"]


def test_item_is_ranked_by_its_best_field(store: BaseStore) -> None:
    store.put(NS, "a", {"title": "x", "notes": [{"text": "rain"}, {"text": "pumpkin soup"}]}, index=["notes[*].text"])
    store.put(NS, "b", {"title": "pumpkin soup", "notes": []}, index=["notes[*].text", "title"])
    store.put(NS, "c", {"title": "pumpkin soup"}, index=False)
    scores = {item.key: item.score for item in store.search(NS, query="pumpkin soup") if item.score is not None}
    assert scores.keys() == {"a", "b"}
    assert min(scores.values()) > 0.99


def test_key_is_converted_to_text(store: BaseStore) -> None:
    store.put(NS, 7, {"n": 1})  # pyright: ignore[reportArgumentType]
    assert keys(store.search(NS)) == ["7"]
    assert store.get(NS, "7") is not None


def random_ops(chance: random.Random) -> Iterator[Op]:
    """Yield operations on which both stores agree: no order without a query, and no emptied namespaces."""
    spaces = [("a",), ("a", "b"), ("ab",), ("a", "b", "c"), ("é", "日本")]
    for _ in range(150):
        space, key = chance.choice(spaces), chance.choice("klm")
        match chance.randrange(5):
            case 0 | 1:
                yield PutOp(space, key, {"n": chance.randrange(4), "t": chance.choice("xyz")})
            case 2:
                yield PutOp(space, key, None)
            case 3:
                yield GetOp(space, key)
            case _:
                condition = chance.choice([None, {"n": 1}, {"n": {"$gte": 2}}, {"t": {"$ne": "x"}}])
                yield SearchOp(space[: chance.randrange(3)], condition, 100)


def shown(result: Any) -> Any:
    """Return a result without its order and its times."""
    if isinstance(result, list):
        return sorted((item.namespace, item.key, str(item.value)) for item in result)  # pyright: ignore
    return None if result is None else (result.namespace, result.key, result.value)


@pytest.mark.parametrize("seed", [1, 2])
def test_same_operations_give_the_same_results_as_in_memory(ours: ThreefoldStore, seed: int) -> None:
    chance, memory = random.Random(seed), InMemoryStore()
    ops = list(random_ops(chance))
    while ops:
        size = chance.randrange(1, 12)
        now, ops = ops[:size], ops[size:]
        assert list(map(shown, ours.batch(now))) == list(map(shown, memory.batch(now)))


def test_differences_from_the_store_in_memory(ours: ThreefoldStore) -> None:
    """The documented differences, where other stores fail or surprise."""
    ours.put(NS, "with", {"n": 5, "d.k": 1})
    first = ours.get(NS, "with")
    ours.put(NS, "without", {"x": None})
    assert keys(ours.search(NS, filter={"n": {"$gt": 4}})) == ["with"]  # one item lacks the field
    assert keys(ours.search(NS, filter={"n": {"$ne": 1}})) == ["with"]
    assert keys(ours.search(NS, filter={"x": None})) == ["without"]
    assert keys(ours.search(NS, filter={"d.k": 1})) == ["with"]
    assert ours.search(NS, filter={"n": {"$gt": "4"}}) == []  # numbers are compared only with numbers
    ours.put(NS, "with", {"n": 6})
    again = ours.get(NS, "with")
    assert first is not None
    assert again is not None
    assert again.created_at == first.created_at < again.updated_at
    assert keys(ours.search(NS)) == ["with", "without"]  # newest first
    ours.delete(NS, "with")
    ours.delete(NS, "without")
    assert ours.list_namespaces() == []


def test_ttl_and_its_default(line: Line) -> None:
    connection = line.connection(user="ana")
    store = ThreefoldStore(connection, ttl={"default_ttl": 0.5, "refresh_on_read": False})
    store.put(NS, "default", {})
    store.put(NS, "own", {}, ttl=2.5)
    store.put(NS, "forever", {}, ttl=None)
    assert sorted(keys(store.search(NS))) == ["default", "forever", "own"]
    with pytest.raises(InvalidRequest, match="ttl"):
        store.put(NS, "k", {}, ttl=-1)


def test_fields_of_the_store_are_the_default_index(line: Line) -> None:
    connection = line.connection(user="ana")
    ThreefoldStore(connection, fields=["text"]).put(NS, "a", {"text": "pumpkin soup", "other": "rain"})
    store = ThreefoldStore(connection, fields=False)
    store.put(NS, "b", {"text": "pumpkin soup"})
    [found] = store.search(NS, query="pumpkin soup")
    assert found.key == "a"
    assert found.score is not None
    assert found.score > 0.99


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"offset": -1}, {"limit": 10**6}])
def test_invalid_limits_are_refused(ours: ThreefoldStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"limit|offset"):
        ours.search(NS, **wrong)


def test_unknown_operator_or_operation_is_refused(ours: ThreefoldStore) -> None:
    with pytest.raises(InvalidRequest, match=r"\$in"):
        ours.search(NS, filter={"n": {"$in": [1]}})
    with pytest.raises(ValueError, match="unknown operation"):
        ours.batch(["get"])  # pyright: ignore[reportArgumentType]


def test_python_values_are_stored_as_json(ours: ThreefoldStore) -> None:
    moment = datetime.fromisoformat("2026-05-08T13:56:00+00:00")
    ours.put(NS, "k", {"when": moment, "pair": (1, 2)})
    item = ours.get(NS, "k")
    assert item is not None
    assert item.value == {"when": "2026-05-08T13:56:00Z", "pair": [1, 2]}
    with pytest.raises(ValueError, match="serialize"):
        ours.put(NS, "k", {"x": object()})
    with pytest.raises(InvalidRequest, match="JSON"):
        ours.put(NS, "k", {"x": float("nan")})


def test_query_of_any_length_is_answered(ours: ThreefoldStore) -> None:
    ours.put(NS, "k", {"text": "pumpkin soup"})
    assert keys(ours.search(NS, query="pumpkin soup " * 5_000 + "\x00")) == ["k"]


def test_every_call_is_one_request(line: Line, ours: ThreefoldStore) -> None:
    ours.batch([GetOp(NS, "k"), PutOp(NS, "k", {}), SearchOp(NS), ListNamespacesOp()])
    ours.put(NS, "k", {})
    asyncio.run(ours.aget(NS, "k"))
    assert line.asked == ["POST /v1/items/batch"] * 3


def test_one_store_works_in_threads_and_event_loops(ours: ThreefoldStore) -> None:
    for number in range(3):
        asyncio.run(ours.aput(NS, str(number), {}))

    async def both() -> None:
        ours.put(NS, "sync in a loop", {})
        await asyncio.gather(asyncio.to_thread(ours.put, NS, "thread", {}), ours.aput(NS, "loop", {}))

    asyncio.run(both())
    assert len(ours.search(NS, limit=20)) == 6


def test_outage_raises_and_opens_the_breaker(line: Line, ours: ThreefoldStore) -> None:
    line.is_cut = True
    for _ in range(2):
        with pytest.raises(Unreachable):
            ours.put(NS, "k", {})
    tried = len(line.asked)
    with pytest.raises(CircuitOpen):
        ours.get(NS, "k")
    assert len(line.asked) == tried


def test_users_are_separate_in_every_namespace(line: Line) -> None:
    ana, ben = ThreefoldStore(line.connection(user="ana")), ThreefoldStore(line.connection(user="ben"))
    ana.put(("ben", "secrets"), "k", {"of": "ana"})
    assert ben.get(("ben", "secrets"), "k") is None
    assert ben.search(()) == []
    assert ben.list_namespaces() == []
    ben.delete(("ben", "secrets"), "k")
    assert ana.get(("ben", "secrets"), "k") is not None


def test_store_without_a_user_requires_scope_agent(line: Line) -> None:
    connection = line.connection()
    with pytest.raises(InvalidRequest, match="no user"):
        ThreefoldStore(connection).get(NS, "k")
    with pytest.raises(InvalidRequest, match="no user"):
        asyncio.run(ThreefoldStore(connection).aget(NS, "k"))
    assert line.asked == []
    shared = ThreefoldStore(connection, scope="agent")
    shared.put(NS, "k", {"for": "all"})
    assert ThreefoldStore(line.connection(user="ana"), scope="agent").get(NS, "k") is not None
    assert ThreefoldStore(line.connection(user="ana")).get(NS, "k") is None
    with line.service.client(user="ana", agent="support") as client:
        assert client.forget(level="user").not_covered == ["items of scope 'agent'"]
    assert shared.get(NS, "k") is not None


@pytest.mark.parametrize("name", ["x') OR 1=1 --", "a.b", "user_id", "value", "namespace"])
def test_filter_key_is_only_a_name(ours: ThreefoldStore, name: str) -> None:
    """Users reported SQL injection through filter keys, and unknown keys that were ignored."""
    ours.put(NS, "with", {name: 1})
    ours.put(NS, "without", {"x": 1})
    assert keys(ours.search(NS, filter={name: 1})) == ["with"]
    assert ours.search(NS, filter={name: 2}) == []
    with pytest.raises(InvalidRequest, match="operator"):
        ours.search(NS, filter={"$where": 1})


def test_value_shaped_like_an_object_stays_data(ours: ThreefoldStore) -> None:
    """Users reported that stored data was revived as live objects."""
    value: dict[str, Any] = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "HumanMessage"],
        "kwargs": {},
    }
    ours.put(NS, "k", value)
    item = ours.get(NS, "k")
    assert item is not None
    assert item.value == value
