"""The store inside runs: nodes, tools and helpers get it, and it belongs to the user of the run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph.prebuilt import InjectedStore, ToolNode
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from plugins.langgraph.conftest import Line
from threefold import Forbidden, InvalidRequest
from threefold_langgraph import ThreefoldStore

NS = ("same", "place")


@dataclass
class Context:
    """The context of a run."""

    user_id: str


@dataclass
class Verified:
    """A verified user as LangGraph Server passes it."""

    identity: str


def remember(state: MessagesState, runtime: Runtime[Context]) -> dict[str, Any]:
    """Store the message and answer with the earlier ones."""
    assert runtime.store is not None
    before = [item.value["said"] for item in runtime.store.search(NS)]
    runtime.store.put(NS, str(len(before)), {"said": state["messages"][-1].text})
    return {"messages": [AIMessage(", ".join(sorted(before)))]}


async def aremember(state: MessagesState) -> dict[str, Any]:
    """The same as an async node, with the store of the running config."""
    store = get_store()
    before = [item.value["said"] for item in await store.asearch(NS)]
    await store.aput(NS, str(len(before)), {"said": state["messages"][-1].text})
    return {"messages": [AIMessage(", ".join(sorted(before)))]}


def graph(line: Line, node: Any) -> Any:
    builder: Any = StateGraph(MessagesState, context_schema=Context)
    builder.add_node("remember", node).add_edge(START, "remember").add_edge("remember", END)
    return builder.compile(store=ThreefoldStore(line.connection()))


def config(**configurable: Any) -> RunnableConfig:
    return {"configurable": configurable}


def last(state: Any) -> str:
    return state["messages"][-1].text


def test_graph_remembers_for_the_user_of_its_run(line: Line) -> None:
    runs = graph(line, remember)
    assert last(runs.invoke({"messages": "tea"}, config(user_id="ana"))) == ""
    assert last(runs.invoke({"messages": "rum"}, config(user_id="ben"))) == ""
    assert last(runs.invoke({"messages": "x"}, config(langgraph_user_id="ana"))) == "tea"
    assert last(runs.invoke({"messages": "x"}, context=Context("ben"))) == "rum"
    assert last(runs.invoke({"messages": "y"}, config(langgraph_auth_user=Verified("ana")))) == "tea, x"


def test_concurrent_users_never_mix(line: Line) -> None:
    runs = graph(line, aremember)

    async def talk(user: str) -> str:
        for _ in range(3):
            state = await runs.ainvoke({"messages": user}, context=Context(user))
        return last(state)  # pyright: ignore[reportPossiblyUnboundVariable]

    async def all_talk() -> list[str]:
        return await asyncio.gather(*map(talk, ["ana", "ben", "cleo"]))

    assert asyncio.run(all_talk()) == ["ana, ana", "ben, ben", "cleo, cleo"]


def test_run_without_a_user_or_with_another_than_the_verified_one_fails(line: Line) -> None:
    runs = graph(line, remember)
    with pytest.raises(InvalidRequest, match="no user"):
        runs.invoke({"messages": "x"}, config(thread_id="ana"))
    with pytest.raises(Forbidden, match="verified"):
        runs.invoke({"messages": "x"}, config(langgraph_auth_user=Verified("ana"), user_id="ben"))
    assert line.asked == []


@tool
def note(text: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Take a note."""
    assert isinstance(store, BaseStore)
    store.put(NS, text, {"text": text})
    return ", ".join(sorted(item.key for item in store.search(NS)))


@tool
async def anote(text: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Take a note."""
    await store.aput(NS, text, {"text": text})
    return ", ".join(sorted(item.key for item in await store.asearch(NS)))


def call(name: str, text: str) -> dict[str, Any]:
    request = {"name": name, "args": {"text": text}, "id": text, "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[request])]}


@pytest.mark.parametrize(("taken", "is_async"), [(note, False), (anote, True)])
def test_tool_gets_the_store_and_cannot_choose_the_user(line: Line, taken: BaseTool, is_async: bool) -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([taken])).add_edge(START, "tools").add_edge("tools", END)
    runs = builder.compile(store=ThreefoldStore(line.connection()))

    def answer(text: str, user: str) -> str:
        asked = call(taken.name, text), config(user_id=user)
        state = asyncio.run(runs.ainvoke(*asked)) if is_async else runs.invoke(*asked)
        assert isinstance(state["messages"][-1], ToolMessage)
        return last(state)

    assert answer("tea", "ana") == "tea"
    assert answer("rum", "ben") == "rum"
    assert answer("milk", "ana") == "milk, tea"


def test_subgraph_gets_the_store_and_the_user_of_the_run(line: Line) -> None:
    inner: Any = StateGraph(MessagesState)
    inner.add_node("remember", remember).add_edge(START, "remember")
    runs = graph(line, inner.compile())
    runs.invoke({"messages": "tea"}, context=Context("ana"))
    assert last(runs.invoke({"messages": "x"}, context=Context("ana"))) == "tea"
    assert last(runs.invoke({"messages": "x"}, context=Context("ben"))) == ""


def test_async_node_may_call_the_sync_methods_of_the_store(line: Line) -> None:
    """Users reported a deadlock when a sync method was called inside the event loop."""

    async def node(state: MessagesState) -> dict[str, Any]:
        store = get_store()
        store.put(NS, "k", {"n": 1})
        found = [store.get(NS, "k") is not None, len(store.search(NS)), store.list_namespaces()]
        store.delete(NS, "k")
        return {"messages": [AIMessage(str([*found, store.get(NS, "k")]))]}

    state = asyncio.run(graph(line, node).ainvoke({"messages": "x"}, context=Context("ana")))
    assert last(state) == "[True, 1, [('same', 'place')], None]"
