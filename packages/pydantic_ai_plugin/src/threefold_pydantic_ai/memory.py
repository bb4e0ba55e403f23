"""`ThreefoldMemory`: a capability of an agent that recalls before the first request and records at the end of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any

import anyio
from pydantic_ai import AgentRunResult, ModelRequestNode
from pydantic_ai.capabilities import AbstractCapability, AgentNode, NodeResult, WrapRunHandler
from pydantic_ai.exceptions import UserError
from pydantic_ai.framing import neutralize_tags
from pydantic_ai.messages import ModelMessage, ModelRequest, TextContent, UserPromptPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext

from threefold import (
    AsyncMemoryClient,
    AsyncMemorySession,
    FailureMode,
    Policy,
    RecallResponse,
    Stats,
    ThreefoldError,
    memory_tools,
    tools_hint,
)
from threefold.calls import RecallOptions, beside_history
from threefold.contract import Level, Visibility
from threefold.identity import Identity
from threefold.policy import FLUSH_SECONDS
from threefold.render import block_beside
from threefold_pydantic_ai.messages import ORIGIN, texts_of, user_text
from threefold_pydantic_ai.replay import load_messages
from threefold_pydantic_ai.run_log import RunLog
from threefold_pydantic_ai.toolset import NAMES, MemoryToolset, ToolChoice

log = logging.getLogger("threefold")

Name = str | Callable[[RunContext[Any]], str] | None


@dataclass
class _Run:
    """The state of one run."""

    session: AsyncMemorySession
    log: RunLog
    recalled: ModelRequest | None = None
    prompt: ModelMessage | None = None
    """The message that the recall was for; the recalled block is inserted after it."""


@dataclass
class ThreefoldMemory(AbstractCapability[Any]):
    """Memory for an agent. One capability serves all users, sessions, threads and event loops of the agent.

    The attributes below are the arguments of its constructor.

    Raises:
        UserError: Both `policy` and `failure_mode` are given.

    Example:
        >>> agent = Agent("test", capabilities=[ThreefoldMemory(user="u-1", agent="support")])  # doctest: +SKIP
    """

    client: AsyncMemoryClient | None = None
    """The client (default: `AsyncMemoryClient.from_env()`)."""
    _: KW_ONLY
    user: Name = None
    """The user, or a function of the run's context (default: the user of the client)."""
    agent: Name = None
    """The agent, or a function of the run's context (default: the agent of the client)."""
    session: Name = None
    """The session, or a function of the run's context (default: the id of the conversation)."""
    recall: bool = True
    """Recall for each prompt and show the block to the model (default true)."""
    persist_recall: bool = True
    """Keep the block in the history as a message, so that a prompt cache keeps its prefix (default true). If false, the
    block is inserted into each request and the history does not keep it."""
    record: bool = True
    """Record the messages of each run once, however the run ends (default true)."""
    replay: bool = False
    """Start a run that has no history with the stored messages of its session (default false)."""
    replay_turns: int = 200
    """Most turns to replay, the newest (default 200)."""
    tools: ToolChoice | None = "all"
    """Tools for the model: `read` (search_memory), `write` (save_memory), `all` (default), or None."""
    level: Level | None = None
    """How far a recall reads (default: the lower of `agent` and the ceiling)."""
    token_budget: int | None = None
    """Most tokens of the block (default: the setting of the store)."""
    top_k: int | None = None
    """Most memories per recall (default: the setting of the store)."""
    min_score: float | None = None
    """Least value, 0 to 1, of the larger of cosine and coverage (default: no limit)."""
    visibility: Visibility | None = None
    """Widest level at which the recorded turns may be recalled (default `user`)."""
    policy: Policy | None = None
    """Failure mode, breaker and spool (default: a new `Policy`)."""
    failure_mode: InitVar[FailureMode | None] = None
    """`soft` or `strict` (default: as the store asks). Not together with `policy`, which has its own."""
    id: str | None = "threefold"
    """Id of the capability; two different ones of one agent need different ids."""
    _run: _Run | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self, failure_mode: FailureMode | None) -> None:
        if self.policy is not None and failure_mode is not None:
            raise UserError("ThreefoldMemory: set `failure_mode` on the policy that is given, not beside it")
        self.client = self.client or AsyncMemoryClient.from_env()
        self.policy = self.policy or Policy(failure_mode=failure_mode)

    @property
    def stats(self) -> Stats:
        """The counters of the policy: outages, refusals, turns that were spooled, replayed or dropped."""
        return self._policy.stats

    @classmethod
    def from_spec(cls, url: str | None = None, **options: Any) -> ThreefoldMemory:
        """Build the capability from the spec of an agent.

        The key is not part of a spec; it comes from THREEFOLD_API_KEY.

        Args:
            url: The URL of the service (default: THREEFOLD_URL).
            **options: Arguments of the constructor that are plain values.

        Returns:
            The capability.

        Raises:
            ValueError: The URL or the key is not valid.
        """
        return cls(AsyncMemoryClient.from_env(url), **options)

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Return the first capability if all are equal.

        Different ones are refused: merged field by field, one user could get the memory of another.

        Args:
            capabilities: Capabilities with the same id.

        Raises:
            UserError: Two of them differ.
        """
        if any(other != capabilities[0] for other in capabilities):
            raise UserError("an agent has two different ThreefoldMemory capabilities; give each of them its own `id`")
        return capabilities[0]

    def get_toolset(self) -> MemoryToolset | None:
        """Return the memory tools, or None if `tools` is None."""
        return MemoryToolset(self.session_of, self.tools, self.id) if self.tools else None

    def get_instructions(self) -> str | None:
        """Return the sentence about the tools, or None if `tools` is None."""
        return tools_hint(memory_tools(names=NAMES[self.tools])) if self.tools else None

    def session_of(self, ctx: RunContext[Any]) -> AsyncMemorySession:
        """Return the session of a run, with its client, policy and identity, for calls of your own.

        Args:
            ctx: The context of the run.

        Raises:
            UserError: The context belongs to no run and `session` is not given.
            InvalidRequest: The user, the agent or the session is not a valid id.
        """
        if ctx.conversation_id is None and self.session is None:
            raise UserError("ThreefoldMemory: this context belongs to no run; give `session`")
        identity = Identity(self.user, self.agent, self.session).of(ctx, ctx.conversation_id or "")
        assert self.client is not None
        return AsyncMemorySession(
            self.client, identity.session_id, user=identity.user, agent=identity.agent, policy=self.policy
        )

    async def for_run(self, ctx: RunContext[Any]) -> ThreefoldMemory:
        """Return a copy with the state of one run."""
        own = replace(self)
        own._run = _Run(self.session_of(ctx), RunLog(ctx.run_id or ""))
        return own

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Replay the stored messages of the session if `replay` is true and the run has no history."""
        if self.replay and not ctx.messages:
            ctx.messages[:] = await load_messages(self._state.session, self.replay_turns, ctx.prompt is not None)

    async def after_node_run(
        self, ctx: RunContext[Any], *, node: AgentNode[Any], result: NodeResult[Any]
    ) -> NodeResult[Any]:
        """Add the messages of a node to the log of the run."""
        new = [result.request] if isinstance(result, ModelRequestNode) else []
        self._state.log.watch(ctx.messages, *new)
        return result

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Recall before the first request of a run, and add the block."""
        run = self._state
        run.log.watch(ctx.messages)
        if self.recall and run.prompt is None:
            run.prompt = request_context.messages[-1]
            run.recalled = await self._recalled(run.session, request_context.messages)
            if run.recalled is not None and self.persist_recall:
                ctx.enqueue(run.recalled)
        if run.recalled is not None and not self.persist_recall:
            request_context.messages = _insert(run.prompt, run.recalled, request_context.messages)
        return request_context

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Record the run when it ends, for at most 5 seconds if it failed or was cancelled."""
        try:
            result = await handler()
        except (Exception, asyncio.CancelledError):
            with anyio.move_on_after(FLUSH_SECONDS, shield=True):
                await self._flush_beside_failure()
            raise
        self._state.log.watch(result.all_messages())
        await self._flush()
        return result

    @property
    def _policy(self) -> Policy:
        assert self.policy is not None
        return self.policy

    @property
    def _state(self) -> _Run:
        assert self._run is not None, "a hook was called outside of a run"
        return self._run

    async def _recalled(self, session: AsyncMemorySession, messages: Sequence[ModelMessage]) -> ModelRequest | None:
        """Return the block for the prompt as a user message; None without a prompt, for example after an approval."""
        query, history = user_text(messages[-1]), messages[:-1]
        if not query.strip():
            return None
        response = await session.recall(query, **beside_history(self._recall_options, bool(history)))
        block = block_beside(response, session.session_id, texts_of(history)) if history else response.block
        if not block:
            return None
        return ModelRequest([UserPromptPart([TextContent(neutralize_tags(block), metadata=_metadata(response))])])

    @property
    def _recall_options(self) -> RecallOptions:
        options = {
            "level": self.level,
            "token_budget": self.token_budget,
            "top_k": self.top_k,
            "min_score": self.min_score,
        }
        return RecallOptions(**{name: value for name, value in options.items() if value is not None})  # pyright: ignore

    async def _flush(self) -> None:
        if self.record:
            run = self._state
            await run.session.record(run.log.turns(), visibility=self.visibility, run_end=True)

    async def _flush_beside_failure(self) -> None:
        """Record a failed run. An error of memory is logged, so that the error of the run is raised."""
        try:
            await self._flush()
        except ThreefoldError as error:
            log.error("a failed run was not recorded: %s", error)


def _metadata(response: RecallResponse) -> dict[str, Any]:
    return {
        "origin": ORIGIN,
        "ids": [memory.id for memory in response.memories],
        "degraded": response.degraded,
    }


def _insert(prompt: ModelMessage | None, recalled: ModelRequest, messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with the recalled block after the prompt, or first if the prompt was trimmed away."""
    position = next((n for n, message in enumerate(messages, 1) if message is prompt), 0)
    return [*messages[:position], recalled, *messages[position:]]
