"""`python -m benchmarks`: run every benchmark, one after another, each in its own process."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run every benchmark; the exit status is the number of benchmarks that failed to run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--locomo", metavar="DIR", help="LoCoMo conversations (see docs/benchmarks.md)")
    parser.add_argument("--quick", action="store_true", help="a trial of one or two minutes without reliable figures")
    options = parser.parse_args()
    quick = ["--quick"] if options.quick else []
    scripts = ("speed.py", "slow_model.py", "freshness.py", "checkpoints.py", "crewai_overhead.py")
    commands = [*([script, *quick] for script in scripts), ["imports.py"]]
    if options.locomo:
        commands.append(["locomo.py", "--data", options.locomo])
    else:
        print("recall quality is left out: its data is not part of this repository; see docs/benchmarks.md")
    return sum(run(*command) for command in commands)


def run(script: str, *options: str) -> bool:
    """Run one script and return whether it failed."""
    print(f"\n# {script}", flush=True)
    return subprocess.run([sys.executable, HERE / script, *options], check=False).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
