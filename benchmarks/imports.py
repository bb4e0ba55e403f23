"""What importing a plugin costs beyond its framework: the goal is 100 ms of processor time.

Each measurement is a fresh interpreter. Processor time, as the wall clock of a busy machine tells of its neighbours.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from harness import machine
from rich.console import Console
from rich.table import Table

GOAL_SECONDS = 0.1
PLUGINS = {
    "threefold_adk": "google.adk.agents, google.adk.apps.app, google.adk.runners",
    "threefold_crewai": "crewai",
    "threefold_langgraph": "langgraph.graph, langgraph.checkpoint.base, langgraph.store.base",
    "threefold_pydantic_ai": "pydantic_ai",
}
"""Each plugin, and what a program that uses its framework imports anyway."""

PROBE = """
import time
began = time.process_time()
import {framework}
framework = time.process_time()
import {plugin}
print(framework - began, time.process_time() - framework)
"""


def main() -> None:
    """Measure every plugin, and print a table."""
    parser = argparse.ArgumentParser(description="What importing a plugin costs beyond its framework.")
    parser.add_argument("--runs", type=int, default=9, help="interpreters for each plugin")
    options = parser.parse_args()
    table = Table("plugin", "framework", "beyond it", "goal", title=f"Imports, medians of {options.runs}; {machine()}")
    for plugin, framework in PLUGINS.items():
        seconds = [measure(framework, plugin) for _ in range(options.runs)]
        base, own = (statistics.median(column) for column in zip(*seconds, strict=True))
        table.add_row(plugin, f"{base:.2f} s", f"{own * 1000:.0f} ms", "met" if own <= GOAL_SECONDS else "missed")
    Console(width=110).print(table)


def measure(framework: str, plugin: str) -> tuple[float, float]:
    """Seconds for the framework, and for the plugin after it."""
    code = PROBE.format(framework=framework, plugin=plugin)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    base, own = map(float, done.stdout.split()[-2:])
    return base, own


if __name__ == "__main__":
    main()
