"""A support agent on Pydantic AI that remembers each of its users.

    threefold serve                                # in another terminal
    python examples/with_pydantic_ai/agent.py      # with a scripted model, without a network
    MODEL=openai-chat:gpt-5-mini python examples/with_pydantic_ai/agent.py

MODEL may name any model of Pydantic AI. OPENAI_BASE_URL and OPENAI_API_KEY set any OpenAI-compatible endpoint, which
needs `pip install "pydantic-ai-slim[openai]"`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from uuid import uuid4

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextContent, TextPart, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from threefold_pydantic_ai import ThreefoldMemory


@dataclass
class Request:
    """What the application knows about a request: here, the user who is signed in."""

    user: str


def signed_in(ctx: RunContext[Request]) -> str:
    return ctx.deps.user


def scripted() -> Model:
    """Return a scripted model that repeats the first recalled memory, or says that it takes note."""

    async def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
        texts = [item for part in parts if not isinstance(part.content, str) for item in part.content]
        recalled = "\n".join(text.content for text in texts if isinstance(text, TextContent))
        told = [line.partition("] ")[2] for line in recalled.splitlines() if ", user]" in line]
        return ModelResponse([TextPart(f"You told me: {told[0]}" if told else "I take note.")])

    return FunctionModel(reply)


agent = Agent(
    os.environ.get("MODEL") or scripted(),
    deps_type=Request,
    instructions="You help with a web shop. Answer in one short sentence.",
    capabilities=[ThreefoldMemory(agent="shop", user=signed_in)],
)


async def say(user: str, text: str, session: str) -> None:
    result = await agent.run(text, deps=Request(user), conversation_id=session)
    print(f"{user}: {text}\nagent: {result.output}\n")


async def main() -> None:
    ana, bob = f"ana-{uuid4().hex[:6]}", f"bob-{uuid4().hex[:6]}"
    await say(ana, "Always send my parcels to Oslo.", "monday")
    await say(bob, "Where do you send my parcels?", "monday")  # another user with the same session id
    await say(ana, "Where do you send my parcels?", "tuesday")


if __name__ == "__main__":
    asyncio.run(main())
