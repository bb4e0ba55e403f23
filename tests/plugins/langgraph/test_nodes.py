"""Memory in plain graphs: nodes, hooks, tools, and the factories named in `langgraph.json`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import UntrackedValue  # pyright: ignore[reportMissingTypeStubs]
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph.prebuilt import (
    ToolNode,
    create_react_agent,  # pyright: ignore[reportDeprecated, reportUnknownVariableType]
)

from plugins.langgraph.conftest import AGENT, Line
from plugins.langgraph.models import Model, calling
from threefold import CircuitBreaker, InvalidRequest, Policy, Unreachable
from threefold.render import FENCE_MARK
from threefold_langgraph import ThreefoldSaver, ThreefoldStore, flush_node, memory_tools, pre_model_hook, recall_node
from threefold_langgraph.server import create_checkpointer, create_store

CODE = "The gate code is 4711."


class State(MessagesState):
    """Messages and the recalled memory, which no checkpoint stores."""

    memory: Annotated[str, UntrackedValue]


def of(user: str = "ana", thread: str = "t") -> RunnableConfig:
    return {"configurable": {"user_id": user, "thread_id": thread}}


def words(line: Line, thread: str = "t", user: str = "ana") -> list[str]:
    with line.service.client(user=user, agent=AGENT, timeout=60.0) as client:
        return [turn.content for turn in client.turns(thread).turns]


def graph(line: Line, model: Model, **options: Any) -> Any:
    """Return a graph that recalls, asks the model and records."""
    memory = line.connection(**options)

    def chat(state: State) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(state["memory"]), *state["messages"]])]}

    builder: Any = StateGraph(State)
    builder.add_node("recall", recall_node(memory))
    builder.add_node("chat", chat)
    builder.add_node("flush", flush_node(memory))
    for first, second in ((START, "recall"), ("recall", "chat"), ("chat", "flush"), ("flush", END)):
        builder.add_edge(first, second)
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("is_async", [False, True])
def test_nodes_recall_and_record(line: Line, is_async: bool) -> None:
    model = Model()
    runs = graph(line, model)

    def say(text: str, config: RunnableConfig) -> None:
        asked = {"messages": text}, config
        _ = asyncio.run(runs.ainvoke(*asked)) if is_async else runs.invoke(*asked)

    say(CODE, of(thread="told"))
    say("What is the gate code?", of())
    say("What is the gate code?", of("ben"))
    assert ["4711" in prompt.replace(CODE, "", 0) for prompt in model.prompts] == [True, True, False]
    assert FENCE_MARK in model.sent[1][0].text
    assert words(line) == ["What is the gate code?", "Noted."]
    say("And again?", of())
    assert words(line) == ["What is the gate code?", "Noted.", "And again?", "Noted."]
    assert FENCE_MARK not in "".join(map(str, runs.get_state_history(of())))


def test_turns_of_a_failed_run_are_recorded_by_the_next(line: Line) -> None:
    model = Model()
    runs = graph(line, model)

    def fail() -> None:
        raise TimeoutError

    model.before = fail
    with pytest.raises(TimeoutError):
        runs.invoke({"messages": "first"}, of())
    model.before = lambda: None
    runs.invoke({"messages": "second"}, of())
    assert words(line) == ["first", "second", "Noted."]


def test_strict_nodes_raise_and_resume_where_they_failed(line: Line) -> None:
    model = Model()
    runs = graph(line, model, policy=Policy(failure_mode="strict", breaker=CircuitBreaker(threshold=9)))
    line.is_cut = True
    with pytest.raises(Unreachable):
        runs.invoke({"messages": "Hello."}, of())
    line.is_cut = False
    runs.invoke(None, of())
    assert len(model.sent) == 1
    assert words(line) == ["Hello.", "Noted."]


def test_nodes_require_a_thread_and_a_user(line: Line) -> None:
    node: Any = recall_node(line.connection())
    with pytest.raises(InvalidRequest, match="thread_id"):
        node.invoke({"messages": []}, {"configurable": {"user_id": "ana"}})
    with pytest.raises(InvalidRequest, match="no user"):
        node.invoke({"messages": []}, {"configurable": {"thread_id": "t"}})
    assert node.invoke({"messages": []}, of()) == {"memory": ""}


@pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10")
@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_of_a_react_agent_recall_and_record(line: Line, is_async: bool) -> None:
    def weather(town: str) -> str:
        """The weather in a town."""
        return f"Sunny in {town}."

    memory = line.connection()
    line.service.client(user="ana", agent=AGENT).save(CODE)
    model = Model(replies=[calling("weather", town="Bern"), "Done."])
    hooks: dict[str, Any] = {"pre_model_hook": pre_model_hook(memory), "post_model_hook": flush_node(memory)}
    make: Any = create_react_agent  # pyright: ignore[reportDeprecated, reportUnknownVariableType]
    runs = make(model, [weather], version="v2", **hooks)
    asked = {"messages": "What is the gate code?"}, of()
    state = asyncio.run(runs.ainvoke(*asked)) if is_async else runs.invoke(*asked)
    assert ["4711" in prompt for prompt in model.prompts] == [True, True]
    assert FENCE_MARK not in "".join(str(message.content) for message in state["messages"])
    assert words(line) == [
        "What is the gate code?",
        'weather({"town": "Bern"})',
        "Sunny in Bern.",
        "Done.",
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_in_a_plain_graph_use_the_identity_of_the_run(line: Line, is_async: bool) -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(memory_tools(line.connection())))
    builder.add_edge(START, "tools").add_edge("tools", END)
    runs = builder.compile()

    def call(run: RunnableConfig, name: str, **arguments: Any) -> str:
        asked = {"messages": [calling(name, **arguments)]}, run
        state = asyncio.run(runs.ainvoke(*asked)) if is_async else runs.invoke(*asked)
        return state["messages"][-1].text

    assert "aved" in call(of(), "save_memory", text=CODE)
    assert "4711" in call(of(), "search_memory", query="gate code")
    assert "4711" not in call(of("ben"), "search_memory", query="gate code")
    assert "4711" not in call(
        of("ben"), "search_memory", query="gate code", config={"configurable": {"user_id": "ana"}}
    )
    assert "4711" not in call(of("ben"), "search_memory", query="gate code", user_id="ana")


def test_tools_offer_the_levels_up_to_the_ceiling(line: Line) -> None:
    connection = line.connection(client_user="ana")
    [unknown] = memory_tools(connection, ["search_memory"])
    [known] = memory_tools(connection, ["search_memory"], whoami=connection.client.whoami())
    assert "'user'" not in str(unknown.args_schema)
    assert "'user'" in str(known.args_schema)


def test_factories_for_langgraph_json_open_saver_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_URL", "http://127.0.0.1:1")

    async def open_both() -> None:
        async with create_checkpointer() as saver, create_store() as store:
            assert isinstance(saver, ThreefoldSaver)
            assert isinstance(store, ThreefoldStore)

    asyncio.run(open_both())
