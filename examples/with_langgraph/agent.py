"""A support agent on LangGraph that remembers: Threefold keeps its threads, its items and its conversations.

    threefold serve                                                                    # in another terminal
    python examples/with_langgraph/agent.py ana monday "I deploy to staging on Fridays."
    python examples/with_langgraph/agent.py ana tuesday "When do I deploy?"            # another thread, another process
    python examples/with_langgraph/agent.py ben tuesday "When do I deploy?"            # another user

A scripted model answers without a network. MODEL may name a model of any OpenAI-compatible endpoint
(OPENAI_API_KEY, OPENAI_BASE_URL; `pip install langchain-openai`).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.prebuilt import InjectedStore

from threefold_langgraph import ThreefoldConnection, ThreefoldSaver, ThreefoldStore
from threefold_langgraph.middleware import ThreefoldMiddleware


class Scripted(BaseChatModel):
    """A scripted model that repeats the recalled memories."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [line[2:] for line in str(messages[-1].text).splitlines() if line.startswith("- [")]
        answer = AIMessage("I remember: " + "; ".join(told) if told else "Noted.")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def save_address(street: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Save the user's address."""
    store.put(("profile",), "address", {"street": street})  # saved for the run's user, whatever the namespace
    return "Saved."


def build() -> Any:
    """Build the agent: one object for all users."""
    name = os.environ.get("MODEL")
    threefold = ThreefoldConnection.from_env()
    return create_agent(
        init_chat_model(name, model_provider="openai") if name else Scripted(),
        [save_address],
        system_prompt="You are a support agent.",
        middleware=[ThreefoldMiddleware(threefold)],
        checkpointer=ThreefoldSaver(threefold),
        store=ThreefoldStore(threefold),
    )


def main(user: str, thread: str, text: str) -> None:
    """Run one turn of one user in one thread."""
    config = {"configurable": {"user_id": user, "thread_id": thread}}
    state = build().invoke({"messages": text}, config)
    print(state["messages"][-1].text)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python agent.py USER THREAD TEXT; `threefold serve` has to run")
    main(*sys.argv[1:])
