"""`ThreefoldToolset`: the memory tools of a model, with the identity of its run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
from google.adk.tools.tool_context import ToolContext
from google.genai.types import Content, FunctionDeclaration, Part

from threefold import AsyncMemoryClient, Policy, tools_hint
from threefold.bounded import Bounded
from threefold.spool import SessionKey
from threefold.tools.arguments import KAGENT_RECALL
from threefold.tools.definitions import DEFAULT_TOOLS, PROFILES, Tool, profile_tools, run_tool_async
from threefold_adk.events import words_of
from threefold_adk.identity import session_of

Profile = Literal["threefold", "kagent"]

NAMES: dict[Profile, Sequence[str]] = {"threefold": DEFAULT_TOOLS, "kagent": PROFILES["kagent"].default}
PREFETCH = "prefetch_memory"
KNOWN_RUNS = 256


class ThreefoldToolset(BaseToolset):
    """The memory tools, and a sentence in the instructions about them. One object serves all users.

    The profile `kagent` has the tools of kagent's agents: `save_memory`, `load_memory` and `prefetch_memory`. No model
    calls `prefetch_memory`: it inserts the block for the first message of a session before that message.

    Args:
        client: The client; it must be allowed to name users and agents (default: `AsyncMemoryClient.from_env()`).
        profile: `threefold` (default) or `kagent`.
        tools: Names of tools of the profile (default: `search_memory` and `save_memory`, or all of `kagent`).
        policy: Failure mode, breaker and spool (default: a new `Policy`).
        tool_filter: Filter of ADK over the tools.
        tool_name_prefix: Prefix of ADK for the names of the tools.

    Raises:
        InvalidRequest: The profile has no tool with one of the names.
        ValueError: The URL or the key in the environment is not valid.
    """

    def __init__(
        self,
        client: AsyncMemoryClient | None = None,
        *,
        profile: Profile = "threefold",
        tools: Sequence[str] | None = None,
        policy: Policy | None = None,
        tool_filter: ToolPredicate | list[str] | None = None,
        tool_name_prefix: str | None = None,
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix)
        self._client = client or AsyncMemoryClient.from_env()
        self._owns_client = client is None
        self._profile: Profile = profile
        names = NAMES[profile] if tools is None else tools
        profile_tools(profile, names=names)  # raises for an unknown name
        self._prefetches = profile == "kagent" and PREFETCH in names
        self._names = [name for name in names if not (self._prefetches and name == PREFETCH)]
        self._policy = policy or Policy()
        self._prefetched: Bounded[tuple[SessionKey, str], str] = Bounded(KNOWN_RUNS)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tools with the levels that the user of a run may read.

        Args:
            readonly_context: The context of the run. None offers the levels up to `agent`.
        """
        tools = [MemoryTool(self, tool) for tool in await self.offered_to(readonly_context)]
        return [tool for tool in tools if self._is_tool_selected(tool, readonly_context)]

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Add the sentence about the tools, and in the profile `kagent` the block for the first message.

        Args:
            tool_context: The context of the run.
            llm_request: The request; it is changed.
        """
        if self._names:
            llm_request.append_instructions([tools_hint(profile_tools(self._profile, names=self._names))])
        if self._prefetches:
            block = await self._prefetch(tool_context)
            if block:
                _insert(llm_request.contents, tool_context.user_content, block)

    async def run(self, name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        """Run the tool that a model called, with the identity of its run.

        Args:
            name: The name of the tool, without the prefix of ADK.
            arguments: The arguments of the model.
            context: The context of the call.

        Returns:
            The answer for the model.

        Raises:
            ThreefoldError: In the failure mode `strict`, if the service refused the call or did not answer.
        """
        session = session_of(self._client, context.session, self._policy)
        return await run_tool_async(session, name, arguments, await self.offered_to(context))

    async def offered_to(self, context: ReadonlyContext | None) -> list[Tool]:
        """Return the tools with the levels that the user of a run may read.

        Args:
            context: The context of the run. None offers the levels up to `agent`.
        """
        whoami = context and await session_of(self._client, context.session, self._policy).identity()
        return profile_tools(self._profile, whoami, self._names)

    async def close(self) -> None:
        """Close the connections of the running event loop, unless the client was passed in."""
        if self._owns_client:
            await self._client.close()

    async def _prefetch(self, context: ReadonlyContext) -> str:
        """Return the block for the first message of a session, which is recalled once; later an empty string."""
        query = words_of(context.user_content)
        is_first = all(event.invocation_id == context.invocation_id for event in context.session.events)
        if not is_first or not query.strip():
            return ""
        session = session_of(self._client, context.session, self._policy)
        run = (session.key, context.invocation_id)
        if run not in self._prefetched:
            self._prefetched[run] = (await session.recall(query, **KAGENT_RECALL)).block
        return self._prefetched[run]


class MemoryTool(BaseTool):
    """One tool of a toolset as a tool of ADK."""

    def __init__(self, toolset: ThreefoldToolset, tool: Tool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._toolset = toolset
        self._tool = tool

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._tool.parameters()
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> str:
        return await self._toolset.run(self._tool.name, args, tool_context)


def _insert(contents: list[Content], prompt: Content | None, block: str) -> None:
    """Insert the block before the user's message, where ADK inserts the context of a request too."""
    positions = [position for position, content in enumerate(contents) if content == prompt]
    contents.insert(positions[-1] if positions else 0, Content(role="user", parts=[Part(text=block)]))
