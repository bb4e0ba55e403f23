"""`ThreefoldSaver` while the service is down: runs fail by default, or continue in memory with `on_outage="memory"`."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph.types import Command

from fixtures.faults import Serving
from fixtures.graphs import Graph, State, ask, build, does
from threefold import AsyncMemoryClient, MemoryClient, Unreachable
from threefold_langgraph import ThreefoldConnection, ThreefoldSaver, outage
from threefold_server.local import URL, LocalService

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t", "user_id": "ana"}}
TESTS = Path(__file__).parents[2]


def chain(saver: BaseCheckpointSaver[Any], middle: Callable[[State], State]) -> Graph:
    """Return a graph of three nodes in a row."""
    nodes: Graph = StateGraph(State)
    nodes.add_node("first", does("first"))
    nodes.add_node("middle", middle)
    nodes.add_node("last", does("last"))
    nodes.add_edge(START, "first")
    nodes.add_edge("first", "middle")
    nodes.add_edge("middle", "last")
    return nodes.compile(checkpointer=saver)


@pytest.fixture
def served(tmp_path: Path) -> Serving:
    """A service in a separate process, started and killed by the test."""
    return Serving(tmp_path / "log", "--data", str(tmp_path))


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_run_whose_service_is_killed_fails_and_completes_later(served: Serving, durability: Any) -> None:
    connection = ThreefoldConnection.connect(served.url)
    saver = ThreefoldSaver(connection)
    kills = [served.kill]

    def middle(_: State) -> State:
        while kills and saver.get_tuple(CONFIG) is None:
            time.sleep(0.005)  # without durability "sync" LangGraph stores in the background
        if kills:
            kills.pop()()
        return {"done": ["middle"]}

    graph = chain(saver, middle)
    with served:
        with pytest.raises(Unreachable):
            graph.invoke({"done": []}, CONFIG, durability=durability)
        served.start()
        assert graph.invoke(None, CONFIG)["done"] == ["first", "middle", "last"]
        connection.close()


def test_interrupt_in_one_process_is_resumed_in_another(served: Serving) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from fixtures.graphs import build
from threefold_langgraph import ThreefoldConnection, ThreefoldSaver
build(ThreefoldSaver(ThreefoldConnection.connect(sys.argv[1]))).invoke({{"done": ["asked"]}}, {CONFIG!r})
"""
    with served:
        subprocess.run([sys.executable, "-c", program, served.url], check=True)
        connection = ThreefoldConnection.connect(served.url)
        done = build(ThreefoldSaver(connection)).invoke(Command(resume="yes"), CONFIG)["done"]
        connection.close()
    assert (done[0], done[-2:]) == ("asked", ["answer yes", "end"])


