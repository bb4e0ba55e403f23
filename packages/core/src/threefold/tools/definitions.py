"""The tools that a model sees: names, descriptions, profiles, and one dispatcher. Identity is never an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from threefold.checks import checked
from threefold.contract import Level, WhoAmI
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.session import AsyncMemorySession, MemorySession
from threefold.tools import arguments as kinds
from threefold.tools.answers import failure_text, wrong_call
from threefold.tools.arguments import Arguments, InWorkspace, Job, in_store

ToolName = Literal[
    "search_memory", "save_memory", "load_memory", "prefetch_memory", "record", "list_memories", "forget"
]
ProfileName = Literal["threefold", "kagent", "kaigents"]
Effect = Literal["reads", "adds", "erases"]

DEFAULT_TOOLS: tuple[ToolName, ...] = ("search_memory", "save_memory")


@dataclass(frozen=True)
class Tool:
    """One tool, or one prompt, as a framework needs it."""

    name: str
    description: str
    arguments: type[Arguments]
    use: str
    """When to call it, for `tools_hint`."""
    effect: Effect = "reads"
    by_ceiling: Mapping[Level, type[Arguments]] = field(default_factory=dict[Level, type[Arguments]])
    """The arguments that let choose no level above a ceiling."""

    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments, without the names and remarks that are ours: every token costs."""
        schema = self.arguments.model_json_schema()
        for about in (schema, *schema["properties"].values()):
            about.pop("title", None)
        schema.pop("description", None)
        return schema

    def offered_to(self, whoami: WhoAmI | None) -> Tool:
        """With the levels that this identity may read, and the one workspace; up to `agent` while it is not known."""
        arguments = self.by_ceiling.get(whoami.ceiling if whoami else "agent", self.arguments)
        if whoami is not None and issubclass(arguments, InWorkspace):
            arguments = in_store(arguments, whoami.store.name)
        return replace(self, arguments=arguments)


@dataclass(frozen=True)
class Profile:
    """The tools and prompts that one kind of client knows, and which tools it gets unless it names others."""

    tools: Mapping[str, Tool]
    default: tuple[str, ...]
    prompts: Mapping[str, Tool]


def by_name(*tools: Tool) -> dict[str, Tool]:
    """The same, by their names."""
    return {tool.name: tool for tool in tools}


TOOLS: Mapping[str, Tool] = by_name(
    Tool(
        "search_memory",
        "Search long-term memory for what was said or learnt in earlier conversations.",
        kinds.SearchMemoryToUser,
        "search_memory to look up what was said or learnt earlier",
        by_ceiling={"session": kinds.SearchMemory, "agent": kinds.SearchMemoryToAgent},
    ),
    Tool(
        "save_memory",
        "Save one lasting fact to long-term memory, for later conversations.",
        kinds.SaveMemory,
        "save_memory to keep a fact that will matter later",
        effect="adds",
    ),
    Tool(
        "load_memory",
        "Load the memories that matter for a query.",
        kinds.LoadMemory,
        "load_memory to load what matters for a query",
    ),
    Tool(
        "prefetch_memory",
        "Load everything that matters for a message: recent turns, the digest and memories.",
        kinds.PrefetchMemory,
        "prefetch_memory to load all context for a message",
    ),
    Tool(
        "record",
        "Record what was said in this conversation, word for word, so that later conversations can recall it.",
        kinds.Record,
        "record to keep what was said, word for word",
        effect="adds",
    ),
    Tool(
        "list_memories",
        "List what is remembered, newest first, with the id of each memory.",
        kinds.ListMemoriesToUser,
        "list_memories to see all that is remembered",
        by_ceiling={"session": kinds.ListMemories, "agent": kinds.ListMemoriesToAgent},
    ),
    Tool(
        "forget",
        "Erase memories for good, by their ids. Only when the user asks for it.",
        kinds.Forget,
        "forget to erase what the user wants forgotten",
        effect="erases",
    ),
)

RECALL_PROMPT = Tool("recall", "What memory holds on a subject, to start from.", kinds.Recall, "recall")

