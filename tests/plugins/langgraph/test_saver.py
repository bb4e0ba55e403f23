"""`ThreefoldSaver` in real graphs on a real service."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel  # pyright: ignore[reportMissingTypeStubs]
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph.types import Command

from fixtures.graphs import Graph, State, build, does, play, play_async
from threefold import Conflict, InvalidRequest, MemoryClient, TooLarge, calls
from threefold.contract import PutCheckpointRequest, QueryCheckpointsRequest
from threefold_langgraph import ThreefoldConnection, ThreefoldSaver, checkpoints
from threefold_server.local import URL, LocalService


def thread(thread_id: Any = "t", user: str | None = "ana", **configurable: Any) -> RunnableConfig:
    """Return the config of a run."""
    named = {} if user is None else {"user_id": user}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", **named, **configurable}}


def checkpoint(checkpoint_id: str, **values: Any) -> Checkpoint:
    """Return a checkpoint whose channels have versions made from its id."""
    made = empty_checkpoint()
    made["id"] = checkpoint_id
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, f"{checkpoint_id}.x")
    return made


def put(saver: BaseCheckpointSaver[Any], config: RunnableConfig, made: Checkpoint, **metadata: Any) -> RunnableConfig:
    """Store a checkpoint and all of its values."""
    return saver.put(config, made, {"source": "loop", "step": 1, **metadata}, made["channel_versions"])  # pyright: ignore[reportArgumentType]


def ids(saver: ThreefoldSaver, config: RunnableConfig | None = None, **query: Any) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(config or thread(), **query)]


@pytest.fixture
def connection(service: LocalService) -> ThreefoldConnection:
    """A connection of agent `support`; each run names its own user."""
    clients = service.client(agent="support", timeout=60.0), service.async_client(agent="support", timeout=60.0)
    return ThreefoldConnection(*clients)


@pytest.fixture
def saver(connection: ThreefoldConnection) -> ThreefoldSaver:
    return ThreefoldSaver(connection)


@pytest.fixture
def requests(service: LocalService) -> list[str]:
    """The paths requested by `counted`, in order."""
    return []


@pytest.fixture
def counted(service: LocalService, requests: list[str]) -> ThreefoldSaver:
    """A saver that records its requests."""

    class Counting(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            requests.append(request.url.path)
            return service.transport().handle_request(request)

    client = MemoryClient(URL, agent="support", transport=Counting(), timeout=60.0)
    return ThreefoldSaver(ThreefoldConnection(client, service.async_client(agent="support")))


def test_graph_has_the_same_history_as_with_the_memory_saver(saver: ThreefoldSaver) -> None:
    assert play(build(saver), thread()) == play(build(InMemorySaver()), thread())


def test_async_graph_has_the_same_history_on_any_event_loop(saver: ThreefoldSaver) -> None:
    expected = play(build(InMemorySaver()), thread())
    assert asyncio.run(play_async(build(saver), thread())) == expected
    assert asyncio.run(play_async(build(saver), thread("u"))) == expected


def test_storing_a_checkpoint_is_one_request(counted: ThreefoldSaver, requests: list[str]) -> None:
    config = put(counted, thread(), checkpoint("1", a=1, b=[2]))
    counted.put_writes(config, [("a", 1), ("b", 2), ("__interrupt__", 3)], "task")
    assert counted.get_tuple(thread()) is not None
    assert requests == ["/v1/threads/t/checkpoints", "/v1/threads/t/writes", "/v1/threads/query"]


def test_long_history_is_read_page_by_page(counted: ThreefoldSaver, requests: list[str]) -> None:
    for number in range(50):
        put(counted, thread(), checkpoint(f"{number:02}"))
    requests.clear()
    history = counted.list(thread())
    assert next(history).checkpoint["id"] == "49"
    assert len(requests) == 1
    assert len(list(history)) == 49
    assert len(requests) == 3
    assert len(ids(counted, limit=45)) == 45
    assert ids(counted, limit=0) == ids(counted, limit=-1) == []


def test_only_changed_channels_are_sent_and_removed_ones_stay_removed(saver: ThreefoldSaver) -> None:
    first = put(saver, thread(), checkpoint("1", kept="k", removed="r"))
    made = checkpoint("2", kept="k")
    made["channel_versions"] = {"kept": "1.x", "removed": "2.x"}
    saver.put(first, made, {}, {"removed": "2.x"})
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"kept": "k"}
    before = saver.get_tuple(first)
    assert before is not None
    assert before.checkpoint["channel_values"] == {"kept": "k", "removed": "r"}


def test_versions_of_forks_differ(saver: ThreefoldSaver) -> None:
    one, other = (saver.get_next_version("00000000000000000007.abc", None) for _ in range(2))
    assert one != other
    assert one[:20] == other[:20] == "00000000000000000008"
    assert saver.get_next_version(None, None) < saver.get_next_version(1, None) < one


def test_repeated_resume_replaces_and_repeated_write_does_not(saver: ThreefoldSaver) -> None:
    config = thread(checkpoint_id="1")
    for value in ("first", "second"):
        saver.put_writes(config, [("__resume__", value), ("x", value)], "task")
    put(saver, thread(), checkpoint("1"))
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.pending_writes == [("task", "__resume__", "second"), ("task", "x", "first")]


def test_stored_config_contains_user_and_checkpoint(saver: ThreefoldSaver) -> None:
    config = put(saver, thread(7, langgraph_user_id="ana"), checkpoint("1"))
    assert config["configurable"] == {  # pyright: ignore[reportTypedDictNotRequiredAccess]
        "thread_id": "7",
        "checkpoint_ns": "",
        "checkpoint_id": "1",
        "user_id": "ana",
        "langgraph_user_id": "ana",
    }
    put(saver, config, checkpoint("2"))
    found = saver.get_tuple(thread(7))
    assert found is not None
    assert found.parent_config == thread("7", checkpoint_id="1")
    assert found.metadata.get("user_id") == "ana"


def test_users_with_the_same_thread_id_are_separate(saver: ThreefoldSaver) -> None:
    graph = build(saver)
    for user in ("ana", "ben"):
        graph.invoke({"done": [user]}, thread(user=user))
    for user in ("ana", "ben"):
        assert graph.get_state(thread(user=user)).values["done"][0] == user
        names = {found.metadata.get("user_id") for found in saver.list(thread(user=user))}
        assert names == {user}
    assert graph.get_state(thread(user="eve")).values == {}


def edit_subgraph(graph: Graph, run: RunnableConfig) -> list[list[str]]:
    """Edit the state of a waiting subgraph by the config that its state names, go on, and return all that was read."""
    graph.invoke({"done": []}, run)
    inner: RunnableConfig = graph.get_state(run, subgraphs=True).tasks[0].state.config
    changed: RunnableConfig = graph.update_state(inner, {"done": ["by hand"]})
    read = [graph.get_state(inner), graph.get_state(changed)]
    for config in (inner, changed):
        read += graph.get_state_history(config)
    return [[*state.values["done"], *state.next] for state in read] + [graph.invoke(Command(resume="yes"), run)["done"]]


@pytest.mark.parametrize("name", ["user_id", "langgraph_user_id"])
def test_config_of_a_subgraph_state_keeps_the_user(saver: ThreefoldSaver, name: str) -> None:
    run = thread(user=None, **{name: "ana"})
    assert edit_subgraph(build(saver), run) == edit_subgraph(build(InMemorySaver()), run)


def test_config_of_a_subgraph_state_keeps_the_user_async(saver: ThreefoldSaver) -> None:
    async def run() -> None:
        graph = build(saver)
        await graph.ainvoke({"done": []}, thread())
        inner: RunnableConfig = (await graph.aget_state(thread(), subgraphs=True)).tasks[0].state.config
        changed = await graph.aupdate_state(inner, {"done": ["by hand"]})
        assert (await graph.aget_state(changed)).values["done"][-1] == "by hand"

    asyncio.run(run())


def test_thread_without_a_user_requires_scope_agent(connection: ThreefoldConnection) -> None:
    for refused in (
        lambda: build(ThreefoldSaver(connection)).invoke({"done": []}, thread(user=None)),
        lambda: ThreefoldSaver(connection).delete_thread("t"),
        lambda: list(ThreefoldSaver(connection).list(None)),
    ):
        with pytest.raises(InvalidRequest, match="scope='agent'"):
            refused()
    shared = ThreefoldSaver(connection, scope="agent")
    put(shared, thread(user=None), checkpoint("1"))
    assert ids(shared, thread(user="ana")) == ids(shared, thread(user="ben")) == ["1"]
    assert ids(ThreefoldSaver(connection)) == []
    shared.delete_thread("t")
    assert ids(shared, thread(user=None)) == []


def test_config_without_a_thread_is_refused(saver: ThreefoldSaver) -> None:
    with pytest.raises(InvalidRequest, match="thread_id"):
        saver.get_tuple({"configurable": {"user_id": "ana"}})


@pytest.mark.parametrize("hostile", ["../x", "a/b", "*x", "%2e", "'; --", "é" * 512, "\n", "😀"])
def test_names_with_special_characters_are_stored_exactly(saver: ThreefoldSaver, hostile: str) -> None:
    name = hostile if hostile.strip() else "x\n"
    config = thread(name, user=name, checkpoint_ns=name)
    put(saver, config, checkpoint("1", **{hostile: hostile}), note=hostile)
    saver.put_writes({**config, "configurable": {**config["configurable"], "checkpoint_id": "1"}}, [(hostile, 1)], "t")  # pyright: ignore[reportTypedDictNotRequiredAccess]
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {hostile: hostile}
    assert found.metadata.get("note") == hostile
    assert found.pending_writes == [("t", hostile, 1)]
    assert ids(saver, config, filter={"note": hostile}) == ["1"]


def test_repeated_run_id_is_resumed_and_not_repeated(saver: ThreefoldSaver) -> None:
    graph = build(saver)
    config: RunnableConfig = {**thread(), "metadata": {"run_id": "r1"}}
    once = graph.invoke({"done": ["in"]}, config)
    assert graph.invoke({"done": ["in"]}, config) == once
    ThreefoldSaver(ThreefoldConnection(saver.connection.client, saver.connection.async_client, "ana")).delete_for_runs(
        ["r1"]
    )
    assert ids(saver) == []


def test_checkpoint_of_a_deleted_thread_is_refused(connection: ThreefoldConnection) -> None:
    saver = ThreefoldSaver(ThreefoldConnection(connection.client, connection.async_client, user="ana"))

    def delete(_: State) -> None:
        saver.delete_thread("t")

    deleting: Graph = StateGraph(State)
    deleting.add_node("delete", delete)
    deleting.add_node("after", does("after"))
    deleting.add_edge(START, "delete")
    deleting.add_edge("delete", "after")
    graph = deleting.compile(checkpointer=saver)
    with pytest.raises(Conflict, match="deleted"):
        graph.invoke({"done": []}, thread(), durability="sync")
    assert ids(saver) == []
    build(saver).invoke({"done": []}, thread())
    assert ids(saver)


def test_keep_last_limits_the_checkpoints_of_a_thread(connection: ThreefoldConnection) -> None:
    graph = build(ThreefoldSaver(connection, keep_last=2))
    for _ in range(4):
        graph.invoke({"done": ["in"]}, thread())
        graph.invoke(Command(resume="yes"), thread())
    saver = ThreefoldSaver(connection)
    assert len(ids(saver)) == 2
    assert {found.config["configurable"]["checkpoint_ns"] for found in saver.list(_anywhere())} == {""}  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert graph.invoke({"done": ["in"]}, thread())["done"][-1] != "end"  # the run waits for a person again
    assert graph.invoke(Command(resume="no"), thread())["done"][-2:] == ["answer no", "end"]


def test_superseded_checkpoints_older_than_max_age_are_deleted(connection: ThreefoldConnection) -> None:
    saver = ThreefoldSaver(connection, max_age=timedelta(microseconds=1))
    build(saver).invoke({"done": ["in"]}, thread())
    assert len(ids(saver)) == 1


def test_value_that_is_too_large_is_refused_with_its_channel(
    saver: ThreefoldSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_CHANNEL_VALUE_BYTES", 1_000)
    with pytest.raises(TooLarge, match=r"'big'.* store large values elsewhere"):
        put(saver, thread(), checkpoint("1", small=1, big="x" * 1_001))
    with pytest.raises(TooLarge, match="'big'"):
        saver.put_writes(thread(checkpoint_id="1"), [("big", "x" * 1_001)], "t")
    assert ids(saver) == []


def test_concurrent_writes_are_all_stored(saver: ThreefoldSaver) -> None:
    config = thread(checkpoint_id="1")
    with ThreadPoolExecutor(8) as pool:
        for task in range(40):
            pool.submit(saver.put_writes, config, [("x", task)], f"{task:02}")
        pool.submit(put, saver, thread(), checkpoint("1"))
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.pending_writes == [(f"{task:02}", "x", task) for task in range(40)]


def joined(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    """Reduce several writes at once, as LangGraph may request."""
    return [*state, *(item for write in writes for item in write)]


class Log(TypedDict):
    """A state of which only the additions are stored."""

    lines: Annotated[list[str], DeltaChannel(joined, list, snapshot_frequency=4)]


def again(state: Log) -> Log:
    """Append a repetition of the last line."""
    return {"lines": [f"{state['lines'][-1]} again"]}


def grow(saver: BaseCheckpointSaver[Any]) -> Graph:
    """Return a graph in which each run adds two lines."""
    growing: Graph = StateGraph(Log)
    growing.add_node("again", again)
    growing.add_edge(START, "again")
    return growing.compile(checkpointer=saver)


def test_delta_channel_is_read_with_one_more_request(counted: ThreefoldSaver, requests: list[str]) -> None:
    ours, theirs = grow(counted), grow(InMemorySaver())
    for number in range(9):
        for graph in (ours, theirs):
            graph.invoke({"lines": [str(number)]}, thread())
    requests.clear()
    assert ours.get_state(thread()).values == theirs.get_state(thread()).values
    assert requests == ["/v1/threads/query", "/v1/threads/t/history"]
    past = [[state.values for state in graph.get_state_history(thread())] for graph in (ours, theirs)]
    assert past[0] == past[1]
    asynchronous = asyncio.run(grow(counted).aget_state(thread()))
    assert asynchronous.values == theirs.get_state(thread()).values


def test_delta_channels_survive_keep_last(connection: ThreefoldConnection) -> None:
    graph = grow(ThreefoldSaver(connection, keep_last=1))
    for number in range(9):
        graph.invoke({"lines": [str(number)]}, thread())
    assert len(graph.get_state(thread()).values["lines"]) == 18


def test_serializer_with_an_allowlist_is_used(connection: ThreefoldConnection) -> None:
    saver = ThreefoldSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    copied = saver.with_allowlist([("fixtures.graphs", "Part")])
    assert copied is not saver
    assert isinstance(copied, ThreefoldSaver)
    put(copied, thread(), checkpoint("1", a={"b": 1}))
    assert ids(saver) == ["1"]


def test_state_shaped_like_an_object_stays_data(saver: ThreefoldSaver) -> None:
    """Users reported that stored data was revived as live objects. Stored type tags are not trusted and pickle is
    refused."""
    looks = [{"lc": n, "type": "constructor", "id": ["datetime", "date"], "args": [1, 1, 1]} for n in (1, 2)]
    put(saver, thread(), checkpoint("1", said=looks))
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"said": looks}
    blob = {"channel": "said", "version": "2.x", "type": "pickle", "data": pickle.dumps("loaded")}
    request = {"checkpoint_id": "2", "type": "json", "data": b"{}", "versions": {"said": "2.x"}, "blobs": [blob]}
    ana = saver.connection.client.acting_as(user="ana", agent="support")
    ana.send(calls.put_checkpoint("t", PutCheckpointRequest.model_validate(request)))
    with pytest.raises(NotImplementedError, match="pickle"):
        saver.get_tuple(thread())


def test_copy_and_prune_a_thread(connection: ThreefoldConnection) -> None:
    """Users reported that checkpoints grew without limit because nothing could prune them."""
    saver = ThreefoldSaver(ThreefoldConnection(connection.client, connection.async_client, user="ana"))
    graph = build(saver)
    graph.invoke({"done": ["in"]}, thread())
    saver.copy_thread("t", "u")
    saver.prune(["u"])
    assert graph.invoke(Command(resume="yes"), thread("u")) == graph.invoke(Command(resume="yes"), thread("t"))
    for wrong, error in ((lambda: saver.prune("t"), TypeError), (lambda: saver.prune(["t"], strategy="x"), ValueError)):
        with pytest.raises(error):
            wrong()


def test_thread_is_forgotten_with_the_session_of_the_same_name(service: LocalService, saver: ThreefoldSaver) -> None:
    build(saver).invoke({"done": ["in"]}, thread())
    with service.client(user="ana", agent="support") as ana:
        assert ana.forget(session_id="t").counts["threads"] == 1
        assert ana.threads.query(QueryCheckpointsRequest()).checkpoints == []


def _anywhere() -> RunnableConfig:
    """Return a config that matches all namespaces of the thread."""
    return {"configurable": {"thread_id": "t", "user_id": "ana"}}
