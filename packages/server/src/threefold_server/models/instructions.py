"""Instructions for the model: packaged files with a version in their name, and a store's own files."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

PACKAGED = {"digest": "digest_v1", "facts": "facts_v1", "compare": "compare_v1"}


@dataclass(frozen=True, slots=True)
class Instructions:
    """A text with its version, which is stored with every result of the model."""

    text: str
    version: str


def read_instructions(name: str, directory: Path | None) -> Instructions:
    """Return `<name>.md` of the store's directory if it exists, else the packaged file."""
    own = None if directory is None else directory / f"{name}.md"
    if own is not None and own.exists():
        text = own.read_text("utf-8")
        return Instructions(text, f"{name}-{_short_hash(text)}")
    version = PACKAGED[name]
    packaged = files("threefold_server.models").joinpath("prompts", f"{version}.md")
    return Instructions(packaged.read_text("utf-8"), version)


def read_both(name: str, directory: Path | None) -> Instructions:
    """Return the packaged file, which defines the form of the answer, followed by the store's own if it exists."""
    packaged, chosen = read_instructions(name, None), read_instructions(name, directory)
    if chosen == packaged:
        return packaged
    return Instructions(f"{packaged.text}\n\n{chosen.text}", f"{packaged.version}-{_short_hash(chosen.text)}")


def _short_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
