"""Items through the contract: namespaces, order, filters. On both databases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from threefold import InvalidRequest, MemoryClient, calls
from threefold.contract import Item, OpResult
from threefold_server.local import LocalService


def put(namespace: Sequence[str], key: str, value: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"op": "put", "namespace": namespace, "key": key, "value": value or {}, "index": False, **more}


def get(namespace: Sequence[str], key: str) -> dict[str, Any]:
    return {"op": "get", "namespace": namespace, "key": key}


def search(*prefix: str, **more: Any) -> dict[str, Any]:
    return {"op": "search", "prefix": prefix, **more}


def namespaces(**more: Any) -> dict[str, Any]:
    return {"op": "list_namespaces", **more}


def one(memory: MemoryClient, op: dict[str, Any]) -> OpResult:
    [result] = memory.items_batch([op]).results
    return result


def found(memory: MemoryClient, *prefix: str, **more: Any) -> list[str]:
    """Return the keys that a search finds, in order."""
    return [item.key for item in one(memory, search(*prefix, **more)).items]


def listed(memory: MemoryClient, **more: Any) -> list[str]:
    """Return namespaces in the form `a/b`."""
    return ["/".join(labels) for labels in one(memory, namespaces(**more)).namespaces]


def stored(memory: MemoryClient, namespace: Sequence[str], key: str) -> Item | None:
    return one(memory, get(namespace, key)).item


def test_value_is_returned_unchanged(memory: MemoryClient) -> None:
    value: dict[str, Any] = {
        "n": 2**70,
        "f": 0.1,
        "text": 'é 日本 🙂 \\u0000 "',
        "none": None,
        "deep": [{"a": [True, {}]}],
        "": "",
    }
    memory.items_batch([put(["a", "b"], "k", value)])
    item = stored(memory, ["a", "b"], "k")
    assert item is not None
    assert (item.namespace, item.key, item.value, item.score) == (["a", "b"], "k", value, None)
    assert item.created_at == item.updated_at
    assert stored(memory, ["a", "b"], "other") is None
    assert stored(memory, ["a"], "k") is None


def test_results_are_in_the_order_of_the_operations(memory: MemoryClient) -> None:
    memory.items_batch([put(["a"], "x", {"v": 1})])
    results = memory.items_batch(
        [get(["a"], "x"), put(["a"], "y"), search("a"), namespaces(), {"op": "delete", "namespace": ["a"], "key": "z"}]
    ).results
    assert [bool(result.item) for result in results] == [True, False, False, False, False]
    assert [item.key for item in results[2].items] == ["x"]
    assert results[3].namespaces == [["a"]]
    assert memory.items_batch([]).results == []


def test_reads_of_a_batch_see_the_state_before_its_writes(memory: MemoryClient) -> None:
    memory.items_batch([put(["a"], "k", {"v": 1})])
    first, _, second, listing = memory.items_batch(
        [get(["a"], "k"), put(["a"], "k", {"v": 2}), get(["a"], "k"), search("a")]
    ).results
    assert [first.item and first.item.value, second.item and second.item.value] == [{"v": 1}, {"v": 1}]
    assert [item.value for item in listing.items] == [{"v": 1}]


def test_last_write_of_a_key_in_a_batch_wins(memory: MemoryClient) -> None:
    gone = {"op": "delete", "namespace": ["a"], "key": "gone"}
    back = {"op": "delete", "namespace": ["a"], "key": "back"}
    memory.items_batch(
        [put(["a"], "k", {"v": 1}), put(["a"], "k", {"v": 2}), put(["a"], "gone"), gone, back, put(["a"], "back")]
    )
    item = stored(memory, ["a"], "k")
    assert item is not None
    assert item.value == {"v": 2}
    assert sorted(found(memory, "a")) == ["back", "k"]


def test_write_keeps_the_creation_time_until_a_delete(memory: MemoryClient) -> None:
    memory.items_batch([put(["a"], "k", {"v": 1})])
    first = stored(memory, ["a"], "k")
    memory.items_batch([put(["a"], "k", {"v": 2})])
    second = stored(memory, ["a"], "k")
    memory.items_batch([{"op": "delete", "namespace": ["a"], "key": "k"}])
    assert stored(memory, ["a"], "k") is None
    memory.items_batch([put(["a"], "k", {"v": 3})])
    third = stored(memory, ["a"], "k")
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.created_at == second.created_at < second.updated_at < third.created_at


def test_prefix_matches_whole_labels_literally(memory: MemoryClient) -> None:
    """Users of other stores reported that patterns matched rows of other namespaces and users."""
    places = ["foo", "foobar", "FOO", "fo_", "f%", "*", "foo.bar", "a b", "ü", "日本", "\\", "'", '"', "x/y", "-1"]
    memory.items_batch([put([place, "below"], f"in {place}") for place in places])
    for place in places:
        assert found(memory, place) == [f"in {place}"]
        assert found(memory, place, "below") == [f"in {place}"]
    assert found(memory, "fo") == found(memory, "%") == found(memory, "_") == found(memory, "foo", "bel") == []
    assert sorted(found(memory, limit=100)) == sorted(f"in {place}" for place in places)


def test_labels_are_never_joined(memory: MemoryClient) -> None:
    memory.items_batch([put(["a", "bc"], "1"), put(["ab", "c"], "2"), put(["a", "b", "c"], "3"), put(["abc"], "4")])
    assert found(memory, "a", "bc") == ["1"]
    assert found(memory, "ab") == ["2"]
    assert sorted(found(memory, "a")) == ["1", "3"]
    assert listed(memory) == ["a/b/c", "a/bc", "ab/c", "abc"]


def test_search_without_a_query_is_newest_first_and_pages_are_stable(memory: MemoryClient) -> None:
    for number in range(7):
        memory.items_batch([put(["a"], f"k{number}", {"n": number})])
    memory.items_batch([put(["a"], "k2", {"n": 2})])
    order = ["k2", "k6", "k5", "k4", "k3", "k1", "k0"]
    assert found(memory, "a") == order
    assert [found(memory, "a", limit=2, offset=start) for start in range(0, 8, 2)] == [
        order[0:2],
        order[2:4],
        order[4:6],
        order[6:],
    ]
    assert found(memory, "a", limit=0) == []
    assert found(memory, "a", offset=100) == []


def test_filter_applies_before_the_page(memory: MemoryClient) -> None:
    memory.items_batch([put(["a"], f"{n:03}", {"n": n, "even": n % 2 == 0} if n else {}) for n in range(500)])
    assert found(memory, "a", filter={"even": True, "n": {"$gte": 490}}) == ["490", "492", "494", "496", "498"]
    assert found(memory, "a", filter={"even": True}, limit=3, offset=200) == ["402", "404", "406"]
    assert found(memory, "a", filter={"n": {"$ne": 1}}, limit=2, offset=496) == ["498", "499"]  # item 0 lacks the field
    with pytest.raises(InvalidRequest, match=r"\$in"):
        found(memory, "a", filter={"n": {"$in": [1]}})


def test_namespaces_are_listed_by_prefix_suffix_and_depth(memory: MemoryClient) -> None:
    places = ["a/b/c", "a/b/d", "a/x/c", "b/b/c", "b", "*/z"]
    memory.items_batch([put(place.split("/"), "k") for place in places])
    assert listed(memory) == sorted(places)
    assert listed(memory, max_depth=1) == ["*", "a", "b"]
    assert listed(memory, max_depth=2, limit=2, offset=1) == ["a/b", "a/x"]
    assert listed(memory, match=[{"match_type": "prefix", "path": ["a", "*", "c"]}]) == ["a/b/c", "a/x/c"]
    assert listed(memory, match=[{"match_type": "prefix", "path": ["*", "b"]}]) == ["a/b/c", "a/b/d", "b/b/c"]
    assert listed(memory, match=[{"match_type": "suffix", "path": ["b", "c"]}]) == ["a/b/c", "b/b/c"]
    both = [{"match_type": "prefix", "path": ["a"]}, {"match_type": "suffix", "path": ["*", "c"]}]
    assert listed(memory, match=both) == ["a/b/c", "a/x/c"]
    assert listed(memory, match=[{"match_type": "suffix", "path": ["z", "a", "b", "c"]}]) == []
    assert listed(memory, match=[{"match_type": "prefix", "path": []}]) == sorted(places)


def test_namespaces_without_items_are_not_listed(memory: MemoryClient) -> None:
    memory.items_batch([put(["a"], "k"), put(["b"], "k")])
    memory.items_batch([{"op": "delete", "namespace": ["a"], "key": "k"}, get(["c"], "k"), search("d")])
    assert listed(memory) == ["b"]


@pytest.mark.parametrize(
    "wrong",
    [
        put([], "k"),
        put([""], "k"),
        put(["a\x00b"], "k"),
        put(["a"], "k\x00"),
        put(["x" * 513], "k"),
        put(["é" * 250] * 5, "k"),
        put(["a"] * 65, "k"),
        put(["a"], "k", ttl=0),
        put(["a"], "k", ttl=-1),
        put(["a"], "k", ttl=float("nan")),
        put(["a"], "k", ttl=1e30),
        put(["a"], "k", {"f": float("inf")}),
        put(["a"], "k", {"nul": "\x00"}),
        put(["a"], "k", {"half": "\ud800"}),
        put(["a"], "k", {"half\udfff": 1}),
        put(["a"], "k", {"bytes": b"x"}),
        put(["a"], "k", {"big": "x" * 4_000_001}),
        {**put(["a"], "k"), "index": True},
        {**put(["a"], "k"), "value": "no object"},
        {**put(["a"], "k"), "user": "ben"},
        search("a", limit=-1),
        search("a", offset=-1),
        search("a", limit=10_001),
        namespaces(max_depth=0),
        namespaces(match=[{"match_type": "infix", "path": ["a"]}]),
        {"op": "drop"},
    ],
)
def test_invalid_operation_is_refused_with_its_position(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"ops\.1"):
        calls.items_batch([put(["a"], "good"), wrong])


def test_service_refuses_invalid_operations(http: httpx.Client) -> None:
    deep: Any = {}
    for _ in range(70):
        deep = {"d": deep}
    for value in ({"half": "\ud800"}, {"nul": "\x00"}, deep):
        body = json.dumps({"ops": [put(["a"], "good"), put(["a"], "k", value)]})
        reply = http.post("/v1/items/batch", content=body, headers={"Content-Type": "application/json"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
    reply = http.post("/v1/items/batch", json={"ops": [search("a", filter={"n": {"$in": [1]}})]})
    assert reply.status_code == 422
    assert http.post("/v1/items/batch", json={"ops": [search()]}).json()["results"][0]["items"] == []
    assert http.post("/v1/items/batch", json={"ops": [], "user": "ben"}).status_code == 422
    assert http.post("/v1/items/batch", json={"ops": [get(["a"], "k")] * 1_001}).status_code == 422


def test_items_of_users_and_agents_are_separate(service: LocalService) -> None:
    callers = [("ana", "support"), ("ben", "support"), ("ana", "sales"), ("ANA", "support"), ("support", "ana")]
    for user, agent in callers:
        with service.client(user=user, agent=agent) as client:
            client.items_batch([put(["same", "place"], "k", {"of": [user, agent]})])
    for user, agent in callers:
        with service.client(user=user, agent=agent) as client:
            assert [item.value for item in one(client, search(limit=100)).items] == [{"of": [user, agent]}]
            assert listed(client) == ["same/place"]


def test_items_of_an_agent_are_shared_only_in_scope_agent(service: LocalService) -> None:
    with (
        service.client(user="ana", agent="support") as ana,
        service.client(user="ben", agent="support") as ben,
        service.client(user="ben", agent="sales") as other,
    ):
        ana.items_batch([put(["a"], "shared")], scope="agent")
        ana.items_batch([put(["a"], "own")])
        shared = ben.items_batch([search()], scope="agent").results[0].items
        assert [item.key for item in shared] == ["shared"]
        assert found(ana) == ["own"]
        assert found(ben) == []
        assert other.items_batch([search()], scope="agent").results[0].items == []


def test_forget_deletes_items_and_reports_what_it_does_not_cover(service: LocalService) -> None:
    with service.client(user="ana", agent="support") as ana, service.client(user="ana", agent="sales") as sales:
        ana.items_batch([put(["a"], "1", {"t": "quetzal"}, index=["$"]), put(["b"], "2")])
        sales.items_batch([put(["a"], "3")])
        dry = ana.forget(level="agent", dry_run=True)
        assert (dry.counts["items"], dry.counts["index"], dry.not_covered) == (2, 1, [])
        assert len(found(ana)) == 2
        assert ana.forget(level="agent").counts["items"] == 2
        assert found(ana) == []
        assert found(sales) == ["3"]
        sales.items_batch([put(["a"], "for all")], scope="agent")
        assert ana.forget(level="agent").not_covered == []
        receipt = ana.forget(level="user")
        assert (receipt.counts["items"], receipt.complete) == (1, True)
        assert receipt.not_covered == ["items of scope 'agent'"]
        assert found(sales) == []
        assert len(sales.items_batch([search()], scope="agent").results[0].items) == 1


def test_items_are_no_memories(memory: MemoryClient) -> None:
    """Data of a framework is not something that was said, so it is never recalled."""
    memory.items_batch([put(["a"], "k", {"text": "the quetzal sleeps"}, index=["$"])])
    assert memory.recall("quetzal").memories == []
    assert memory.list().items == []
