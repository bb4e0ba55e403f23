"""Files that commands make: whole or not at all, never over another, and for their owner's eyes only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from threefold_server.cli.output import UsageError


@contextmanager
def whole_file(file: Path) -> Generator[Path]:
    """An empty file to fill, which becomes `file` once the block is done."""
    if file.exists():
        raise UsageError(f"{file} exists already; name a new file")
    try:
        folder = tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".threefold-")
    except OSError as error:
        raise UsageError(f"no file can be made at {file}: {error.strerror}") from error
    with folder as name:
        made = Path(name, "made")
        made.touch(mode=0o600)  # what users said is nobody else's to read
        yield made
        os.link(made, file)
