"""What CrewAI asks of a memory, and what it does around it: the plugin stands on this, and a release may change it.

A failure here says which of it changed. Look at the place, let the plugin do what is asked there, and then bring the
table up to date.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.crewai_host import crewai
from threefold_crewai import ThreefoldMemory
from threefold_crewai.runs import HOOKS

SOURCE = Path(crewai.__file__).parent
HOLDERS = {"memory", "agent_memory", "unified_memory", "_memory", "mem"}
"""The names by which CrewAI's modules know a memory."""

USES = {
    "agent/core.py": {
        "unified_memory.recall(query, limit=5)",
        "agent_memory.recall(recall_text, limit=20)",
        "agent_memory.extract_memories(raw)",
        "agent_memory.remember_many(extracted)",
        "memory.strip()",  # a text
    },
    "agents/agent_builder/base_agent.py": {"self.memory.bind(Memory())", "self.memory._memory"},
    "agents/agent_builder/base_agent_executor.py": {
        "memory.read_only",
        "memory.extract_memories(raw)",
        "memory.remember_many(extracted, agent_role=self.agent.role)",
        "memory.remember_many(extracted, agent_role=self.agent.role, root_scope=agent_root)",
    },
    "crew.py": {"memory.reset()", "memory.reset_all()"},
    "flow/human_feedback.py": {
        "mem.recall(query, source=learn_source)",
        "mem.remember_many(lessons, source=learn_source)",
    },
    "flow/runtime/__init__.py": {
        "self.memory.recall(query, **kwargs)",
        "self.memory.remember(content, **kwargs)",
        "self.memory.remember_many(content, **kwargs)",
        "self.memory.extract_memories(content)",
        "self.memory.bind(Memory())",
        "self.memory._memory",
    },
    "lite_agent.py": {
        "self._memory.read_only",
        "self._memory.recall(query, limit=10)",
        "self._memory.extract_memories(raw)",
        "self._memory.remember_many(extracted, agent_role=self.role)",
    },
    "tools/memory_tools.py": {
        "memory.read_only",
        "self.memory.recall(query, limit=20)",
        "self.memory.remember(contents[0])",
        "self.memory.remember_many(contents)",
    },
    "utilities/reset_memories.py": {"mem.reset()", "mem.reset_all()", "mem._memory.reset()", "mem._memory"},
}
BY_NAME = {
    "agents/agent_builder/base_agent_executor.py": {"root_scope"},
    "crew.py": {"_memory", "drain_writes"},
    "flow/runtime/__init__.py": {"_memory", "drain_writes"},
}
"""What is asked for by `getattr`."""


def uses(tree: ast.Module) -> Iterator[str]:
    """Each attribute of a memory that a module uses, as a call where it is one."""
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and last_name(node.value) in HOLDERS:
            yield ast.unparse(called.get(id(node), node))


def by_name(tree: ast.Module) -> Iterator[str]:
    """The names by which `getattr` asks the holders of a memory."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == "getattr":
            holder, name, *_ = node.args
            if last_name(holder) in HOLDERS | {"backing", "base_root"} and isinstance(name, ast.Constant):
                yield str(name.value)


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """CrewAI's modules outside of its own memory."""
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("memory/", "cli/")):
            yield name, ast.parse(path.read_text())


def test_what_crewai_asks_of_a_memory() -> None:
    trees = dict(modules())
    assert {name: found for name, tree in trees.items() if (found := set(uses(tree)))} == USES
    assert {name: found for name, tree in trees.items() if (found := set(by_name(tree)))} == BY_NAME


def verbs(kind: type) -> set[str]:
    """The public methods of a class, without pydantic's."""
    own = set(dir(kind)) - set(dir(crewai.Memory.__base__))
    return {name for name in own if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize("name", sorted(verbs(crewai.Memory)))
def test_each_verb_takes_what_crewais_takes(name: str) -> None:
    own, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (ThreefoldMemory, crewai.Memory))
    assert {key: value.default for key, value in own.items()} == {key: value.default for key, value in theirs.items()}


def test_no_verb_of_crewais_is_left_that_asks_a_model() -> None:
    """Those that are CrewAI's still work on its storage, or on the verbs that are ours."""
    inherited = {
        name for name in verbs(crewai.Memory) if getattr(ThreefoldMemory, name) is getattr(crewai.Memory, name)
    }
    views_and_reads = {"scope", "slice", "list_scopes", "list_records", "list_categories", "info", "tree", "forget"}
    twins = {"arecall", "aremember", "aremember_many", "aextract_memories"}
    assert inherited == views_and_reads | twins | {"close"}


ORDER = ["PRE_STEP", "agent.execute_task(", "_invoke_guardrail_function(", "POST_STEP", "TaskCompletedEvent("]


@pytest.mark.parametrize("method", ["_execute_core", "_aexecute_core"])
def test_the_order_of_a_task(method: str) -> None:
    source = inspect.getsource(getattr(crewai.Task, method)).replace("aexecute_task(", "execute_task(")
    source = source.replace("_ainvoke_guardrail", "_invoke_guardrail")
    places = [source.index(mark) for mark in ORDER]
    assert places == sorted(places)
    assert source.index("set_current_task_id") < places[0]


def test_the_hooks_are_there() -> None:
    assert {point.name for point in HOOKS} == {"EXECUTION_START", "INPUT", "EXECUTION_END", "PRE_STEP", "POST_STEP"}


def test_abortions_are_let_through_where_a_memory_is_asked() -> None:
    from crewai.agents.agent_builder.base_agent_executor import BaseAgentExecutor

    asking: list[Any] = [
        crewai.Agent._retrieve_memory_context,
        crewai.Agent._save_kickoff_to_memory,
        BaseAgentExecutor._save_to_memory,  # pyright: ignore[reportPrivateUsage]
    ]
    for place in asking:
        assert "HookAborted" in inspect.getsource(place)
