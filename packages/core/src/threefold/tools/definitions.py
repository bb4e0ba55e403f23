"""The tools that a model is offered: names, descriptions, profiles, and the call of a tool by its name.

No tool has an argument for an identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from threefold.checks import checked
from threefold.contract import Level, WhoAmI
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.session import AsyncMemorySession, MemorySession
from threefold.tools import arguments as models
from threefold.tools.answers import failure_text, wrong_call
from threefold.tools.arguments import Action, Arguments, InWorkspace, in_store

ToolName = Literal[
    "search_memory", "save_memory", "load_memory", "prefetch_memory", "record", "list_memories", "forget"
]
ProfileName = Literal["threefold", "kagent", "kaigents"]
Effect = Literal["reads", "adds", "erases"]

DEFAULT_TOOLS: tuple[ToolName, ...] = ("search_memory", "save_memory")


@dataclass(frozen=True)
class Tool:
    """One tool or prompt, as a framework needs it."""

    name: str
    description: str
    arguments: type[Arguments]
    use: str
    """The part of `tools_hint` that says when to call the tool."""
    effect: Effect = "reads"
    by_ceiling: Mapping[Level, type[Arguments]] = field(default_factory=dict[Level, type[Arguments]])
    """For a ceiling: the arguments whose levels do not exceed it (default: `arguments`)."""

    def parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments.

        Titles and the docstring of the class are left out to save tokens.
        """
        schema = self.arguments.model_json_schema()
        for part in (schema, *schema["properties"].values()):
            part.pop("title", None)
        schema.pop("description", None)
        return schema

    def offered_to(self, whoami: WhoAmI | None) -> Tool:
        """Return the tool as an identity may use it.

        Args:
            whoami: The identity. None offers the levels up to `agent`.

        Returns:
            The tool with the levels that this identity may read, and the store as its only workspace.
        """
        arguments = self.by_ceiling.get(whoami.ceiling if whoami else "agent", self.arguments)
        if whoami is not None and issubclass(arguments, InWorkspace):
            arguments = in_store(arguments, whoami.store.name)
        return replace(self, arguments=arguments)


@dataclass(frozen=True)
class Profile:
    """The tools and prompts for one kind of client."""

    tools: Mapping[str, Tool]
    default: tuple[str, ...]
    """Names of the tools that are offered if none are named."""
    prompts: Mapping[str, Tool]


def by_name(*tools: Tool) -> dict[str, Tool]:
    """Return tools by their names."""
    return {tool.name: tool for tool in tools}


TOOLS: Mapping[str, Tool] = by_name(
    Tool(
        "search_memory",
        "Search long-term memory for what was said or learnt in earlier conversations.",
        models.SearchMemoryToUser,
        "search_memory to look up what was said or learnt earlier",
        by_ceiling={"session": models.SearchMemory, "agent": models.SearchMemoryToAgent},
    ),
    Tool(
        "save_memory",
        "Save one lasting fact to long-term memory, for later conversations.",
        models.SaveMemory,
        "save_memory to keep a fact that will matter later",
        effect="adds",
    ),
    Tool(
        "load_memory",
        "Load the memories that matter for a query.",
        models.LoadMemory,
        "load_memory to load what matters for a query",
    ),
    Tool(
        "prefetch_memory",
        "Load everything that matters for a message: recent turns, the digest and memories.",
        models.PrefetchMemory,
        "prefetch_memory to load all context for a message",
    ),
    Tool(
        "record",
        "Record what was said in this conversation, word for word, so that later conversations can recall it.",
        models.Record,
        "record to keep what was said, word for word",
        effect="adds",
    ),
    Tool(
        "list_memories",
        "List what is remembered, newest first, with the id of each memory.",
        models.ListMemoriesToUser,
        "list_memories to see all that is remembered",
        by_ceiling={"session": models.ListMemories, "agent": models.ListMemoriesToAgent},
    ),
    Tool(
        "forget",
        "Erase memories for good, by their ids. Only when the user asks for it.",
        models.Forget,
        "forget to erase what the user wants forgotten",
        effect="erases",
    ),
)

RECALL_PROMPT = Tool("recall", "Recall what is remembered about a subject.", models.Recall, "recall")

PROFILES: Mapping[ProfileName, Profile] = {
    "threefold": Profile(
        TOOLS,
        ("search_memory", "save_memory", "load_memory", "record", "list_memories"),
        by_name(RECALL_PROMPT),
    ),
    "kagent": Profile(
        by_name(
            replace(TOOLS["save_memory"], arguments=models.KagentSave),
            replace(
                TOOLS["load_memory"],
                arguments=models.KagentLoad,
                description="Load the memories that matter for a query, as JSON.",
            ),
            replace(
                TOOLS["prefetch_memory"],
                arguments=models.KagentPrefetch,
                description="Load the memories that matter for a message, before it is answered.",
                use="prefetch_memory to load what matters for a message",
            ),
        ),
        ("save_memory", "load_memory", "prefetch_memory"),
        by_name(
            Tool(
                "prefetch_memory",
                "Load memories for a message.",
                models.KagentPrefetch,
                "prefetch_memory",
            ),
            RECALL_PROMPT,
        ),
    ),
    "kaigents": Profile(
        by_name(
            Tool(
                "memory.record",
                "Keep a note in this session, or a fact for every later one.",
                models.KaigentsRecord,
                "memory.record to keep something",
                effect="adds",
            ),
            Tool(
                "memory.query",
                "Search long-term memory.",
                models.KaigentsQuery,
                "memory.query to look something up",
            ),
            Tool(
                "memory.recall",
                "Search long-term memory, with the digest of this session.",
                models.KaigentsRecall,
                "memory.recall to look it up together with the story so far",
            ),
            Tool(
                "memory.consolidate",
                "Consolidate what this session has said so far, without waiting for it to go idle.",
                models.KaigentsConsolidate,
                "memory.consolidate at the end of a run",
                effect="adds",
            ),
            Tool(
                "memory.assemble_context",
                "Assemble digest, memories and latest turns for a query, within a budget of tokens.",
                models.KaigentsContext,
                "memory.assemble_context to load all context for a query",
            ),
        ),
        ("memory.record", "memory.query", "memory.recall", "memory.consolidate", "memory.assemble_context"),
        by_name(RECALL_PROMPT),
    ),
}


