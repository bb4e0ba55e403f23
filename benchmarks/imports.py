"""The time to import a plugin in addition to its framework, and the time a command takes before it does anything.

The goal of a plugin is 100 ms of processor time; that of a start is to be ready within 2 s. Each measurement uses a new
interpreter, and processor time, because wall time depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile

from harness import THREEFOLD, machine, started
from load import cpu_seconds
from rich.console import Console
from rich.table import Table

GOAL_SECONDS = 0.1
PLUGINS = {
    "threefold_adk": "google.adk.agents, google.adk.apps.app, google.adk.runners",
    "threefold_crewai": "crewai",
    "threefold_langgraph": "langgraph.graph, langgraph.checkpoint.base, langgraph.store.base",
    "threefold_pydantic_ai": "pydantic_ai",
}
"""Each plugin, and the modules that a program with its framework imports in any case."""

SERVER = "import fastapi, uvicorn, sqlalchemy, numpy"
"""The libraries that such a server needs at least, to compare the commands with."""

COMMANDS = {
    "the server's libraries alone": (sys.executable, "-c", SERVER),
    "the client alone": (sys.executable, "-c", "import threefold"),
    "threefold --help": (THREEFOLD, "--help"),
    "threefold recall --help": (THREEFOLD, "recall", "--help"),
}

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
    parser = argparse.ArgumentParser(description="Measure the import time of a plugin in addition to its framework.")
    parser.add_argument("--runs", type=int, default=9, help="interpreters for each plugin")
    options = parser.parse_args()
    table = Table("plugin", "framework", "beyond it", "goal", title=f"Imports, medians of {options.runs}; {machine()}")
    for plugin, framework in PLUGINS.items():
        seconds = [measure(framework, plugin) for _ in range(options.runs)]
        base, own = (statistics.median(column) for column in zip(*seconds, strict=True))
        table.add_row(plugin, f"{base:.2f} s", f"{own * 1000:.0f} ms", "met" if own <= GOAL_SECONDS else "missed")
    console = Console(width=110)
    console.print(table)
    table = Table("command", "processor time", title=f"Commands, medians of {options.runs}")
    for title, command in COMMANDS.items():
        table.add_row(title, f"{statistics.median(cpu_of(command) for _ in range(options.runs)):.2f} s")
    with tempfile.TemporaryDirectory() as directory:
        serve = (THREEFOLD, "serve", "--port", "0", "--data", directory)
        start(serve)  # creates the store
        seconds = statistics.median(start(serve) for _ in range(options.runs))
        table.add_row("threefold serve, until ready", f"{seconds:.2f} s")
    console.print(table)


def cpu_of(command: tuple[str, ...]) -> float:
    """Return the seconds of processor time of a command that exits by itself."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start(command: tuple[str, ...]) -> float:
    """Return the seconds of processor time of a service until it is ready."""
    with started(*command) as process:
        return cpu_seconds(process.pid) or 0.0


def measure(framework: str, plugin: str) -> tuple[float, float]:
    """Return the seconds for the framework, and for the plugin after it."""
    code = PROBE.format(framework=framework, plugin=plugin)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    base, own = map(float, done.stdout.split()[-2:])
    return base, own


if __name__ == "__main__":
    main()
