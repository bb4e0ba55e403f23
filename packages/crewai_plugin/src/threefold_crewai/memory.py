"""`ThreefoldMemory`: the memory of a crew, an agent or a flow instead of CrewAI's own. It calls no model."""

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
from threefold_crewai.dumps import QuestionAndAnswer, final_answer, parse_exchange
from threefold_crewai.identity import Name, Ownership
from threefold_crewai.records import (
    ROOT,
    Match,
    Records,
    Selection,
    match_of,
    note_of,
    record_of,
    session_of_topic,
    within,
)
from threefold_crewai.runs import QUESTION, TaskRun, current_task, install

Keep = Literal["accepted", "all"]

WIDEST = 1_000
"""Memories to request for a topic or a category; the service knows neither, so they are filtered here."""


class ThreefoldMemory(Memory):
    """Memory of CrewAI: `Crew(memory=...)`, `Agent(memory=...)`, `Flow(memory=...)`.

    One object serves all users, crews, threads and event loops.

    Args:
        client: The client (default: `MemoryClient.from_env()`).
        user: The user, or a function of the inputs of the kickoff (default: the input `user_id`, else the user of the
            client).
        agent: The agent (default: the name of the crew or flow, else the agent of the client).
        session: The session, or a function of the inputs of the kickoff (default: the input `session_id`, else one
            session per kickoff).
        per_role: Give each role of a crew its own memory (default false).
        keep: Record only answers that passed the guardrails (`accepted`, default), or `all`.
        level: How far a recall reads (default: the lower of `agent` and the ceiling).
        token_budget: Most tokens of the block (default: the setting of the store).
        min_score: Least value, 0 to 1, of the larger of cosine and coverage (default: no limit).
        visibility: Widest level at which turns and facts may be read (default `user`).
        policy: Failure mode, breaker and spool (default: a new `Policy`).
        failure_mode: `soft` or `strict` (default: as the store asks). Not together with `policy`.
        read_only: Recall but store nothing (default false).
        root_scope: The topic under which all scopes are (default `/`).

    Raises:
        InvalidRequest: Both `policy` and `failure_mode` are given, or the client's user or agent is not a valid id.
        ValueError: The URL or the key in the environment is not valid.
    """

    _client: MemoryClient = PrivateAttr()
    _policy: Policy = PrivateAttr()
    _ownership: Ownership = PrivateAttr()
    _keep: Keep = PrivateAttr()
    _recall_options: RecallOptions = PrivateAttr()
    _visibility: Visibility | None = PrivateAttr()

    def __init__(
        self,
        client: MemoryClient | None = None,
        *,
        user: Name = None,
        agent: str | None = None,
        session: Name = None,
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
            raise InvalidRequest("failure_mode: set it on the policy that is given, not beside it")
        mark: Any = copies.new_mark()
        super().__init__(storage=mark, read_only=read_only, root_scope=root_scope)
        self._client = client or MemoryClient.from_env()
        self._policy = policy or Policy(failure_mode=failure_mode)
        self._ownership = Ownership(Identity(user, agent, session), per_role, self._client.agent)
        self._keep = keep
        self._recall_options = {"level": level, "token_budget": token_budget, "min_score": min_score}
        self._visibility = visibility
        self._storage = cast(StorageBackend, Records(self._open))
        copies.register(self)
        install()
        channel.install()

    def model_post_init(self, context: Any, /) -> None:
        """Skip what CrewAI's memory does here: it opens a vector store."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> ThreefoldMemory:
        return self

    @property
    def stats(self) -> Stats:
        """The counters of the policy: outages, refusals, turns that were spooled, replayed or dropped."""
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
        """Return memories for a query, best first.

        Before a task CrewAI asks for the task itself; the answer is then one match with the block for the model.

        Args:
            query: The query; it is cut in the middle to 10,000 characters.
            scope: Only memories of this topic and the topics below it.
            categories: Only memories with one of these categories.
            limit: Most memories (default 10).
            depth: Ignored.
            source: The source whose private memories are included.
            include_private: Include the private memories of all sources.

        Returns:
            The matches.

        Raises:
            MemoryAborted: The identity is not known or, in the failure mode `strict`, memory failed before a task.
            ThreefoldError: Memory failed: in a tool of a task always, else in the failure mode `strict`.
        """
        selection = Selection(self._topic(scope), categories, None if include_private else (source,))
        with aborting():
            task_run = current_task()
            session = self._open(selection.topic)
        if task_run is None:
            QUESTION.set(query)
        if task_run is None or not task_run.is_own_recall(self, scope, query):
            return self._search(session, query, selection, limit, task_run)
        with aborting():
            if selection.is_unfiltered:
                found = self._block(session, task_run, limit)
            else:
                found = self._search(session, query, selection, limit)
        if not self.read_only and not task_run.is_recorded:
            self._record(session, task_run)
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
        """Save one statement as a fact.

        Its origin is `assistant` if a model saves it through CrewAI's tool or an agent's role is given, else `user`.

        Args:
            content: The statement, 1 to 10,000 characters.
            scope: The topic (default: the root).
            categories: Categories of the fact.
            metadata: At most 16,384 bytes of JSON, with scope and categories.
            importance: 0 to 1 (default 0.5).
            source: The source of the statement.
            private: Show the fact only in recalls for this source.
            agent_role: The role of the agent that saves.
            root_scope: The topic under which `scope` is (default: that of the memory).

        Returns:
            The record, or None if the memory is read-only.

        Raises:
            MemoryAborted: The identity is not known.
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
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
            task_run = current_task()
            session = self._open(record.scope)
        try:
            noted_by = "assistant" if agent_role or is_by_model() else None
            options: SaveOptions = {"visibility": self._visibility, "metadata": note_of(record), "noted_by": noted_by}
            return record_of(session.save(content, **options))
        except ThreefoldError as error:
            if task_run and session.failure_mode == "strict" and not isinstance(error, InvalidRequest):
                task_run.failure = error
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
        """Save statements, and record the tasks and answers that CrewAI's executors pass on.

        Args:
            contents: The texts.
            scope: As for `remember`.
            categories: As for `remember`.
            metadata: As for `remember`.
            importance: As for `remember`.
            source: As for `remember`.
            private: As for `remember`.
            agent_role: As for `remember`.
            root_scope: As for `remember`.

        Returns:
            The saved records; recorded turns are not among them.

        Raises:
            MemoryAborted: The identity is not known or, in the failure mode `strict`, turns could not be recorded.
            ThreefoldError: A statement could not be saved, in both failure modes.
        """
        if self.read_only:
            return []
        for exchange in contents:
            if isinstance(exchange, QuestionAndAnswer):
                self._record_exchange(exchange, self._topic(scope, root_scope))
        statements = [content for content in contents if not isinstance(content, QuestionAndAnswer)]
        saved = [
            self.remember(each, scope, categories, metadata, importance, source, private, agent_role, root_scope)
            for each in statements
        ]
        return [record for record in saved if record is not None]

    def extract_memories(self, content: str) -> list[str]:
        """Return the text itself for `remember_many`; the service extracts the facts.

        Args:
            content: The text.

        Returns:
            The text; an empty list for the answer of a task, which is recorded when its guardrails have passed it.

        Raises:
            MemoryAborted: The current task is not known.
        """
        with aborting():
            task_run = current_task()
        is_pending = task_run is not None and task_run.memory is self and task_run.answer_in(content) is not None
        if not content.strip() or (is_pending and self._keep == "accepted"):
            return []
        return [parse_exchange(content, None if task_run else QUESTION.get()) or content]

    def update(
        self,
        record_id: str,
        content: str | None = None,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
    ) -> MemoryRecord:
        """Change a saved fact. A new content makes a new version with a new id.

        Args:
            record_id: The id of the fact.
            content: The new text.
            scope: The new topic.
            categories: The new categories.
            metadata: The new metadata.
            importance: The new importance, 0 to 1.

        Returns:
            The changed record.

        Raises:
            ValueError: There is no such fact under the root of this memory.
            MemoryAborted: The identity is not known.
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
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
        """Erase the memory of this user and agent, or a topic of it.

        Args:
            scope: The topic (default: everything).

        Raises:
            MemoryAborted: The identity is not known for sure.
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        with aborting():
            self._ownership.check_agent()
        super().reset(scope)

    def reset_all(self) -> None:
        """Erase the memory of this user and agent. That of others is not within reach of `crewai reset-memories`.

        Raises:
            MemoryAborted: The identity is not known for sure.
            ThreefoldError: The service refused the call or did not answer, in both failure modes.
        """
        self.reset()

    def drain_writes(self) -> None:
        """Send the writes in the spool.

        Raises:
            MemoryAborted: In the failure mode `strict`, if a write is left.
        """
        with aborting():
            MemorySession(self._client, uuid4().hex, policy=self._policy).flush()

    def record_answer(self, task_run: TaskRun, answer: str) -> None:
        """Record the answer of a task.

        Args:
            task_run: The task.
            answer: Its answer.

        Raises:
            MemoryAborted: In the failure mode `strict`, if the answer or an earlier call of a tool could not be stored.
        """
        with aborting():
            if task_run.failure is not None:
                raise task_run.failure
            session = self._open(self._topic(task_run.topic))
        self._record(session, task_run, answer, run_end=task_run.is_last)

    def _topic(self, scope: str | None, root: str | None = None) -> str:
        return join_scope_paths(self.root_scope if root is None else root, scope)

    def _open(self, topic: str = ROOT) -> MemorySession:
        """Return the session of the current task, kickoff or call, for a topic."""
        user, agent, session_id = self._ownership.find()
        return MemorySession(
            self._client, session_of_topic(session_id, topic), user=user, agent=agent, policy=self._policy
        )

    def _block(self, session: MemorySession, task_run: TaskRun, limit: int) -> list[MemoryMatch]:
        response = _recalled(session, task_run.task.description, self._options(top_k=limit))
        block = block_beside(response, session.session_id, task_run.shown())
        record = MemoryRecord(id=task_run.id, content=block)
        return [Match(record=record, score=1.0, block=block)] if block else []

    def _search(
        self, session: MemorySession, query: str, selection: Selection, limit: int, task_run: TaskRun | None = None
    ) -> list[MemoryMatch]:
        """Return one match per memory.

        In a task a model asks; if the answer is empty because of a failure, ThreefoldError says so to the model.
        """
        top_k = min(limit if selection.is_unfiltered else WIDEST, WIDEST)
        own = [task_run.turn_id] if task_run else []
        options = self._options(include=["long_term"], token_budget=0, top_k=top_k, exclude_ids=own)
        response = _recalled(session, query, options)
        if task_run is not None and response.degraded and not response.memories:
            raise ThreefoldError(recalled_text(response))
        found: list[MemoryMatch] = [match_of(memory) for memory in response.memories]
        return [match for match in found if selection.includes(match.record)][:limit]

    def _options(self, **more: Unpack[RecallOptions]) -> RecallOptions:
        options: dict[str, Any] = {**self._recall_options, **more}
        return cast(RecallOptions, {name: value for name, value in options.items() if value is not None})

    def _record(
        self, session: MemorySession, task_run: TaskRun, answer: str | None = None, *, run_end: bool = False
    ) -> None:
        """Record the description and the answer of a task, each once. The description is recorded before the model is
        called, so that it is not lost if the task fails."""
        turns: list[TurnLike] = []
        if not task_run.is_recorded:
            turns.append(turn(task_run.turn_id, "user", task_run.task.description))
        if answer is not None and final_answer(answer) not in task_run.answers[-1:]:  # not recorded yet
            task_run.answers.append(final_answer(answer))
            turns.append(turn(f"{task_run.id}/{len(task_run.answers)}", "assistant", answer, task_run.role))
        with aborting():
            session.record(turns, visibility=self._visibility, run_end=run_end)
        task_run.is_recorded = True

    def _record_exchange(self, exchange: QuestionAndAnswer, topic: str) -> None:
        """Record the text of an executor: an answer of the current task, or work that its agent delegated."""
        with aborting():
            task_run = current_task()
            session = self._open(self._topic(task_run.topic) if task_run else topic)
        answer = task_run.answer_in(exchange) if task_run else None
        if task_run is not None and answer is not None:
            return self._record(session, task_run, answer)
        key = uuid4().hex
        asker: Role = "user" if exchange.by_user else "assistant"
        turns = [turn(f"{key}/0", asker, exchange.question, task_run.role if task_run else None)]
        turns.append(turn(f"{key}/1", "assistant", exchange.answer, exchange.role))
        with aborting():
            session.record(turns, visibility=self._visibility, run_end=task_run is None)
        return None


def _recalled(session: MemorySession, query: str, options: RecallOptions) -> RecallResponse:
    """Recall. In the failure mode `strict` raise the error, which ends the task; a recall of a session never raises."""
    if session.failure_mode == "soft":
        return session.recall(query, **options)
    return session.send(calls.recall(fitting_query(query), session_id=session.session_id, **options))


def turn(turn_id: str, role: Role, content: str, name: str | None = None) -> TurnLike:
    """Return a turn as it is sent."""
    return {
        "id": turn_id,
        "role": role,
        "name": id_or_none(name),
        "content": middle_cut(content, MAX_CONTENT_CHARS),
    }
