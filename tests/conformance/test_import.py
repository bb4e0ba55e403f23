"""Importing a plugin changes nothing in the process: it imports the framework and a few small modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conformance.adapter import Plugin

PROBE = """
import asyncio, json, logging, os, signal, sys, threading

touched = []
def watch(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.putenv", "os.unsetenv")):
        touched.append(event)
    if event == "open" and set(str(arguments[1])) & set("wax+") and "__pycache__" not in str(arguments[0]):
        touched.append(f"open {arguments[0]}")

def host():
    root = logging.getLogger()
    loggers = {name: (logger.level, len(logger.handlers)) for name, logger in root.manager.loggerDict.items()
               if isinstance(logger, logging.Logger) and not name.startswith("threefold")}
    return {
        "environment": dict(os.environ),
        "logging": [root.level, len(root.handlers), logging.getLevelName(root.level)],
        "loggers": {name: state for name, state in loggers.items() if state != (0, 0)},
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "loops": str(type(asyncio.get_event_loop_policy())),
        "threads": threading.active_count(),
        "path": list(sys.path),
        "hooks": [str(sys.excepthook), str(threading.excepthook)],
    }

def third_party():
    files = {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()}
    return {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}

framework, plugin = sys.argv[1:]
__import__(framework)
import httpx  # what the client needs
before, loaded = host(), third_party()
sys.addaudithook(watch)
__import__(plugin)
after = host()
print(json.dumps([before, after, touched, sorted(third_party() - loaded)]))
"""


def test_importing_a_plugin_changes_nothing(plugin: Plugin, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROBE, plugin.framework, plugin.module]
    environment = os.environ | {"HOME": str(tmp_path)}  # a framework may write to HOME
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, after, touched, loaded = json.loads(done.stdout.splitlines()[-1])
    assert after == before
    assert touched == []
    assert loaded == []
