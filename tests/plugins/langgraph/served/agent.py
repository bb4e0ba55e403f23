"""A graph and an `auth` for LangGraph Server, which the tests run in an environment of its own."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph_sdk import Auth


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer with the number of messages so far."""
    return {"messages": [AIMessage(f"message {len(state['messages'])}")]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile()  # pyright: ignore[reportUnknownMemberType]

auth = Auth()


@auth.authenticate
async def verify(headers: dict[bytes, bytes]) -> Auth.types.MinimalUserDict:
    """Take the user from a header, as a proxy would set it."""
    return {"identity": headers[b"x-user"].decode()}