PROFILES: Mapping[ProfileName, Profile] = {
    "threefold": Profile(
        TOOLS,
        ("search_memory", "save_memory", "load_memory", "record", "list_memories"),
        by_name(RECALL_PROMPT),
    ),
    "kagent": Profile(
        by_name(
            replace(TOOLS["save_memory"], arguments=kinds.KagentSave),
            replace(
                TOOLS["load_memory"],
                arguments=kinds.KagentLoad,
                description="Load the memories that matter for a query, as JSON.",
            ),
            replace(
                TOOLS["prefetch_memory"],
                arguments=kinds.KagentPrefetch,
                description="Load the memories that matter for a message, before it is answered.",
                use="prefetch_memory to load what matters for a message",
            ),
        ),
        ("save_memory", "load_memory", "prefetch_memory"),
        by_name(
            Tool("prefetch_memory", "The memories that matter for a message.", kinds.KagentPrefetch, "prefetch_memory"),
            RECALL_PROMPT,
        ),
    ),
    "kaigents": Profile(
        by_name(
            Tool(
                "memory.record",
                "Keep a note in this session, or a fact for every later one.",
                kinds.KaigentsRecord,
                "memory.record to keep something",
                effect="adds",
            ),
            Tool(
                "memory.query",
                "Search long-term memory.",
                kinds.KaigentsQuery,
                "memory.query to look something up",
            ),
            Tool(
                "memory.recall",
                "Search long-term memory, with the digest of this session.",
                kinds.KaigentsRecall,
                "memory.recall to look it up together with the story so far",
            ),
            Tool(
                "memory.consolidate",
                "Consolidate what this session has said so far, without waiting for it to go idle.",
                kinds.KaigentsConsolidate,
                "memory.consolidate at the end of a run",
                effect="adds",
            ),
            Tool(
                "memory.assemble_context",
                "Assemble digest, memories and latest turns for a query, within a budget of tokens.",
                kinds.KaigentsContext,
                "memory.assemble_context to load all context for a query",
            ),
        ),
        ("memory.record", "memory.query", "memory.recall", "memory.consolidate", "memory.assemble_context"),
        by_name(RECALL_PROMPT),
    ),
}


def memory_tools(whoami: WhoAmI | None = None, names: Sequence[str] = DEFAULT_TOOLS) -> list[Tool]:
    """The named tools, with the levels that this identity may read; up to `agent` while it is not known."""
    return profile_tools("threefold", whoami, names)


def profile_tools(
    profile: ProfileName, whoami: WhoAmI | None = None, names: Sequence[str] | None = None, *, read_only: bool = False
) -> list[Tool]:
    """The tools of a profile, or those named of them; `read_only` leaves out what adds or erases."""
    known = PROFILES[profile]
    chosen = known.default if names is None else names
    unknown = [name for name in chosen if name not in known.tools]
    if unknown:
        raise InvalidRequest(f"tools: profile {profile!r} has no {unknown[0]!r}; it has {', '.join(known.tools)}")
    tools = [known.tools[name] for name in chosen]
    return [tool.offered_to(whoami) for tool in tools if not read_only or tool.effect == "reads"]


def tools_hint(tools: Sequence[Tool]) -> str:
    """The one sentence that tells a model they exist."""
    return f"You have a memory of earlier conversations: call {', or '.join(tool.use for tool in tools)}."


def run_tool(
    session: MemorySession, name: str, arguments: Mapping[str, Any], tools: Sequence[Tool] | None = None
) -> str:
    """Do what a model asked for, and say how it went. Only a strict session raises, and never for bad arguments.

    Without `tools`, those that were offered, it may be any but those that erase.
    """
    try:
        job = find_job(name, arguments, tools)
        return job if isinstance(job, str) else job.text(job.ask(session))
    except InvalidRequest as error:
        return wrong_call(error)
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        return failure_text(error)


async def run_tool_async(
    session: AsyncMemorySession, name: str, arguments: Mapping[str, Any], tools: Sequence[Tool] | None = None
) -> str:
    """`run_tool`, awaited."""
    try:
        job = find_job(name, arguments, tools)
        return job if isinstance(job, str) else job.text(await job.ask(session))
    except InvalidRequest as error:
        return wrong_call(error)
    except ThreefoldError as error:
        if session.failure_mode == "strict":
            raise
        return failure_text(error)


def find_job(name: str, arguments: Mapping[str, Any], tools: Sequence[Tool] | None = None) -> Job | str:
    """What a call asks for, or `InvalidRequest` in words that a model can act on."""
    offered = [tool for tool in TOOLS.values() if tool.effect != "erases"] if tools is None else tools
    tool = next((tool for tool in offered if tool.name == name), None)
    if tool is None:
        raise InvalidRequest(f"there is no tool {name!r}; there are {', '.join(tool.name for tool in offered)}")
    return checked(tool.arguments, **arguments).job()
