"""A scripted chat model that records what it was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

Reply = str | AIMessage


class Model(BaseChatModel):
    """Returns its replies in order and repeats the last one."""

    replies: list[Reply] = Field(default_factory=lambda: ["Noted."])
    sent: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])
    before: Callable[[], None] = lambda: None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def prompts(self) -> list[str]:
        """The messages of each call, joined into one text."""
        return ["\n".join(str(message.text) for message in messages) for messages in self.sent]

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.sent.append(messages)
        self.before()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        message = AIMessage(reply) if isinstance(reply, str) else reply.model_copy()
        return ChatResult(generations=[ChatGeneration(message=message)])


def calling(name: str, **arguments: Any) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}", "type": "tool_call"}])
