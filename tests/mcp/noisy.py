"""`threefold mcp` where everything that can make a noise does."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from typing import Any

from threefold_server import app
from threefold_server.cli import main
from threefold_server.models import build_embedder


def build_noisily(*arguments: Any, **options: Any) -> Any:
    """A dependency that prints, warns, logs, and calls C and a program that write on standard output."""
    sys.stdout.write("noise from Python\n")
    os.write(1, b"noise from C\n")
    subprocess.run(["echo", "noise from a program"], check=True)
    warnings.warn("noise from a warning", stacklevel=1)
    logging.getLogger("dependency").warning("noise from a log")
    return build_embedder(*arguments, **options)


setattr(app, "build_embedder", build_noisily)  # noqa: B010 - it is not of the module's own
main(sys.argv[1:])
