"""The time that memory adds to a task of a crew: the goal is a median of 30 ms, with the service on loopback.

The same crew of two agents and three tasks runs alternately without memory, with memory, and with a service that is
down. Its model answers at once. A figure is the difference of two kickoffs of one round, divided by the tasks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import machine, running_service
from rich.console import Console
from rich.table import Table

from threefold import MemoryClient, Policy

GOAL_MS = 30.0
TASKS = ("Find out about {topic}.", "Write about {topic}.", "Check what is written about {topic}.")
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TESTING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}


def main() -> None:
    """Start a service, measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure the time that memory adds to a task of a crew.")
    parser.add_argument("--rounds", type=int, default=60, help="kickoffs of each kind")
    parser.add_argument("--quick", action="store_true", help="a short trial; its figures are not reliable")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="threefold-bench-") as home, running_service(None) as url:
        os.environ.update(QUIET, HOME=home, CREWAI_STORAGE_DIR=home)
        report(measure(url, 3 if options.quick else options.rounds))


def measure(url: str, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each kind of kickoff, round by round, after one warm-up round."""
    from threefold_crewai import ThreefoldMemory

    down = ThreefoldMemory(MemoryClient("http://127.0.0.1:9", user="ana"), policy=Policy(failure_mode="soft"))
    up = ThreefoldMemory(MemoryClient(url, user="ana"))
    kickoffs = {"without memory": crew(None), "with memory": crew(up), "service down": crew(down)}
    found: dict[str, list[float]] = {name: [] for name in kickoffs}
    for number in range(rounds + 1):
        inputs = {"topic": f"subject {number}", "session_id": f"session {number % 10}"}
        for name, kickoff in kickoffs.items():
            found[name].append(milliseconds(partial(kickoff, inputs)))
    if down.stats.dropped or up.stats.outages:
        sys.exit(f"not a fair run: {down.stats}, {up.stats}")
    return {name: column[1:] for name, column in found.items()}


def crew(memory: Any) -> Callable[[dict[str, str]], Any]:
    """Return the kickoff function of a crew whose model answers at once."""
    from crewai import Agent, BaseLLM, Crew, Task

    class Instant(BaseLLM):
        def call(self, messages: Any, *_: Any, **__: Any) -> str:
            return "Final Answer: Done, in a sentence or two that say what was found."

        def get_input_tokens_count(self, messages: Any, *_: Any, **__: Any) -> int:
            return len(str(messages)) // 4

    agents: list[Any] = [
        Agent(role=role, goal="Inform.", backstory="You inform.", llm=Instant(model="instant"))
        for role in ("Researcher", "Writer")
    ]
    tasks = [
        Task(description=text, expected_output="A text.", agent=agents[number % 2]) for number, text in enumerate(TASKS)
    ]
    newsroom: Any = Crew(name="newsroom", agents=agents, tasks=tasks, memory=memory)
    return newsroom.kickoff


def milliseconds(run: Callable[[], object]) -> float:
    """Return the wall time of a call in milliseconds."""
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1_000


def report(found: dict[str, list[float]]) -> None:
    """Print per task the medians, and the time that memory adds at the median and the 95th percentile."""
    plain = found["without memory"]
    table = Table("", "a task", "added (p50)", "added (p95)", title=f"{len(plain)} kickoffs of 3 tasks; {machine()}")
    for name, column in found.items():
        added = [(one - other) / len(TASKS) for one, other in zip(column, plain, strict=True)]
        table.add_row(name, *map(shown, (statistics.median(column) / len(TASKS), *spread(added))))
    Console(width=110).print(table)
    added = statistics.median(with_it - without for with_it, without in zip(found["with memory"], plain, strict=True))
    print(f"goal of {GOAL_MS:.0f} ms: {'met' if added / len(TASKS) < GOAL_MS else 'missed'}")


def spread(values: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    return statistics.median(values), statistics.quantiles(values, n=20)[-1]


def shown(value: float) -> str:
    """Format milliseconds."""
    return f"{value:.1f} ms"


if __name__ == "__main__":
    main()
