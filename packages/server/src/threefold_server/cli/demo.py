"""`threefold demo`: a story in two sessions on a temporary store. Each scene checks what it claims to show."""

from __future__ import annotations

import json as jsonlib
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.rule import Rule

from threefold import MemoryClient
from threefold_server.cli import views
from threefold_server.cli.commands import Json, example
from threefold_server.cli.output import Failed, out, plain
from threefold_server.local import LocalService
from threefold_server.settings import sqlite_url

app = typer.Typer()

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

NEWS = "Our build machines moved to Porto last week."
WHERE = "Where do the machines stand?"

SETTINGS: dict[str, Any] = {
    "mode": "dev",
    "embedder": "minilm",
    "model": None,
    "token_budget": 500,
    "compaction_trigger": 200,  # small, so that sixteen turns pass it
    "compaction_target": 100,
    "tier_deadline": 10.0,  # seconds; on a slow machine the model loads for a while
    "top_k": 3,
    "min_score": 0.0,
}


@dataclass(frozen=True)
class Stage:
    """The clients of both users, and the directory of the store."""

    mira: MemoryClient
    tom: MemoryClient
    files: Path


@dataclass(frozen=True)
class Scene:
    """The result of one scene, rendered for people and as data for JSON."""

    title: str
    text: str
    picture: RenderableType
    data: dict[str, Any]


def require(condition: bool, claim: str) -> None:
    """Raise Failed if the demo does not show what it claims."""
    if not condition:
        raise Failed(f"the demo did not show that {claim}")


def tell(stage: Stage) -> Scene:
    """Write the turns of the first session."""
    start = datetime.now(UTC) - timedelta(days=1)
    turns = [
        {"role": role, "content": content, "created_at": start + timedelta(minutes=number)}
        for number, (role, content) in enumerate(TALK)
    ]
    written = stage.mira.write(FIRST, turns)
    require(written.appended == len(TALK), "every turn is stored")
    return Scene(
        f"Session {FIRST!r}: Mira talks to her assistant",
        "Turns are stored word for word, and are remembered as soon as the write returns.",
        Group(views.turns(stage.mira.turns(FIRST, limit=6)), views.written(written)),
        {"written": dump(written)},
    )


def find_by_words(stage: Stage) -> Scene:
    """Recall from a second session at once, without an end of the first one and without waiting."""
    query = "On which day do I deploy to staging?"
    answer = stage.mira.recall(query, session_id=SECOND)
    require(
        bool(answer.memories) and "Fridays" in answer.memories[0].text, "a fact of one session is recalled in the next"
    )
    require(answer.memories[0].score_parts.coverage > 0, "it is found by its words")
    stage.mira.write(SECOND, [{"role": "user", "content": NEWS}])
    return Scene(
        f"Session {SECOND!r}, a moment later: found by words",
        f"Mira asks: {query} Then she says: {NEWS}",
        views.recalled(answer),
        {"query": query, "recall": dump(answer)},
    )


def find_by_meaning(stage: Stage) -> Scene:
    """Wait for the vectors, then ask a question that shares no word with the answer."""
    status = stage.mira.wait(FIRST)
    stage.mira.wait(SECOND)
    query = "Whom should I phone when a rollout goes wrong?"
    answer = stage.mira.recall(query, session_id=SECOND)
    best = answer.memories[0] if answer.memories else None
    require(best is not None and "Jonas" in best.text, "a question in other words finds the answer")
    require(best is not None and best.score_parts.coverage == 0, "question and answer share no word")
    return Scene(
        "Found by meaning",
        f"The background work has indexed {status.indexed_upto} of {status.last_seq} turns. Mira asks: {query}",
        views.recalled(answer),
        {"query": query, "status": dump(status), "recall": dump(answer)},
    )


def show_tiers(stage: Stage) -> Scene:
    """Recall all three tiers in the first session."""
    answer = stage.mira.recall(WHERE, session_id=FIRST)
    require(bool(answer.window), "the window has the newest turns")
    require(answer.window[-1].content == TALK[-1][1], "they are there word for word")
    require(answer.digest is not None and answer.digest.from_seq == 1, "a digest has the older turns")
    require(NEWS in [memory.text for memory in answer.memories], "memories of other sessions are recalled")
    require(answer.gap is None, "no turn is in neither")
    return Scene(
        f"Three tiers, back in session {FIRST!r}",
        "The window has the newest turns word for word, the digest summarizes the older ones, and memories come "
        f"from all sessions. Mira asks: {WHERE}",
        views.recalled(answer),
        {"recall": dump(answer)},
    )


def show_block(stage: Stage) -> Scene:
    """Show the block that a model reads."""
    answer = stage.mira.recall(WHERE, session_id=FIRST)
    require(NEWS in answer.block and TALK[-1][1] in answer.block, "the block has memories and window")
    require(answer.tokens.used <= answer.tokens.budget, "the block fits the budget")
    return Scene(
        "What the model reads",
        f"One fenced block of {answer.tokens.used} tokens, of {answer.tokens.budget} allowed; it marks itself as data.",
        plain(answer.block),
        {"block": answer.block, "tokens": dump(answer.tokens)},
    )


