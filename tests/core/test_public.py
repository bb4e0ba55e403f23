"""The public surface: complete, with few dependencies, and importing it changes nothing."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys

import threefold
from threefold import errors

# Imported by httpx and pydantic.
EXPECTED = {"threefold", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "rich", "pygments"} | {
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "click"),
    *("markdown_it", "mdurl", "h2", "hpack", "hyperframe", "socksio", "brotli", "zstandard", "exceptiongroup"),
}

PROBE = """
import json, logging, signal, sys, threading, warnings
before = (logging.root.level, len(logging.root.handlers), list(warnings.filters), signal.getsignal(signal.SIGINT))
started = set(sys.modules)
import threefold
after = (logging.root.level, len(logging.root.handlers), list(warnings.filters), signal.getsignal(signal.SIGINT))
new = {name.partition(".")[0] for name in set(sys.modules) - started if name[0] != "_"} - set(sys.stdlib_module_names)
print(json.dumps([before == after, threading.active_count(), sorted(new)]))
"""


def test_exports_exist_and_are_sorted() -> None:
    assert threefold.__all__ == sorted(threefold.__all__, key=lambda name: (not name[0].isupper(), name))
    assert all(hasattr(threefold, name) for name in threefold.__all__)


def test_every_error_is_exported_and_in_the_diagram() -> None:
    tree = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    assert tree <= set(threefold.__all__)
    assert errors.__doc__
    assert tree <= set(re.findall(r"\w+", errors.__doc__))


def test_import_loads_two_libraries_and_changes_nothing() -> None:
    output = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout
    unchanged, threads, modules = json.loads(output)
    assert unchanged
    assert threads == 1
    assert set(modules) <= EXPECTED


def test_every_module_can_be_imported_first() -> None:
    for module in pkgutil.walk_packages(threefold.__path__, "threefold."):
        assert importlib.import_module(module.name).__doc__
