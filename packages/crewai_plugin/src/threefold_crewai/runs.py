"""The current kickoff with its inputs, and the current task with its role, as the hooks of CrewAI report them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import uuid4

from crewai import Crew, Flow
from crewai.context import get_current_task_id
from crewai.flow.flow_context import current_flow_id
from crewai.hooks import InterceptionPoint, get_hooks, register_hook
from crewai.memory.memory_scope import MemoryScope
from crewai.memory.utils import normalize_scope_path
from crewai.utilities.crew.crew_context import get_crew_context

from threefold import InvalidRequest, ThreefoldError
from threefold_crewai.abort import aborting
from threefold_crewai.copies import restore_memories
from threefold_crewai.dumps import final_answer

INPUTS_NOT_SEEN = (
    "this task or flow began before the plugin could see its inputs, so its user is not known: make the "
    "ThreefoldMemory before the kickoff, do not clear CrewAI's hooks while it is in use, and resume a flow within "
    "acting_as(user=..., agent=..., session=...)"
)
UNNAMED = Crew.model_fields["name"].default


class Acting(NamedTuple):
    """The names that `acting_as` has set; for None the memory and the inputs decide."""

    user: str | None = None
    agent: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class Run:
    """One kickoff of a crew or a flow. `parent` is the kickoff that started it."""

    owner: Any
    inputs: Mapping[str, Any]
    parent: Run | None = None
    outer: TaskRun | None = None
    """The task whose tool or callback started the kickoff."""
    flow_id: str | None = None
    mark: Any = None
    """The object that CrewAI has in the context of this kickoff of a crew, callbacks before and after it included."""
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def session_id(self) -> str:
        """The default session: one for the outermost kickoff."""
        return self.parent.session_id if self.parent else self.id

    @property
    def all_inputs(self) -> dict[str, Any]:
        """The inputs, and those of outer kickoffs that it does not replace. An inner input of None replaces nothing."""
        own = {name: value for name, value in self.inputs.items() if value is not None}
        return {**self.parent.all_inputs, **own} if self.parent else dict(self.inputs)

    @property
    def name(self) -> str | None:
        """The name of the crew or flow, else the name of the outer kickoff."""
        owner: Any = self.owner
        if isinstance(owner, Crew):
            own = None if owner.name == UNNAMED else owner.name
        elif isinstance(owner, Flow) and not owner.is_crewai_internal:
            own = owner.name or str(type(self.owner).__name__)
        else:
            own = None
        return own or (self.parent.name if self.parent else None)

    def is_live(self) -> bool:
        """Return True if the kickoff still runs, by the context of CrewAI: no hook reports a cancelled kickoff."""
        if isinstance(self.owner, Crew):
            return self.mark is not None and get_crew_context() is self.mark
        return self.flow_id is not None and current_flow_id.get() == self.flow_id

    def has_known_inputs(self) -> bool:
        """Return True if the inputs of the outermost kickoff are known. A resumed flow does not report its inputs."""
        if self.parent is not None:
            return self.parent.has_known_inputs()
        return self.flow_id is None or self.flow_id == getattr(self.owner, "flow_id", None)


@runtime_checkable
class Recorder(Protocol):
    """A memory that records the answers of tasks."""

    read_only: bool

    def record_answer(self, task_run: TaskRun, answer: str) -> None: ...


@dataclass
class TaskRun:
    """One running task, and what of it is recorded already."""

    task: Any
    agent: Any
    context: str
    run: Run
    memory: Recorder | None
    """The memory of the agent, else of its crew."""
    topic: str
    id: str = field(default_factory=lambda: uuid4().hex)
    is_recorded: bool = False
    is_done: bool = False
    answers: list[str] = field(default_factory=list[str])
    failure: ThreefoldError | None = None
    """An error in a tool, which CrewAI turned into text; it is raised when the task ends."""

    @property
    def role(self) -> str:
        return self.agent.role or ""

    @property
    def turn_id(self) -> str:
        """The id of the turn with the description of the task."""
        return f"{self.id}/0"

    @property
    def is_last(self) -> bool:
        """True if it is the last task of its crew."""
        tasks = getattr(self.agent.crew, "tasks", None)
        return not tasks or tasks[-1] is self.task

    def is_own_recall(self, memory: object, scope: str | None, query: str) -> bool:
        """Return True if CrewAI itself recalls for this task, not a tool."""
        is_own = self.memory is memory and normalize_scope_path(scope or "/") == self.topic
        return is_own and query == self.task.description

    def answer_in(self, text: str) -> str | None:
        """Return the answer to this task from the text that an executor saves; None for another text."""
        task = self.task
        head = f"Task: {task.description}\nAgent: {self.agent.role}\nExpected result: {task.expected_output}\nResult: "
        return final_answer(text[len(head) :]) if text.startswith(head) else None

    def shown(self) -> set[str]:
        """Return the texts that the model reads anyway: this task, and the tasks whose results are its context."""
        texts = {self.task.description}
        for task in getattr(self.agent.crew, "tasks", ()):
            if task.output and task.output.raw in self.context:
                texts |= {task.description, task.output.raw}
        return texts


_RUN: ContextVar[Run | None] = ContextVar("threefold_crewai_run", default=None)
_TASK: ContextVar[TaskRun | None] = ContextVar("threefold_crewai_step", default=None)
_ACTING: ContextVar[Acting | None] = ContextVar("threefold_crewai_named", default=None)
QUESTION: ContextVar[str | None] = ContextVar("threefold_crewai_question", default=None)
"""The last query outside of tasks. For an agent without a crew these are the words of the user."""


@contextmanager
def acting_as(*, user: str | None = None, agent: str | None = None, session: str | None = None) -> Generator[None]:
    """Name user, agent or session for the code inside. The names take precedence over the memory and the inputs.

    Args:
        user: The user (default: unchanged).
        agent: The agent (default: unchanged).
        session: The session (default: unchanged).

    Example:
        >>> with acting_as(user="u-1"):  # doctest: +SKIP
        ...     crew.kickoff(inputs={"topic": "deployments"})
    """
    outer = acting()
    token = _ACTING.set(
        Acting(
            outer.user if user is None else user,
            outer.agent if agent is None else agent,
            outer.session if session is None else session,
        )
    )
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting() -> Acting:
    """Return the names that `acting_as` has set."""
    return _ACTING.get() or Acting()


def current_task() -> TaskRun | None:
    """Return the task of this code, or None. In a kickoff that a task started, that task does not count.

    Raise InvalidRequest if the task began before the hooks were installed.
    """
    task_run = _running_task()
    if task_run is None and get_current_task_id() is not None:
        raise InvalidRequest(INPUTS_NOT_SEEN)
    run = _live_run()
    return None if run is not None and run.outer is task_run else task_run


def current_run() -> Run | None:
    """Return the kickoff of this code, or None."""
    task_run = current_task()
    return task_run.run if task_run else _live_run()


def check_inputs_known(run: Run | None) -> None:
    """Raise InvalidRequest if inputs that were not seen may name another user or agent than the client."""
    if not (run.has_known_inputs() if run else current_flow_id.get() is None):
        raise InvalidRequest(INPUTS_NOT_SEEN)


def install() -> None:
    """Register the hooks with CrewAI, once per process."""
    for point, hook in HOOKS.items():
        if hook not in get_hooks(point):
            register_hook(point, hook)


def _running_task() -> TaskRun | None:
    """Return the task that CrewAI runs; None if it began before the hooks were installed."""
    task_run = _TASK.get()
    while task_run is not None and str(task_run.task.id) != get_current_task_id():
        task_run = task_run.run.outer
    return task_run


def _outer_task() -> TaskRun | None:
    """Return the running task around a task or kickoff that begins."""
    task_run = _TASK.get()
    while task_run is not None and task_run.is_done:
        task_run = task_run.run.outer
    return task_run


def _live_run() -> Run | None:
    run = _RUN.get()
    while run is not None and not run.is_live():
        run = run.parent
    return run


def _begin(ctx: Any) -> None:
    with aborting():
        restore_memories(ctx.crew, ctx.flow, *getattr(ctx.crew, "agents", ()))
        parent = current_run()
    while parent is not None and parent.owner is ctx.flow:  # an earlier, cancelled kickoff of the same flow
        parent = parent.parent
    mark = get_crew_context() if ctx.crew else None
    _RUN.set(_run(ctx.crew or ctx.flow, ctx.payload, parent, mark))


def _run(owner: Any, inputs: Mapping[str, Any] | None, parent: Run | None, mark: Any = None) -> Run:
    return Run(owner, inputs or {}, parent, _outer_task(), current_flow_id.get(), mark)


def _take_inputs(ctx: Any) -> None:
    """Set the inputs of a kickoff after its callbacks have changed them."""
    run = _RUN.get()
    if run is None or run.owner is not (ctx.crew or ctx.flow) or not run.is_live():
        return _begin(ctx)
    _RUN.set(replace(run, inputs=ctx.payload or {}))
    return None


def _end(ctx: Any) -> None:
    """End a kickoff. For a crew callbacks follow; its mark tells when they are over."""
    run = _RUN.get()
    if run is not None and run.owner is (ctx.crew or ctx.flow):
        _TASK.set(run.outer)
        if ctx.crew is None:
            _RUN.set(run.parent)


def _begin_task(ctx: Any) -> None:
    if ctx.kind == "task":
        crew: Any = getattr(ctx.agent, "crew", None)
        with aborting():
            restore_memories(ctx.agent, crew)
        memory, topic = _memory_of(ctx.agent, crew)
        _TASK.set(TaskRun(ctx.task, ctx.agent, ctx.payload or "", _run_of(ctx.task, crew), memory, topic))


def _run_of(task: Any, crew: Any) -> Run:
    """Return the kickoff of a task: a new one if the task runs alone or a crew replays it."""
    run = _live_run()
    if run is not None and any(each is task for each in getattr(run.owner, "tasks", ())):
        return run
    return _run(crew, getattr(crew, "_inputs", None), run)


def _end_task(ctx: Any) -> None:
    """End a task and record its answer, which its guardrails have passed."""
    task_run = _running_task() if ctx.kind == "task" else None
    if task_run is not None:
        task_run.is_done = True
        if task_run.memory is not None and not task_run.memory.read_only:
            task_run.memory.record_answer(task_run, ctx.payload.raw)


def _memory_of(agent: Any, crew: Any) -> tuple[Recorder | None, str]:
    """Return the memory of an agent and its topic; no memory for a slice, which has several topics."""
    memory: Any = getattr(agent, "memory", None) or getattr(crew, "_memory", None)
    topic = "/"
    if isinstance(memory, MemoryScope):
        topic = normalize_scope_path(memory.root_path)
        memory = getattr(memory, "_memory", None)
    return (memory if isinstance(memory, Recorder) else None), topic


HOOKS: Mapping[InterceptionPoint, Callable[[Any], None]] = {
    InterceptionPoint.EXECUTION_START: _begin,
    InterceptionPoint.INPUT: _take_inputs,
    InterceptionPoint.EXECUTION_END: _end,
    InterceptionPoint.PRE_STEP: _begin_task,
    InterceptionPoint.POST_STEP: _end_task,
}
