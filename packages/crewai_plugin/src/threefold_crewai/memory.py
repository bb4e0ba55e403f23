"""`ThreefoldMemory`: the memory of a crew, an agent or a flow, in place of CrewAI's own. It asks no model."""

from __future__ import annotations

from typing import Any, Literal, Unpack, cast
from uuid import uuid4

from crewai import Memory
from crewai.memory.storage.backend import StorageBackend
from crewai.memory.types import MemoryMatch, MemoryRecord
from crewai.memory.utils import join_scope_paths
from pydantic import PrivateAttr

from threefold import (
    FailureMode,
    InvalidRequest,
    MemoryClient,
    MemorySession,
    NotFound,
    Policy,
    Stats,
    ThreefoldError,
    calls,
)
from threefold.calls import RecallOptions, SaveOptions, TurnLike, UpdateOptions
from threefold.checks import id_or_none
from threefold.contract import MAX_CONTENT_CHARS, Level, RecallResponse, Role, Visibility
from threefold.graphemes import middle_cut
from threefold.identity import Identity
from threefold.render import block_beside
from threefold.session import fitting_query
from threefold.tools.answers import recalled_text
from threefold_crewai import channel, copies
from threefold_crewai.abort import aborting
from threefold_crewai.channel import is_by_model
from threefold_crewai.dumps import Exchange, exchange_of, final_answer
from threefold_crewai.identity import Named, Ownership
from threefold_crewai.records import ROOT, Match, Records, Wanted, in_topic, match_of, note_of, record_of, within
from threefold_crewai.runs import QUESTION, Step, current_step, install

Keep = Literal["accepted", "all"]

WIDEST = 1_000
"""Memories asked for where only those of a topic or category count: the service knows neither."""