@dataclass
class Line:
    """A link to an in-process service that can be cut."""

    service: LocalService
    is_cut: bool = False
    is_busy: bool = False
    fails_for: str = ""
    """A user whose calls get an internal error."""

    def sync(self) -> httpx.BaseTransport:
        return httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("cut", request=request)
        if self.is_busy:
            return httpx.Response(429, json={"error": {"code": "rate_limited", "message": "wait", "details": {}}})
        if request.headers["x-threefold-user"] == self.fails_for:
            return httpx.Response(500, json={"error": {"code": "internal", "message": "a fault", "details": {}}})
        return self.service.submit(request).result()

    async def _handle_async(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("cut", request=request)
        return await asyncio.wrap_future(self.service.submit(request))

    def connection(self) -> ThreefoldConnection:
        """Return a connection over the link that does not pause between attempts."""
        client = MemoryClient(URL, agent="a", transport=self.sync(), sleep=lambda _: None)
        transport = httpx.MockTransport(self._handle_async)
        return ThreefoldConnection(client, AsyncMemoryClient(URL, agent="a", transport=transport))

    def cutting(self, what: str) -> Callable[[State], State]:
        """Return a node that cuts the link."""

        def node(_: State) -> State:
            self.is_cut = True
            return {"done": [what]}

        return node


@pytest.fixture
def line(service: LocalService) -> Line:
    return Line(service)


@pytest.fixture
def patient(line: Line, monkeypatch: pytest.MonkeyPatch) -> ThreefoldSaver:
    """A saver that continues in memory and sends only on `flush`."""
    monkeypatch.setattr(outage, "PAUSE", 3_600.0)
    return ThreefoldSaver(line.connection(), on_outage="memory")


def states(graph: Graph) -> list[Any]:
    return [(state.values, state.next, state.metadata["step"]) for state in graph.get_state_history(CONFIG)]


def chain_with_subgraph(line: Line, saver: BaseCheckpointSaver[Any]) -> Graph:
    """Return a graph with a node that cuts the link, followed by a subgraph that waits for a person."""
    inner: Graph = StateGraph(State)
    inner.add_node("before", does("before"))
    inner.add_node("ask", ask)
    inner.add_edge(START, "before")
    inner.add_edge("before", "ask")
    outer: Graph = StateGraph(State)
    outer.add_node("cut", line.cutting("cut"))
    outer.add_node("talk", inner.compile())
    outer.add_edge(START, "cut")
    outer.add_edge("cut", "talk")
    return outer.compile(checkpointer=saver)


def test_outage_fails_the_run_by_default(line: Line) -> None:
    saver = ThreefoldSaver(line.connection())
    with pytest.raises(Unreachable):
        chain(saver, line.cutting("middle")).invoke({"done": []}, CONFIG)
    assert saver.unsent == 0


def test_run_continues_in_memory_and_is_stored_after_the_outage(line: Line, patient: ThreefoldSaver) -> None:
    graph = chain(patient, line.cutting("middle"))
    assert graph.invoke({"done": []}, CONFIG)["done"] == ["first", "middle", "last"]
    assert patient.unsent > 0
    assert graph.get_state(CONFIG).values["done"] == ["first", "middle", "last"]
    assert not patient.flush()
    with pytest.raises(Unreachable, match="not sent yet"):
        list(graph.get_state_history(CONFIG))
    line.is_cut = False
    assert patient.flush()
    assert patient.unsent == 0
    expected = chain(InMemorySaver(), does("middle"))
    expected.invoke({"done": []}, CONFIG)
    assert states(chain(ThreefoldSaver(line.connection()), does("middle"))) == states(expected)


def test_async_run_continues_in_memory(line: Line, patient: ThreefoldSaver) -> None:
    graph = chain(patient, line.cutting("middle"))

    async def run() -> None:
        assert (await graph.ainvoke({"done": []}, CONFIG))["done"] == ["first", "middle", "last"]
        assert patient.unsent > 0
        line.is_cut = False
        assert await patient.aflush()
        assert (await graph.aget_state(CONFIG)).values["done"] == ["first", "middle", "last"]

    asyncio.run(run())
    assert len(states(chain(ThreefoldSaver(line.connection()), does("middle")))) == 5


def test_subgraph_is_interrupted_and_resumed_in_memory(line: Line, patient: ThreefoldSaver) -> None:
    graph = chain_with_subgraph(line, patient)
    graph.invoke({"done": []}, CONFIG)
    assert graph.get_state(CONFIG).next == ("talk",)
    done = graph.invoke(Command(resume="yes"), CONFIG)["done"]
    assert done[-2:] == ["before", "answer yes"]
    line.is_cut = False
    assert patient.flush()
    again = chain_with_subgraph(line, ThreefoldSaver(line.connection()))
    assert again.get_state(CONFIG).values["done"] == done


@pytest.mark.parametrize("is_async", [False, True])
def test_node_that_finished_in_an_outage_is_not_run_again(line: Line, patient: ThreefoldSaver, is_async: bool) -> None:
    ran: list[str] = []
    failures = [TimeoutError()]

    def good(_: State) -> State:
        line.is_cut = True
        ran.append("good")
        return {"done": ["good"]}

    def bad(_: State) -> State:
        if failures:
            while (
                not patient.unsent
            ):  # wait until the writes of the other node are queued; the test timeout is the limit
                time.sleep(0.005)
            raise failures.pop()
        return {"done": ["bad"]}

    nodes: Graph = StateGraph(State)
    nodes.add_node("good", good)
    nodes.add_node("bad", bad)
    nodes.add_edge(START, "good")
    nodes.add_edge(START, "bad")
    graph = nodes.compile(checkpointer=patient)
    with pytest.raises(TimeoutError):
        graph.invoke({"done": []}, CONFIG, durability="sync")
    with pytest.raises(Unreachable, match="not sent yet"):
        graph.invoke(None, CONFIG)
    line.is_cut = False
    state = asyncio.run(graph.ainvoke(None, CONFIG)) if is_async else graph.invoke(None, CONFIG)
    assert sorted(state["done"]) == ["bad", "good"]
    assert ran == ["good"]


def test_unknown_thread_is_not_treated_as_new_in_an_outage(line: Line, patient: ThreefoldSaver) -> None:
    graph = chain(patient, does("middle"))
    graph.invoke({"done": []}, CONFIG)
    line.is_cut = True
    with pytest.raises(Unreachable):
        graph.invoke({"done": []}, CONFIG)
    other: RunnableConfig = {"configurable": {"thread_id": "t", "user_id": "ben"}}
    with pytest.raises(Unreachable):
        graph.get_state(other)


def test_queue_of_unsent_checkpoints_is_limited(
    line: Line, patient: ThreefoldSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "MAX_BYTES", 100)
    with pytest.raises(Unreachable, match="bytes already"):
        chain(patient, line.cutting("middle")).invoke({"done": []}, CONFIG)


def test_checkpoint_refused_after_the_outage_is_counted_and_logged(
    line: Line, patient: ThreefoldSaver, caplog: pytest.LogCaptureFixture
) -> None:
    graph = chain(patient, line.cutting("middle"))
    graph.invoke({"done": []}, CONFIG)
    line.is_cut = False
    with line.service.client(user="ana", agent="a") as other:
        other.threads.delete("t")
        with caplog.at_level(logging.ERROR, "threefold.langgraph"):
            assert patient.flush()
        assert patient.refused >= 1
        assert "lost" in caplog.text
        assert other.forget(session_id="t", dry_run=True).counts["threads"] == 0


def test_unsent_checkpoints_are_kept_while_the_service_is_busy(line: Line, patient: ThreefoldSaver) -> None:
    graph = chain(patient, line.cutting("middle"))
    graph.invoke({"done": []}, CONFIG)
    waiting = patient.unsent
    line.is_cut, line.is_busy = False, True
    assert not patient.flush()
    assert (patient.unsent, patient.refused) == (waiting, 0)
    line.is_busy = False
    assert patient.flush()
    assert len(states(chain(ThreefoldSaver(line.connection()), does("middle")))) == 5


def test_failing_user_does_not_block_the_checkpoints_of_others(line: Line, patient: ThreefoldSaver) -> None:
    other: RunnableConfig = {"configurable": {"thread_id": "t", "user_id": "ben"}}
    chain(patient, line.cutting("middle")).invoke({"done": []}, other)
    line.is_cut, line.fails_for = False, "ben"
    chain(patient, line.cutting("middle")).invoke({"done": []}, CONFIG)
    line.is_cut = False
    graph = chain(patient, does("middle"))
    assert len(list(graph.get_state_history(CONFIG))) == 5
    with pytest.raises(Unreachable, match="not sent yet"):
        list(graph.get_state_history(other))
    line.fails_for = ""
    assert patient.flush()
    assert len(list(graph.get_state_history(other))) == 5


def test_unsent_checkpoints_are_sent_in_the_background(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "PAUSE", 0.01)
    saver = ThreefoldSaver(line.connection(), on_outage="memory")
    chain(saver, line.cutting("middle")).invoke({"done": []}, CONFIG)
    line.is_cut = False
    while saver.unsent:  # the test timeout is the limit
        time.sleep(0.005)
    assert len(states(chain(ThreefoldSaver(line.connection()), does("middle")))) == 5
