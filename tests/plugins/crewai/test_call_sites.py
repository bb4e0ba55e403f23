"""Which calls CrewAI makes to a memory, and in which order: the plugin depends on it, and a release may change it.

A failure here names the changed place. Adapt the plugin to it, then update the table.
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
"""The names of variables that hold a memory in the modules of CrewAI."""

USES = {
    "agent/core.py": {
        "unified_memory.recall(query, limit=5)",
        "agent_memory.recall(recall_text, limit=20)",
        "agent_memory.extract_memories(raw)",
        "agent_memory.remember_many(extracted)",
        "memory.strip()",  # a string
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
"""The attributes that are read with `getattr`."""


def uses(tree: ast.Module) -> Iterator[str]:
    """Yield each attribute of a memory that a module uses, as a call if it is called."""
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and last_name(node.value) in HOLDERS:
            yield ast.unparse(called.get(id(node), node))


def by_name(tree: ast.Module) -> Iterator[str]:
    """Yield the attributes that are read from a memory with `getattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == "getattr":
            holder, name, *_ = node.args
            if last_name(holder) in HOLDERS | {"backing", "base_root"} and isinstance(name, ast.Constant):
                yield str(name.value)


def last_name(node: ast.expr) -> str:
    """Return `c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of CrewAI except those of its own memory."""
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("memory/", "cli/")):
            yield name, ast.parse(path.read_text())


def test_uses_of_a_memory_in_crewai() -> None:
    trees = dict(modules())
    assert {name: found for name, tree in trees.items() if (found := set(uses(tree)))} == USES
    assert {name: found for name, tree in trees.items() if (found := set(by_name(tree)))} == BY_NAME


def verbs(kind: type) -> set[str]:
    """Return the public methods of a class, without those of pydantic."""
    own = set(dir(kind)) - set(dir(crewai.Memory.__base__))
    return {name for name in own if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize("name", sorted(verbs(crewai.Memory)))
def test_methods_have_the_parameters_of_crewai(name: str) -> None:
    own, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (ThreefoldMemory, crewai.Memory))
    assert {key: value.default for key, value in own.items()} == {key: value.default for key, value in theirs.items()}


def test_no_inherited_method_asks_a_model() -> None:
    """Inherited methods use the storage or call the methods that the plugin overrides."""
    inherited = {
        name for name in verbs(crewai.Memory) if getattr(ThreefoldMemory, name) is getattr(crewai.Memory, name)
    }
    views_and_reads = {"scope", "slice", "list_scopes", "list_records", "list_categories", "info", "tree", "forget"}
    twins = {"arecall", "aremember", "aremember_many", "aextract_memories"}
    assert inherited == views_and_reads | twins | {"close"}


ORDER = ["PRE_STEP", "agent.execute_task(", "_invoke_guardrail_function(", "POST_STEP", "TaskCompletedEvent("]


@pytest.mark.parametrize("method", ["_execute_core", "_aexecute_core"])
def test_order_of_steps_in_a_task(method: str) -> None:
    source = inspect.getsource(getattr(crewai.Task, method)).replace("aexecute_task(", "execute_task(")
    source = source.replace("_ainvoke_guardrail", "_invoke_guardrail")
    places = [source.index(mark) for mark in ORDER]
    assert places == sorted(places)
    assert source.index("set_current_task_id") < places[0]


def test_hooks_exist() -> None:
    assert {point.name for point in HOOKS} == {"EXECUTION_START", "INPUT", "EXECUTION_END", "PRE_STEP", "POST_STEP"}


def test_abort_is_raised_where_crewai_calls_a_memory() -> None:
    from crewai.agents.agent_builder.base_agent_executor import BaseAgentExecutor

    asking: list[Any] = [
        crewai.Agent._retrieve_memory_context,
        crewai.Agent._save_kickoff_to_memory,
        BaseAgentExecutor._save_to_memory,  # pyright: ignore[reportPrivateUsage]
    ]
    for place in asking:
        assert "HookAborted" in inspect.getsource(place)