def memory_tools(whoami: WhoAmI | None = None, names: Sequence[str] = DEFAULT_TOOLS) -> list[Tool]:
    """Return tools for a model, by their names.

    Args:
        whoami: The identity that will use the tools; its ceiling limits the levels that a model may choose. None
            (default) offers the levels up to `agent`.
        names: `search_memory`, `save_memory` (both by default), `load_memory`, `prefetch_memory`, `record`,
            `list_memories`, `forget`.

    Returns:
        The tools in the order of `names`.

    Raises:
        InvalidRequest: There is no tool with one of the names.

    Example:
        >>> [tool.name for tool in memory_tools()]
        ['search_memory', 'save_memory']
    """
    return profile_tools("threefold", whoami, names)


def profile_tools(
    profile: ProfileName, whoami: WhoAmI | None = None, names: Sequence[str] | None = None, *, read_only: bool = False
) -> list[Tool]:
    """Return tools of a profile.

    Args:
        profile: `threefold`, `kagent` or `kaigents`.
        whoami: The identity that will use the tools. None (default) offers the levels up to `agent`.
        names: Names of tools of the profile (default: the default tools of the profile).
        read_only: Leave out tools that add or erase.

    Returns:
        The tools in the order of `names`.

    Raises:
        InvalidRequest: The profile has no tool with one of the names.
    """
    known = PROFILES[profile]
    chosen = known.default if names is None else names
    unknown = [name for name in chosen if name not in known.tools]
    if unknown:
        raise InvalidRequest(f"tools: profile {profile!r} has no {unknown[0]!r}; it has {', '.join(known.tools)}")
    tools = [known.tools[name] for name in chosen]
    return [tool.offered_to(whoami) for tool in tools if not read_only or tool.effect == "reads"]


def tools_hint(tools: Sequence[Tool]) -> str:
    """Return one sentence for the instructions of a model, which says when to call each tool.

    Args:
        tools: At least one tool.

    Returns:
        The sentence.
    """
    return f"You have a memory of earlier conversations: call {', or '.join(tool.use for tool in tools)}."


def run_tool(
    session: MemorySession, name: str, arguments: Mapping[str, Any], tools: Sequence[Tool] | None = None
) -> str:
    """Run the tool that a model called.

    Args:
        session: The session to act on.
        name: The name of the tool, as the model gave it.
        arguments: The arguments, as the model gave them.
        tools: The tools that were offered (default: all tools that do not erase).

    Returns:
        The answer for the model. For a wrong call it says what is wrong; in an outage, that memory is not available.

    Raises:
        ThreefoldError: In the failure mode `strict`, if the service refused the call or did not answer.
    """
    try:
        action = find_action(name, arguments, tools)
        return action if isinstance(action, str) else action.text(action.run(session))
    except InvalidRequest as error:
        return wrong_call(error)
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        return failure_text(error)


async def run_tool_async(
    session: AsyncMemorySession, name: str, arguments: Mapping[str, Any], tools: Sequence[Tool] | None = None
) -> str:
    """Run the tool that a model called, for asynchronous code.

    Args:
        session: The session to act on.
        name: The name of the tool, as the model gave it.
        arguments: The arguments, as the model gave them.
        tools: The tools that were offered (default: all tools that do not erase).

    Returns:
        The answer for the model. For a wrong call it says what is wrong; in an outage, that memory is not available.

    Raises:
        ThreefoldError: In the failure mode `strict`, if the service refused the call or did not answer.
    """
    try:
        action = find_action(name, arguments, tools)
        return action if isinstance(action, str) else action.text(await action.run(session))
    except InvalidRequest as error:
        return wrong_call(error)
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        return failure_text(error)


def find_action(name: str, arguments: Mapping[str, Any], tools: Sequence[Tool] | None = None) -> Action | str:
    """Return the action that a call of a tool asks for, or its answer if no call of the service is needed.

    Args:
        name: The name of the tool.
        arguments: Its arguments.
        tools: The tools that were offered (default: all tools that do not erase).

    Returns:
        The action, or the answer for the model.

    Raises:
        InvalidRequest: There is no such tool, or an argument is wrong; the message is written for a model.
    """
    offered = [tool for tool in TOOLS.values() if tool.effect != "erases"] if tools is None else tools
    tool = next((tool for tool in offered if tool.name == name), None)
    if tool is None:
        raise InvalidRequest(f"there is no tool {name!r}; the tools are {', '.join(tool.name for tool in offered)}")
    return checked(tool.arguments, **arguments).action()
