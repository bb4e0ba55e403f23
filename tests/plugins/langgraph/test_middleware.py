"""`ThreefoldMiddleware`: what it recalls and records, where the block is placed, and runs during an outage."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from plugins.langgraph.conftest import AGENT, Line
from plugins.langgraph.models import Model, Reply, calling
from threefold import CircuitBreaker, Forbidden, InvalidRequest, Policy, Unreachable
from threefold.contract import Turn
from threefold.render import FENCE_MARK
from threefold_langgraph.middleware import ThreefoldMiddleware


def agent(line: Line, *replies: Reply, tools: Any = (), **options: Any) -> tuple[Any, Model]:
    """Return an agent with memory, and its model."""
    model = Model(replies=list(replies) or ["Noted."])
    policy = options.pop("policy", None) or Policy()
    middleware: Any = ThreefoldMiddleware(line.connection(policy=policy), tools=options.pop("memory_tools", ()))
    return create_agent(model, tools, middleware=[middleware], **options), model


def of(user: str = "ana", thread: str = "t", **more: Any) -> RunnableConfig:
    return {"configurable": {"user_id": user, "thread_id": thread, **more}}


def turns(line: Line, thread: str = "t", user: str = "ana") -> list[Turn]:
    with line.service.client(user=user, agent=AGENT, timeout=60.0) as client:
        return client.turns(thread).turns


def words(line: Line, thread: str = "t", user: str = "ana") -> list[str]:
    return [turn.content for turn in turns(line, thread, user)]


@pytest.mark.parametrize("is_async", [False, True])
def test_block_follows_the_prompt_and_is_in_no_state(line: Line, is_async: bool) -> None:
    runs, model = agent(line, checkpointer=InMemorySaver(), system_prompt="Be nice.")

    def say(text: str, thread: str) -> Any:
        asked = {"messages": text}, of(thread=thread)
        return asyncio.run(runs.ainvoke(*asked)) if is_async else runs.invoke(*asked)

    say("The gate code is 4711.", "told")
    state = say("What is the gate code?", "asked")
    system, prompt = model.sent[-1]
    assert isinstance(system, SystemMessage)
    assert system.text == "Be nice."
    assert prompt.text.startswith("What is the gate code?\n\n<threefold-memory")
    assert "4711" in prompt.text
    assert [message.text for message in state["messages"]] == ["What is the gate code?", "Noted."]
    kept = [str(found) for found in runs.get_state_history(of(thread="asked"))]
    assert kept
    assert FENCE_MARK not in "".join(kept)
    assert words(line, "asked") == ["What is the gate code?", "Noted."]


def test_run_sends_one_recall_and_one_write(line: Line) -> None:
    runs, _ = agent(line)
    runs.invoke({"messages": "first"}, of())
    line.asked.clear()
    runs.invoke({"messages": "second"}, of())
    assert line.asked == ["POST /v1/recall", "POST /v1/write"]


def test_model_with_the_conversation_gets_no_window(line: Line) -> None:
    runs, model = agent(line, checkpointer=InMemorySaver())
    for text in ("I have a red bicycle.", "Which bicycle have I?"):
        runs.invoke({"messages": text}, of())
    assert Counter(model.prompts[-1].split())["bicycle."] == 1
    without, other = agent(line)
    without.invoke({"messages": "And which bicycle?"}, of())
    assert "I have a red bicycle." in other.prompts[-1]


def test_tool_calls_and_results_are_recorded_as_one_group(line: Line) -> None:
    def weather(town: str) -> str:
        """The weather in a town."""
        return f"Sunny in {town}."

    runs, _ = agent(line, calling("weather", town="Bern"), "It is sunny.", tools=[weather])
    runs.invoke({"messages": "What is the weather in Bern?"}, of())
    found = turns(line)
    assert [(turn.role, turn.kind, turn.name, turn.content) for turn in found] == [
        ("user", "message", None, "What is the weather in Bern?"),
        ("assistant", "tool_call", "weather", 'weather({"town": "Bern"})'),
        ("tool", "tool_result", "weather", "Sunny in Bern."),
        ("assistant", "message", None, "It is sunny."),
    ]
    assert found[1].group is not None
    assert found[1].group == found[2].group


@pytest.mark.parametrize("ids", [("", ""), ("same", "same"), ("x" * 600, "y"), ("a\0b", "\ud83d")])
def test_tool_calls_with_any_ids_are_recorded(line: Line, ids: tuple[str, str]) -> None:
    def weather(town: str) -> str:
        """The weather in a town."""
        return f"Sunny in {town}."

    towns = zip(("Bern", "Rome"), ids, strict=True)
    asked: Any = [{"name": "weather", "args": {"town": t}, "id": i, "type": "tool_call"} for t, i in towns]
    runs, _ = agent(line, AIMessage("", tool_calls=asked), "Sunny.", tools=[weather])
    runs.invoke({"messages": [HumanMessage("Where is it sunny?", id="\0" * 600)]}, of())
    assert [turn.kind for turn in turns(line)] == ["message", *["tool_call"] * 2, *["tool_result"] * 2, "message"]


def test_interrupted_run_resumed_elsewhere_is_recorded_once(line: Line) -> None:
    def pay(amount: int) -> str:
        """Pay."""
        return f"{interrupt('really?')}: {amount}"

    saver = InMemorySaver()
    agent(line)[0].invoke({"messages": "The gate code is 4711."}, of(thread="earlier"))
    first, _ = agent(line, calling("pay", amount=5), tools=[pay], checkpointer=saver)
    first.invoke({"messages": "Pay 5 at the gate with its code."}, of())
    assert [turn.kind for turn in turns(line)] == ["message", "tool_call"]
    second, model = agent(line, "Paid.", tools=[pay], checkpointer=saver)
    second.invoke(Command(resume="yes"), of())
    assert "4711" in model.prompts[-1]
    assert words(line) == ["Pay 5 at the gate with its code.", 'pay({"amount": 5})', "yes: 5", "Paid."]


def test_strict_run_fails_after_the_answer_and_resumes_without_asking_again(line: Line) -> None:
    policy = Policy(failure_mode="strict", breaker=CircuitBreaker(threshold=9))
    runs, model = agent(line, checkpointer=InMemorySaver(), policy=policy)

    def cut() -> None:
        line.is_cut = True

    model.before = cut
    with pytest.raises(Unreachable):
        runs.invoke({"messages": "Hello."}, of())
    assert runs.get_state(of()).next == ("threefold.after_agent",)
    line.is_cut = False
    state = runs.invoke(None, of())
    assert state["messages"][-1].text == "Noted."
    assert len(model.sent) == 1
    assert words(line) == ["Hello.", "Noted."]


def test_failed_run_is_recorded_once_when_repeated(line: Line) -> None:
    runs, model = agent(line, checkpointer=InMemorySaver())

    def fail() -> None:
        raise TimeoutError("the model is busy")

    model.before = fail
    with pytest.raises(TimeoutError):
        runs.invoke({"messages": "Hello."}, of())
    assert words(line) == ["Hello."]
    model.before = lambda: None
    runs.invoke(None, of())
    assert words(line) == ["Hello.", "Noted."]
    assert FENCE_MARK not in model.prompts[-1]  # the turn that is being answered is not recalled as a memory


def test_message_with_a_known_id_is_recorded_once(line: Line) -> None:
    for _ in range(2):
        runs, _ = agent(line, AIMessage("Noted.", id="a1"))
        runs.invoke({"messages": [HumanMessage("Hello.", id="h1")]}, of())
    assert words(line) == ["Hello.", "Noted."]


def test_summaries_are_not_recorded(line: Line) -> None:
    runs, _ = agent(line)
    summary = HumanMessage("Summary: 4711", additional_kwargs={"lc_source": "summarization"})
    runs.invoke({"messages": [summary, HumanMessage("Hello.")]}, of())
    assert words(line) == ["Hello.", "Noted."]


def test_images_are_recorded_as_marks_and_reasoning_is_not_recorded(line: Line) -> None:
    thinking = AIMessage([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "A pixel."}])
    runs, model = agent(line, thinking)
    picture: Any = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://x.org/a"}},
    ]
    runs.invoke({"messages": [HumanMessage(picture)]}, of())
    assert words(line) == ["What is this?\n[image]", "A pixel."]
    runs.invoke({"messages": [HumanMessage(picture)]}, of(thread="other"))
    blocks: Any = model.sent[-1][-1].content
    assert [block["type"] for block in blocks] == ["text", "image_url", "text"]
    assert FENCE_MARK in blocks[-1]["text"]


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        ({"configurable": {"user_id": "ana"}}, InvalidRequest, "thread_id"),
        ({"configurable": {"thread_id": "t"}}, InvalidRequest, "no user"),
        (of(langgraph_auth_user={"identity": "ben"}), Forbidden, "verified"),
    ],
)
def test_run_without_user_or_thread_fails_before_the_model_is_called(
    line: Line, config: RunnableConfig, error: type[Exception], says: str
) -> None:
    runs, model = agent(line)
    with pytest.raises(error, match=says):
        runs.invoke({"messages": "Hello."}, config)
    assert model.sent == []
    assert line.asked == []


@pytest.mark.parametrize("is_async", [False, True])
def test_memory_tools_act_for_the_user_of_the_run(line: Line, is_async: bool) -> None:
    names = ("search_memory", "save_memory")

    def run(user: str, thread: str, *replies: Reply) -> Model:
        runs, model = agent(line, *replies, memory_tools=names)
        asked = {"messages": "Go on."}, of(user, thread)
        _ = asyncio.run(runs.ainvoke(*asked)) if is_async else runs.invoke(*asked)
        return model

    saved = run("ana", "1", calling("save_memory", text="The gate code is 4711."), "Done.")
    assert "call search_memory" in saved.sent[0][0].text  # the sentence of the system prompt about the tools
    found = run("ana", "2", calling("search_memory", query="gate code"), "Done.")
    assert "4711" in found.sent[1][-1].text
    other = run("ben", "2", calling("search_memory", query="gate code"), "Done.")
    assert "4711" not in other.prompts[-1]
    wrong = run("ben", "3", calling("search_memory", query="gate code", user="ana"), "Done.")
    assert "4711" not in wrong.prompts[-1]
    assert "user" in wrong.sent[1][-1].text
    assert words(line, "2") == ["Go on.", "Done."]


def test_recall_and_record_can_be_separate_middlewares(line: Line) -> None:
    line.service.client(user="ana", agent=AGENT).save("The gate code is 4711.")
    model = Model()
    recorder: Any = ThreefoldMiddleware(line.connection(), recall=False, tools=(), name="recorder")
    recaller: Any = ThreefoldMiddleware(
        line.connection(), record=False, tools=(), options={"top_k": 0}, name="recaller"
    )
    runs: Any = create_agent(model, middleware=[recorder, recaller])
    runs.invoke({"messages": "gate code?"}, of())
    assert model.prompts == ["gate code?"]
    assert words(line) == ["gate code?", "Noted."]
