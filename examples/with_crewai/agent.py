"""A support crew on CrewAI that remembers each of its users.

    threefold serve                                                                 # in another terminal
    python examples/with_crewai/agent.py ana monday "I deploy to staging on Fridays."
    python examples/with_crewai/agent.py ana tuesday "When do I deploy?"            # another session, another process
    python examples/with_crewai/agent.py ben tuesday "When do I deploy?"            # another user

A scripted model answers without a network. MODEL may name a model of any OpenAI-compatible endpoint
(OPENAI_API_KEY, OPENAI_BASE_URL).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from crewai import LLM, Agent, BaseLLM, Crew, Task

from threefold_crewai import ThreefoldMemory


class Scripted(BaseLLM):
    """A scripted model that repeats the recalled memories."""

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        told = [line[2:] for line in str(messages[-1]["content"]).splitlines() if line.startswith("- [")]
        return "Final Answer: " + ("I remember: " + "; ".join(told) if told else "Noted.")


def build() -> Any:
    """Build the crew: one object for all users."""
    name = os.environ.get("MODEL")
    helper = Agent(
        role="Support",
        goal="Answer the user.",
        backstory="You are a support agent.",
        llm=LLM(model=name, provider="openai") if name else Scripted(model="scripted"),
    )
    task = Task(description="{text}", expected_output="An answer in one sentence.", agent=helper)
    return Crew(name="support", agents=[helper], tasks=[task], memory=ThreefoldMemory())


def main(user: str, session: str, text: str) -> None:
    """Run one request of one user in one session."""
    print(build().kickoff({"text": text, "user_id": user, "session_id": session}).raw)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python agent.py USER SESSION TEXT; `threefold serve` has to run")
    main(*sys.argv[1:])
