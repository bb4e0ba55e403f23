"""What a model is told: packaged files with a version in their name, or a store's own in their place."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

PACKAGED = {"digest": "digest_v1", "facts": "facts_v1", "compare": "compare_v1"}


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
        return Instructions(text, f"{name}-{_mark(text)}")
    version = PACKAGED[name]
    packaged = files("threefold_server.models").joinpath("prompts", f"{version}.md")
    return Instructions(packaged.read_text("utf-8"), version)


def read_both(name: str, directory: Path | None) -> Instructions:
    """Return the packaged file, on which the form of the answer rests, and after it the store's own."""
    packaged, chosen = read_instructions(name, None), read_instructions(name, directory)
    if chosen == packaged:
        return packaged
    return Instructions(f"{packaged.text}\n\n{chosen.text}", f"{packaged.version}-{_mark(chosen.text)}")


def _mark(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
