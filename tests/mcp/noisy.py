"""`threefold mcp` in which everything that can write to standard output does so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic.config import Config

from threefold_server import app
from threefold_server.cli import main
from threefold_server.models import build_embedder
from threefold_server.storage.engine import migrate

released: Callable[[], Config] = getattr(migrate, "_config")  # noqa: B009 - of another module


def build_noisily(*arguments: Any, **options: Any) -> Any:
    """Build the embedder like a dependency that prints, warns, logs, and runs C code and a program that print."""
    sys.stdout.write("noise from Python\n")
    os.write(1, b"noise from C\n")
    subprocess.run(["echo", "noise from a program"], check=True)
    warnings.warn("noise from a warning", stacklevel=1)
    logging.getLogger("dependency").warning("noise from a log")
    return build_embedder(*arguments, **options)


def with_one_more() -> Config:
    """Return the migrations with one more, which every store lacks."""
    config = released()
    places = Path(config.get_main_option("script_location") or "") / "versions", Path(__file__).parent / "migrations"
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(str, places)))
    return config


setattr(app, "build_embedder", build_noisily)  # noqa: B010 - it is not of the module's own
setattr(migrate, "_config", with_one_more)  # noqa: B010
setattr(migrate, "newest", lambda: "after")  # noqa: B010
main(sys.argv[1:])
