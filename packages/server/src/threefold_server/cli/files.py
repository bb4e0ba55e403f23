"""Output files of commands: complete or absent, never overwriting another, readable by their owner only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from threefold_server.cli.output import UsageError


@contextmanager
def whole_file(file: Path) -> Generator[Path]:
    """Yield the path of an empty temporary file. It becomes `file` when the block ends without an error.

    Raises:
        UsageError: `file` exists, or its directory cannot be written.
    """
    if file.exists():
        raise UsageError(f"{file} exists already; name a new file")
    try:
        folder = tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".threefold-")
    except OSError as error:
        raise UsageError(f"cannot create {file}: {error.strerror}") from error
    with folder as name:
        temporary = Path(name, "content")
        temporary.touch(mode=0o600)  # the content is private to the users of the store
        yield temporary
        os.link(temporary, file)
