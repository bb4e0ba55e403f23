"""`threefold demo`: a story in two sessions on a throw-away store. Each scene checks what it shows."""

from __future__ import annotations

import json as jsonlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule

from threefold import MemoryClient
from threefold.contract import RecalledMemory
from threefold_server.cli import views
from threefold_server.cli.commands import Json
from threefold_server.cli.output import Failed, out, plain
from threefold_server.local import LocalService
from threefold_server.storage.database import sqlite_url

app = typer.Typer()

AGENT = "assistant"
FIRST, SECOND = "monday", "tuesday"
SECRET = "quokka-7391"

TALK = [
    ("user", "Hi! I am Mira, I run releases for the payments team."),
    ("assistant", "Nice to meet you, Mira. How can I help with your releases?"),
    ("user", "Please remember: I deploy to staging on Fridays, never earlier in the week."),
    ("assistant", "Noted. Staging on Fridays, and nothing before that."),
    ("user", f"The alarm of our server room is switched off with the code word {SECRET}."),
    ("assistant", "I will keep that to myself."),
    ("user", "My daughter Ines has started to play the cello. She practises every evening after dinner."),
    ("assistant", "How lovely! The cello is a warm instrument to have in the house."),
    ("user", "The staging servers stand in Lisbon; production runs in Frankfurt and in Oslo."),
    ("assistant", "Lisbon for staging, Frankfurt and Oslo for production. Understood."),
    ("user", "If a release fails, call Jonas first. He has the pager until the end of the quarter."),
    ("assistant", "Jonas it is, until the quarter ends."),
    ("user", "We are not allowed to store card numbers in logs, not even masked ones."),
    ("assistant", "Clear: no card numbers in logs, masked or not."),
    ("user", "And on my birthday I want nobody to page me: that is the 14th of August."),
    ("assistant", "No pages on the 14th of August. Enjoy it when it comes!"),
]

SETTINGS: dict[str, Any] = {
    "embedder": "minilm",
    "summarizer": "extractive",
    "token_budget": 600,
    "compaction_trigger": 250,
    "compaction_target": 120,
    "tier_deadline": 10.0,  # on a slow machine the model takes a moment to load
    "top_k": 3,
    "min_score": 0.0,
}


@dataclass(frozen=True)
class Stage:
    """Who is there, and where the store keeps its files."""

    mira: MemoryClient
    tom: MemoryClient
    files: Path


@dataclass(frozen=True)
class Scene:
    """What happened, as data and as a picture."""

    title: str
    text: str
    evidence: dict[str, Any]
    picture: RenderableType


def require(condition: bool, claim: str) -> None:
    """A demo that shows something else than it says must not pass."""
    if not condition:
        raise Failed(f"the demo did not show that {claim}")


def tell(stage: Stage) -> Scene:
    """Session 1: sixteen turns are written."""
    start = datetime.now(UTC) - timedelta(days=1)
    turns = [
        {"role": role, "content": content, "created_at": start + timedelta(minutes=number)}
        for number, (role, content) in enumerate(TALK)
    ]
    written = stage.mira.write(FIRST, turns)
    require(written.appended == len(TALK), "every turn is stored")
    return Scene(
        f"Yesterday, session {FIRST!r}: Mira talks to her assistant",
        "Each turn is stored word for word, and can be recalled as soon as the write returns.",
        {"written": written.model_dump()},
        Group(views.turns(stage.mira.turns(FIRST, limit=6)), views.written(written)),
    )