def supersede(stage: Stage) -> Scene:
    """Correct a saved fact; the old text stays in the history."""
    saved = stage.mira.save("The release manager is Anna.", pinned=True)
    changed = stage.mira.update_fact(saved.id, text="The release manager is Boris.")
    history = stage.mira.fact_history(changed.id)
    found = stage.mira.recall("Who is the release manager?", session_id=SECOND, top_k=10)
    texts = [memory.text for memory in found.memories]
    require(changed.text in texts and saved.text not in texts, "only the corrected fact is recalled")
    require([version.text for version in history.versions] == [saved.text, changed.text], "the old one is history")
    return Scene(
        "A fact is saved, and corrected",
        "Only the new text is recalled; its history keeps the old one.",
        views.history(history),
        {"saved": dump(saved), "changed": dump(changed), "history": dump(history), "recalled": texts},
    )


def keep_apart(stage: Stage) -> Scene:
    """Ask the same as another user of the same agent."""
    answer = stage.tom.recall("On which day do I deploy to staging?", session_id=FIRST)
    listed = stage.tom.list()
    require(not answer.memories and not answer.window and answer.digest is None, "another user recalls nothing")
    require(not listed.items, "another user lists nothing")
    return Scene(
        "Tom asks the same agent the same question, in a session of the same name",
        "He sees nothing: a memory belongs to one user.",
        views.recalled(answer),
        {"recall": dump(answer), "list": dump(listed)},
    )


def forget(stage: Stage) -> Scene:
    """Forget the first session, after a dry run."""
    before = files_with(SECRET, stage.files)
    require(bool(before), "the word is in the store's files at first")
    preview = stage.mira.forget(session_id=FIRST, dry_run=True)
    require(files_with(SECRET, stage.files) == before, "a dry run erases nothing")
    receipt = stage.mira.forget(session_id=FIRST)
    require(
        receipt.counts == preview.counts and receipt.counts["turns"] == len(TALK),
        "the forget erases what the dry run counted",
    )
    require(
        receipt.complete and receipt.purge == "done", "the receipt says that everything is erased, also in the files"
    )
    return Scene(
        f"Mira forgets session {FIRST!r}",
        "The dry run first, then the receipt:",
        Group(views.receipt(preview), "", views.receipt(receipt)),
        {"files_before": before, "dry_run": dump(preview), "receipt": dump(receipt)},
    )


def prove(stage: Stage) -> Scene:
    """Show that neither a recall nor any file has the word, and that other memories are still there."""
    answer = stage.mira.recall(f"What is the code word {SECRET} for?", session_id=SECOND)
    after = files_with(SECRET, stage.files)
    require(not any(SECRET in memory.text for memory in answer.memories), "a forgotten turn is not recalled")
    require(not after, "no file of the store has the word any more")
    require(any("Boris" in memory.text for memory in stage.mira.list().items), "other memories are still there")
    read = sorted(path.name for path in stage.files.iterdir())
    return Scene(
        "The proof",
        f"Every byte of the store's files was read: {SECRET!r} is in none of them. The saved fact is still there.",
        plain(", ".join(read)),
        {"word": SECRET, "files_read": read, "files_after": after, "recall": dump(answer)},
    )


SCENES: list[Callable[[Stage], Scene]] = [
    tell,
    find_by_words,
    find_by_meaning,
    show_tiers,
    show_block,
    supersede,
    keep_apart,
    forget,
    prove,
]


@app.command(epilog=example("threefold demo"))
def demo(json: Json = False) -> None:
    """Show the memory at work: a story on a temporary store. Takes a few seconds and needs no network."""
    started = time.perf_counter()
    scenes: list[dict[str, Any]] = []
    with set_stage() as stage:
        for number, play in enumerate(SCENES, start=1):
            scene = play(stage)
            scenes.append({"title": scene.title, "text": scene.text, **scene.data})
            if not json:
                show(number, scene)
    seconds = round(time.perf_counter() - started, 1)
    if json:
        typer.echo(jsonlib.dumps({"scenes": scenes, "seconds": seconds}, indent=2, ensure_ascii=False))
    else:
        out.print(plain(f"\nAll checks passed in {seconds} s. Start your own service: threefold serve", "bold green"))


@contextmanager
def set_stage() -> Generator[Stage]:
    """Provide a temporary store with clients of two users of one agent."""
    with tempfile.TemporaryDirectory(prefix="threefold-demo-") as directory:
        # An explicit URL wins over THREEFOLD_DATABASE_URL, so that the demo never writes into a real store.
        service = LocalService(directory, database_url=sqlite_url(Path(directory)), **SETTINGS)
        with service, service.client("mira", "assistant") as mira, service.client("tom", "assistant") as tom:
            yield Stage(mira, tom, Path(directory))


def show(number: int, scene: Scene) -> None:
    """Print one scene."""
    out.print(Rule(plain(f"{number}. {scene.title}", "bold"), align="left"), plain(scene.text, "italic"), "")
    out.print(scene.picture, "", soft_wrap=True)


def files_with(word: str, directory: Path) -> list[str]:
    """Return the names of the files that contain a word, in upper or lower case."""
    needle = word.lower().encode()
    return sorted(path.name for path in directory.iterdir() if needle in path.read_bytes().lower())


def dump(answer: BaseModel) -> dict[str, Any]:
    """Return a model of the contract as JSON data."""
    return answer.model_dump(mode="json")
