"""`ThreefoldMemory`: memory as a capability of an agent. It recalls before the first request and records at the end."""

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

Named = str | Callable[[RunContext[Any]], str] | None


@dataclass
class _Run:
    """What belongs to one run alone."""

    session: AsyncMemorySession
    log: RunLog
    recalled: ModelRequest | None = None
    prompt: ModelMessage | None = None
    """The message that the recall was for: what was recalled stands behind it."""


@dataclass
class ThreefoldMemory(AbstractCapability[Any]):
    """Memory for an agent: one capability serves all its users, sessions, threads and event loops.

    `user`, `agent` and `session` are values, or functions of the run's context. Without them the client's user and
    agent count, and a session is a conversation of Pydantic AI.
    """

    client: AsyncMemoryClient | None = None
    """`AsyncMemoryClient.from_env()` by default."""
    _: KW_ONLY
    user: Named = None
    agent: Named = None
    session: Named = None
    recall: bool = True
    """Put what memory holds on the prompt before the model."""
    persist_recall: bool = True
    """As a message that stays in the history, so that a prompt cache keeps its prefix; else in each request anew."""
    record: bool = True
    """Record what is said, once, however the run ends."""
    replay: bool = False
    """Start a run that is given no history with the session's own messages."""
    replay_turns: int = 200
    """How many of them at most, the newest."""
    tools: ToolChoice | None = "all"
    """The tools of the model: `read`, `write`, `all`, or none."""
    level: Level | None = None
    token_budget: int | None = None
    top_k: int | None = None
    min_score: float | None = None
    visibility: Visibility | None = None
    policy: Policy | None = None
    failure_mode: InitVar[FailureMode | None] = None
    """`soft` or `strict`; by default as the store asks. A `policy` has its own."""
    id: str | None = "threefold"
    _run: _Run | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self, failure_mode: FailureMode | None) -> None:
        if self.policy is not None and failure_mode is not None:
            raise UserError("ThreefoldMemory: give `failure_mode` to the policy, as there is one")
        self.client = self.client or AsyncMemoryClient.from_env()
        self.policy = self.policy or Policy(failure_mode=failure_mode)

    @property
    def stats(self) -> Stats:
        """What became of all calls and turns: outages, refusals, turns that waited or were lost."""
        return self._policy.stats

    @classmethod
    def from_spec(cls, url: str | None = None, **options: Any) -> ThreefoldMemory:
        """From an agent's spec: the service's address, and options that are plain values. A key is never in a spec, it
        comes from THREEFOLD_API_KEY."""
        return cls(AsyncMemoryClient.from_env(url), **options)

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Refuse two that differ: merged field by field, one user's memory would become the other's."""
        if any(other != capabilities[0] for other in capabilities):
            raise UserError("an agent has two different ThreefoldMemory capabilities; give each an `id` of its own")
        return capabilities[0]

    def get_toolset(self) -> MemoryToolset | None:
        return MemoryToolset(self.session_of, self.tools, self.id) if self.tools else None

    def get_instructions(self) -> str | None:
        return tools_hint(memory_tools(names=NAMES[self.tools])) if self.tools else None

    def session_of(self, ctx: RunContext[Any]) -> AsyncMemorySession:
        """The session of a run, for your own calls: with the client, policy and identity that the run has."""
        if ctx.conversation_id is None and self.session is None:
            raise UserError("ThreefoldMemory: this context belongs to no run; name the `session`")
        who = Identity(self.user, self.agent, self.session).of(ctx, ctx.conversation_id or "")
        assert self.client is not None
        return AsyncMemorySession(self.client, who.session_id, user=who.user, agent=who.agent, policy=self.policy)

    async def for_run(self, ctx: RunContext[Any]) -> ThreefoldMemory:
        mine = replace(self)
        mine._run = _Run(self.session_of(ctx), RunLog(ctx.run_id or ""))
        return mine

    async def before_run(self, ctx: RunContext[Any]) -> None:
        if self.replay and not ctx.messages:
            ctx.messages[:] = await load_messages(self._state.session, self.replay_turns, ctx.prompt is not None)

    async def after_node_run(
        self, ctx: RunContext[Any], *, node: AgentNode[Any], result: NodeResult[Any]
    ) -> NodeResult[Any]:
        coming = [result.request] if isinstance(result, ModelRequestNode) else []
        self._state.log.watch(ctx.messages, *coming)
        return result

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        run = self._state
        run.log.watch(ctx.messages)
        if self.recall and run.prompt is None:
            run.prompt = request_context.messages[-1]
            run.recalled = await self._recalled(run.session, request_context.messages)
            if run.recalled is not None and self.persist_recall:
                ctx.enqueue(run.recalled)
        if run.recalled is not None and not self.persist_recall:
            request_context.messages = _behind(run.prompt, run.recalled, request_context.messages)
        return request_context

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
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
        """What memory holds on the prompt, as data in the user's voice; none without a prompt, as after an approval."""
        query, history = user_text(messages[-1]), messages[:-1]
        if not query.strip():
            return None
        response = await session.recall(query, **beside_history(self._reading, bool(history)))
        block = block_beside(response, session.session_id, texts_of(history)) if history else response.block
        if not block:
            return None
        return ModelRequest([UserPromptPart([TextContent(neutralize_tags(block), metadata=_about(response))])])

    @property
    def _reading(self) -> RecallOptions:
        given = {
            "level": self.level,
            "token_budget": self.token_budget,
            "top_k": self.top_k,
            "min_score": self.min_score,
        }
        return RecallOptions(**{name: value for name, value in given.items() if value is not None})  # pyright: ignore

    async def _flush(self) -> None:
        if self.record:
            run = self._state
            await run.session.record(run.log.turns(), visibility=self.visibility, run_end=True)

    async def _flush_beside_failure(self) -> None:
        """The run's own failure is the one to raise."""
        try:
            await self._flush()
        except ThreefoldError as error:
            log.error("a run that failed was not recorded: %s", error)


def _about(response: RecallResponse) -> dict[str, Any]:
    return {
        "origin": ORIGIN,
        "ids": [memory.id for memory in response.memories],
        "degraded": response.degraded,
    }


def _behind(prompt: ModelMessage | None, recalled: ModelRequest, messages: list[ModelMessage]) -> list[ModelMessage]:
    """The messages with what was recalled at its place: behind the prompt, or first where that was trimmed away."""
    place = next((n for n, message in enumerate(messages, 1) if message is prompt), 0)
    return [*messages[:place], recalled, *messages[place:]]
