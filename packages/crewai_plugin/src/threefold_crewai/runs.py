"""What CrewAI is doing right now, as its hooks tell: which kickoff, with which inputs, which task, in whose role."""

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
from threefold_crewai.copies import reunite
from threefold_crewai.dumps import final_answer

UNSEEN = (
    "this task or flow began before the plugin could see its inputs, so whose memory it is cannot be known: make the "
    "ThreefoldMemory before the kickoff, do not clear CrewAI's hooks while it is in use, and resume a flow within "
    "acting_as(user=..., agent=..., session=...)"
)
UNNAMED = Crew.model_fields["name"].default


class Named(NamedTuple):
    """Whom your code has named; None is left to the memory and the inputs."""

    user: str | None = None
    agent: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class Run:
    """One kickoff of a crew or a flow. Those that it starts itself are inside of it."""

    owner: Any
    inputs: Mapping[str, Any]
    parent: Run | None = None
    around: Step | None = None
    """The task whose tool or callback has started it."""
    flow_id: str | None = None
    mark: Any = None
    """What CrewAI keeps in the context of this very kickoff of a crew, callbacks before and after it included."""
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def session_id(self) -> str:
        """A session of the outermost kickoff's own."""
        return self.parent.session_id if self.parent else self.id

    @property
    def all_inputs(self) -> dict[str, Any]:
        """Its inputs, and those around it that it does not replace; with None it names nobody."""
        own = {name: value for name, value in self.inputs.items() if value is not None}
        return {**self.parent.all_inputs, **own} if self.parent else dict(self.inputs)

    @property
    def name(self) -> str | None:
        """The name of the crew or flow; of what is around it, where it has none."""
        owner: Any = self.owner
        if isinstance(owner, Crew):
            own = None if owner.name == UNNAMED else owner.name
        elif isinstance(owner, Flow) and not owner.is_crewai_internal:
            own = owner.name or str(type(self.owner).__name__)
        else:
            own = None
        return own or (self.parent.name if self.parent else None)

    def is_live(self) -> bool:
        """Whether it is still going on, by CrewAI's own marks: a cancelled kickoff tells no hook that it is over."""
        if isinstance(self.owner, Crew):
            return self.mark is not None and get_crew_context() is self.mark
        return self.flow_id is not None and current_flow_id.get() == self.flow_id

    def is_in_sight(self) -> bool:
        """Whether the inputs of all that is around it are known: a flow that is resumed tells none."""
        if self.parent is not None:
            return self.parent.is_in_sight()
        return self.flow_id is None or self.flow_id == getattr(self.owner, "flow_id", None)


@runtime_checkable
class Recorder(Protocol):
    """A memory that wants to know what a task came to."""

    read_only: bool

    def record_answer(self, step: Step, answer: str) -> None: ...


@dataclass
class Step:
    """One task at work, and what of it is recorded already."""

    task: Any
    agent: Any
    context: str
    run: Run
    memory: Recorder | None
    """The agent's, else its crew's."""
    topic: str
    id: str = field(default_factory=lambda: uuid4().hex)
    asked: bool = False
    is_done: bool = False
    answers: list[str] = field(default_factory=list[str])
    failure: ThreefoldError | None = None
    """What a tool could not raise: CrewAI makes a text of every exception there."""

    @property
    def role(self) -> str:
        return self.agent.role or ""

    @property
    def asked_id(self) -> str:
        """The id of the turn that holds the task's description."""
        return f"{self.id}/0"

    @property
    def is_last(self) -> bool:
        """Whether its crew has nothing left to do afterwards."""
        tasks = getattr(self.agent.crew, "tasks", None)
        return not tasks or tasks[-1] is self.task

    def is_asked(self, memory: object, scope: str | None, query: str) -> bool:
        """Whether a recall is CrewAI's own for this task, and not one of a tool."""
        here = self.memory is memory and normalize_scope_path(scope or "/") == self.topic
        return here and query == self.task.description

    def answer_in(self, text: str) -> str | None:
        """What an executor has to say to this very task, out of the text that it would have saved."""
        task = self.task
        head = f"Task: {task.description}\nAgent: {self.agent.role}\nExpected result: {task.expected_output}\nResult: "
        return final_answer(text[len(head) :]) if text.startswith(head) else None

    def shown(self) -> set[str]:
        """What the model reads anyway: this task, and those of its crew whose results are its context."""
        texts = {self.task.description}
        for task in getattr(self.agent.crew, "tasks", ()):
            if task.output and task.output.raw in self.context:
                texts |= {task.description, task.output.raw}
        return texts


_RUN: ContextVar[Run | None] = ContextVar("threefold_crewai_run", default=None)
_STEP: ContextVar[Step | None] = ContextVar("threefold_crewai_step", default=None)
_NAMED: ContextVar[Named | None] = ContextVar("threefold_crewai_named", default=None)
QUESTION: ContextVar[str | None] = ContextVar("threefold_crewai_question", default=None)
"""What was last asked outside of tasks: by an agent without a crew, before its answer, the user's words."""