class ThreefoldMemory(Memory):
    """One object for all users, crews, threads and event loops: `Crew(memory=...)`, `Agent(memory=...)`,
    `Flow(memory=...)`.

    `user` and `session` are values, or functions of the kickoff's inputs; without them the inputs `user_id` and
    `session_id` count. The agent is the crew or flow by its name.
    """

    _client: MemoryClient = PrivateAttr()
    _policy: Policy = PrivateAttr()
    _ownership: Ownership = PrivateAttr()
    _keep: Keep = PrivateAttr()
    _reading: RecallOptions = PrivateAttr()
    _visibility: Visibility | None = PrivateAttr()

    def __init__(
        self,
        client: MemoryClient | None = None,
        *,
        user: Named = None,
        agent: str | None = None,
        session: Named = None,
        per_role: bool = False,
        keep: Keep = "accepted",
        level: Level | None = None,
        token_budget: int | None = None,
        min_score: float | None = None,
        visibility: Visibility | None = None,
        policy: Policy | None = None,
        failure_mode: FailureMode | None = None,
        read_only: bool = False,
        root_scope: str | None = None,
    ) -> None:
        if policy is not None and failure_mode is not None:
            raise InvalidRequest("failure_mode: give it to the policy, as there is one")
        mark: Any = copies.new_mark()
        super().__init__(storage=mark, read_only=read_only, root_scope=root_scope)
        self._client = client or MemoryClient.from_env()
        self._policy = policy or Policy(failure_mode=failure_mode)
        self._ownership = Ownership(Identity(user, agent, session), per_role, self._client.agent)
        self._keep = keep
        self._reading = {"level": level, "token_budget": token_budget, "min_score": min_score}
        self._visibility = visibility
        self._storage = cast(StorageBackend, Records(self._open))
        copies.know(self)
        install()
        channel.install()

    def model_post_init(self, context: Any, /) -> None:
        """Nothing of what CrewAI's memory does here: it opens a vector store."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> ThreefoldMemory:
        return self

    @property
    def stats(self) -> Stats:
        """What became of all calls and turns: outages, refusals, turns that waited or were lost."""
        return self._policy.stats

    def recall(
        self,
        query: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        limit: int = 10,
        depth: Literal["shallow", "deep"] = "deep",
        source: str | None = None,
        include_private: bool = False,
    ) -> list[MemoryMatch]:
        """What memory holds, best first. Before a task CrewAI asks for the task itself: that brings one match, which
        is the block that a model reads."""
        wanted = Wanted(self._topic(scope), categories, None if include_private else (source,))
        with aborting():
            step = current_step()
            session = self._open(wanted.topic)
        if step is None:
            QUESTION.set(query)
        if step is None or not step.is_asked(self, scope, query):
            return self._search(session, query, wanted, limit, step)
        with aborting():
            if wanted.is_everything:
                found = self._block(session, step, limit)
            else:
                found = self._search(session, query, wanted, limit)
        if not self.read_only and not step.asked:
            self._record(session, step)
        return found

    def remember(
        self,
        content: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        source: str | None = None,
        private: bool = False,
        agent_role: str | None = None,
        root_scope: str | None = None,
    ) -> MemoryRecord | None:
        """Save one statement at once: the assistant's if a model saves it through CrewAI's tool or CrewAI names the
        role of an agent, else the user's. Raises."""
        if self.read_only:
            return None
        record = MemoryRecord(
            content=content,
            scope=self._topic(scope, root_scope),
            categories=categories or [],
            metadata=metadata or {},
            importance=self.default_importance if importance is None else importance,
            source=source,
            private=private,
        )
        with aborting():
            step = current_step()
            session = self._open(record.scope)
        try:
            noted_by = "assistant" if agent_role or is_by_model() else None
            options: SaveOptions = {"visibility": self._visibility, "metadata": note_of(record), "noted_by": noted_by}
            return record_of(session.save(content, **options))
        except ThreefoldError as error:
            if step and session.failure_mode == "strict" and not isinstance(error, InvalidRequest):
                step.failure = error
            raise

    def remember_many(
        self,
        contents: list[str],
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        source: str | None = None,
        private: bool = False,
        agent_role: str | None = None,
        root_scope: str | None = None,
    ) -> list[MemoryRecord]:
        """Save statements, and record what CrewAI's executors say. It is stored when this returns."""
        if self.read_only:
            return []
        for exchange in contents:
            if isinstance(exchange, Exchange):
                self._record_exchange(exchange, self._topic(scope, root_scope))
        statements = [content for content in contents if not isinstance(content, Exchange)]
        saved = [
            self.remember(each, scope, categories, metadata, importance, source, private, agent_role, root_scope)
            for each in statements
        ]
        return [record for record in saved if record is not None]

    def extract_memories(self, content: str) -> list[str]:
        """The text itself, for `remember_many`: drawing facts from it is the service's work. Nothing for a task's
        answer, which is recorded as soon as its guardrails have passed it."""
        with aborting():
            step = current_step()
        waits = step is not None and step.memory is self and step.answer_in(content) is not None
        if not content.strip() or (waits and self._keep == "accepted"):
            return []
        return [exchange_of(content, None if step else QUESTION.get()) or content]

    def update(
        self,
        record_id: str,
        content: str | None = None,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
    ) -> MemoryRecord:
        """Change a saved memory; a new content supersedes the old one, and has another id. Raises."""
        with aborting():
            session = self._open()
        try:
            record = record_of(session.send(calls.get_fact(record_id)))
        except NotFound:
            record = None
        if record is None or not within(record.scope, self.root_scope):
            raise ValueError(f"Record not found: {record_id}")
        if self.read_only:
            return record
        topic = None if scope is None else self._topic(scope)
        new = {"scope": topic, "categories": categories, "metadata": metadata, "importance": importance}
        changed = record.model_copy(update={name: value for name, value in new.items() if value is not None})
        options: UpdateOptions = {"metadata": note_of(changed)}
        if content is not None:
            options["text"] = content
        return record_of(session.send(calls.update_fact(record_id, **options)))

    def reset(self, scope: str | None = None) -> None:
        """Erase the memory of this user and agent, or a topic of it."""
        with aborting():
            self._ownership.check_agent()
        super().reset(scope)

    def reset_all(self) -> None:
        """`reset`: what is other users' and agents' is not within reach, whatever `crewai reset-memories` wants."""
        self.reset()

    def drain_writes(self) -> None:
        """Send what waits for the service. Nothing else does: whatever was recorded or saved is stored already."""
        with aborting():
            MemorySession(self._client, uuid4().hex, policy=self._policy).flush()

    def record_answer(self, step: Step, answer: str) -> None:
        """Record what a task came to."""
        with aborting():
            if step.failure is not None:
                raise step.failure
            session = self._open(self._topic(step.topic))
        self._record(session, step, answer, run_end=step.is_last)

    def _topic(self, scope: str | None, root: str | None = None) -> str:
        return join_scope_paths(self.root_scope if root is None else root, scope)

    def _open(self, topic: str = ROOT) -> MemorySession:
        """The session of whatever is going on, on a topic."""
        user, agent, session_id = self._ownership.who()
        return MemorySession(self._client, in_topic(session_id, topic), user=user, agent=agent, policy=self._policy)

    def _block(self, session: MemorySession, step: Step, limit: int) -> list[MemoryMatch]:
        response = _recalled(session, step.task.description, self._options(top_k=limit))
        block = block_beside(response, session.session_id, step.shown())
        record = MemoryRecord(id=step.id, content=block)
        return [Match(record=record, score=1.0, block=block)] if block else []

    def _search(
        self, session: MemorySession, query: str, wanted: Wanted, limit: int, step: Step | None = None
    ) -> list[MemoryMatch]:
        """One match per memory. In a task it is a model that asks, and an outage is no reason to tell it that there is
        nothing."""
        top_k = min(limit if wanted.is_everything else WIDEST, WIDEST)
        known = [step.asked_id] if step else []
        options = self._options(include=["long_term"], token_budget=0, top_k=top_k, exclude_ids=known)
        response = _recalled(session, query, options)
        if step is not None and response.degraded and not response.memories:
            raise ThreefoldError(recalled_text(response))
        found: list[MemoryMatch] = [match_of(memory) for memory in response.memories]
        return [match for match in found if wanted.has(match.record)][:limit]

    def _options(self, **more: Unpack[RecallOptions]) -> RecallOptions:
        given: dict[str, Any] = {**self._reading, **more}
        return cast(RecallOptions, {name: value for name, value in given.items() if value is not None})

    def _record(self, session: MemorySession, step: Step, answer: str | None = None, *, run_end: bool = False) -> None:
        """Record what of a task is not recorded yet. Its description goes before the model is asked, so that nothing
        is lost however the task ends."""
        turns: list[TurnLike] = []
        if not step.asked:
            turns.append(turn(step.asked_id, "user", step.task.description))
        if answer is not None and final_answer(answer) not in step.answers[-1:]:  # not sent back, so there already
            step.answers.append(final_answer(answer))
            turns.append(turn(f"{step.id}/{len(step.answers)}", "assistant", answer, step.role))
        with aborting():
            session.record(turns, visibility=self._visibility, run_end=run_end)
        step.asked = True

    def _record_exchange(self, exchange: Exchange, topic: str) -> None:
        """What an executor says: an answer of the task at hand, or what a task's agent had another one do."""
        with aborting():
            step = current_step()
            session = self._open(self._topic(step.topic) if step else topic)
        answer = step.answer_in(exchange) if step else None
        if step is not None and answer is not None:
            return self._record(session, step, answer)
        key = uuid4().hex
        asker: Role = "user" if exchange.by_user else "assistant"
        turns = [turn(f"{key}/0", asker, exchange.asked, step.role if step else None)]
        turns.append(turn(f"{key}/1", "assistant", exchange.said, exchange.role))
        with aborting():
            session.record(turns, visibility=self._visibility, run_end=step is None)
        return None


def _recalled(session: MemorySession, query: str, options: RecallOptions) -> RecallResponse:
    """What a session recalls is always soft: strict has the error instead, which ends the task."""
    if session.failure_mode == "soft":
        return session.recall(query, **options)
    return session.send(calls.recall(fitting_query(query), session_id=session.session_id, **options))


def turn(turn_id: str, role: Role, content: str, name: str | None = None) -> TurnLike:
    """A turn as it is sent."""
    return {
        "id": turn_id,
        "role": role,
        "name": id_or_none(name),
        "content": middle_cut(content, MAX_CONTENT_CHARS),
    }
