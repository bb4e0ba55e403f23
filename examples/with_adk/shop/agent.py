"""A support agent on Google ADK that remembers each of its users.

    threefold serve                                # in another terminal
    python examples/with_adk/shop/agent.py         # with a scripted model, without a network
    MODEL=gemini-2.5-flash python examples/with_adk/shop/agent.py

MODEL may name any model that ADK knows. To run it in ADK's own server, with the sessions in Threefold too:

    adk web examples/with_adk --session_service_uri=threefold://127.0.0.1:8181
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import Content, GenerateContentResponseUsageMetadata, Part

from threefold_adk import ThreefoldPlugin


class Scripted(BaseLlm):
    """A scripted model that repeats the first recalled memory, or says that it takes note."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts or []]
        lines = [line for part in parts for line in (part.text or "").splitlines()]
        told = [line.partition("] ")[2] for line in lines if line.startswith("- [") and ", user]" in line]
        answer = f"You told me: {told[0]}" if told else "I take note."
        usage = GenerateContentResponseUsageMetadata(prompt_token_count=1, candidates_token_count=1)
        yield LlmResponse(content=Content(role="model", parts=[Part(text=answer)]), usage_metadata=usage)


root_agent = LlmAgent(
    name="support",
    model=os.environ.get("MODEL") or Scripted(),
    instruction="You help with a web shop. Answer in one short sentence.",
)
app = App(name="shop", root_agent=root_agent, plugins=[ThreefoldPlugin()])


async def say(runner: Runner, user: str, text: str, session: str) -> None:
    message = Content(role="user", parts=[Part(text=text)])
    async with aclosing(runner.run_async(user_id=user, session_id=session, new_message=message)) as events:
        answers = [event.content async for event in events if event.content and event.is_final_response()]
    print(f"{user}: {text}\nagent: {''.join(part.text or '' for part in answers[-1].parts or [])}\n")


async def main() -> None:
    ana, bob = f"ana-{uuid4().hex[:6]}", f"bob-{uuid4().hex[:6]}"
    async with Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True) as runner:
        await say(runner, ana, "Always send my parcels to Oslo.", "monday")
        await say(runner, bob, "Where do you send my parcels?", "monday")  # another user with the same session id
        await say(runner, ana, "Where do you send my parcels?", "tuesday")


if __name__ == "__main__":
    asyncio.run(main())
