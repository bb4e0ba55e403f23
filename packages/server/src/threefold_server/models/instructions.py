"""What a model is told: packaged files with a version in their name, or a store's own in their place."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

PACKAGED = {"digest": "digest_v1"}


@dataclass(frozen=True, slots=True)
class Instructions:
    """A text, and the version that is stored with what comes of it."""

    text: str
    version: str


def read_instructions(name: str, directory: Path | None) -> Instructions:
    """Return `<name>.md` of the store's directory if it is there, else the packaged one."""
    own = None if directory is None else directory / f"{name}.md"
    if own is not None and own.exists():
        text = own.read_text("utf-8")
        return Instructions(text, f"{name}-{sha256(text.encode()).hexdigest()[:8]}")
    version = PACKAGED[name]
    packaged = files("threefold_server.models").joinpath("prompts", f"{version}.md")
    return Instructions(packaged.read_text("utf-8"), version)