@contextmanager
def acting_as(*, user: str | None = None, agent: str | None = None, session: str | None = None) -> Generator[None]:
    """Name user, agent or session for all that happens inside: it goes before the memory's own and the inputs."""
    outer = named()
    token = _NAMED.set(
        Named(
            outer.user if user is None else user,
            outer.agent if agent is None else agent,
            outer.session if session is None else session,
        )
    )
    try:
        yield
    finally:
        _NAMED.reset(token)


def named() -> Named:
    """Whom your code has named."""
    return _NAMED.get() or Named()


def current_step() -> Step | None:
    """The task that this code is part of, and not of a kickoff that a tool or callback of it has started."""
    step = _step_at_work()
    if step is None and get_current_task_id() is not None:
        raise InvalidRequest(UNSEEN)
    run = _live_run()
    return None if run is not None and run.around is step else step


def current_run() -> Run | None:
    """The kickoff that this code is part of."""
    step = current_step()
    return step.run if step else _live_run()


def check_sight(run: Run | None) -> None:
    """Refuse to take the client's user or agent where inputs that nobody saw may have named another."""
    if not (run.is_in_sight() if run else current_flow_id.get() is None):
        raise InvalidRequest(UNSEEN)


def install() -> None:
    """Have CrewAI tell what it does, once in a process."""
    for point, hook in HOOKS.items():
        if hook not in get_hooks(point):
            register_hook(point, hook)


def _step_at_work() -> Step | None:
    """The task that CrewAI says is at work; one that began before the hooks were there is not known."""
    step = _STEP.get()
    while step is not None and str(step.task.id) != get_current_task_id():
        step = step.run.around
    return step


def _step_around() -> Step | None:
    """The task that goes on around one, or around a kickoff, that begins."""
    step = _STEP.get()
    while step is not None and step.is_done:
        step = step.run.around
    return step


def _live_run() -> Run | None:
    run = _RUN.get()
    while run is not None and not run.is_live():
        run = run.parent
    return run


def _begin(ctx: Any) -> None:
    with aborting():
        reunite(ctx.crew, ctx.flow, *getattr(ctx.crew, "agents", ()))
        parent = current_run()
    while parent is not None and parent.owner is ctx.flow:  # its kickoff before, cancelled: no flow is inside of itself
        parent = parent.parent
    mark = get_crew_context() if ctx.crew else None
    _RUN.set(_run(ctx.crew or ctx.flow, ctx.payload, parent, mark))


def _run(owner: Any, inputs: Mapping[str, Any] | None, parent: Run | None, mark: Any = None) -> Run:
    return Run(owner, inputs or {}, parent, _step_around(), current_flow_id.get(), mark)


def _take_inputs(ctx: Any) -> None:
    """A kickoff has its inputs, as callbacks have left them."""
    run = _RUN.get()
    if run is None or run.owner is not (ctx.crew or ctx.flow) or not run.is_live():
        return _begin(ctx)
    _RUN.set(replace(run, inputs=ctx.payload or {}))
    return None


def _end(ctx: Any) -> None:
    """A crew's callbacks are still to come; that it is over then, its mark tells."""
    run = _RUN.get()
    if run is not None and run.owner is (ctx.crew or ctx.flow):
        _STEP.set(run.around)
        if ctx.crew is None:
            _RUN.set(run.parent)


def _begin_step(ctx: Any) -> None:
    if ctx.kind == "task":
        crew: Any = getattr(ctx.agent, "crew", None)
        with aborting():
            reunite(ctx.agent, crew)
        memory, topic = _memory_of(ctx.agent, crew)
        _STEP.set(Step(ctx.task, ctx.agent, ctx.payload or "", _run_of(ctx.task, crew), memory, topic))


def _run_of(task: Any, crew: Any) -> Run:
    """The kickoff that a task belongs to: one of its own where it is by itself, or where a crew replays it."""
    run = _live_run()
    if run is not None and any(each is task for each in getattr(run.owner, "tasks", ())):
        return run
    return _run(crew, getattr(crew, "_inputs", None), run)


def _end_step(ctx: Any) -> None:
    """A task is done, and its guardrails have passed what it came to."""
    step = _step_at_work() if ctx.kind == "task" else None
    if step is not None:
        step.is_done = True
        if step.memory is not None and not step.memory.read_only:
            step.memory.record_answer(step, ctx.payload.raw)


def _memory_of(agent: Any, crew: Any) -> tuple[Recorder | None, str]:
    """The memory that an agent uses, and the topic of a view of it. A slice has no one place to record in."""
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
    InterceptionPoint.PRE_STEP: _begin_step,
    InterceptionPoint.POST_STEP: _end_step,
}
