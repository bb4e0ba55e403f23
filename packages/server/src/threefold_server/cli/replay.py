"""`threefold replay`: writes conversation files into memory, through a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, Field
from rich.console import RenderableType
from rich.progress import Progress

from threefold import MemoryClient
from threefold.errors import Conflict, InvalidRequest, ThreefoldError, TooLarge
from threefold_server.cli.client import verb
from threefold_server.cli.conversations import FileTurn, Unreadable, open_conversation
from threefold_server.cli.output import progress, say, table

app = typer.Typer()

BATCH_TURNS = 500
BATCH_CHARS = 4_000_000  # well below the 32 MiB of a body; a batch that is refused is written turn by turn
WAIT_SECONDS = 600.0

Entry = FileTurn | Unreadable


class Replayed(BaseModel):
    """The result of one file: counts of its turns, and a message per turn that failed."""

    file: str
    sessions: list[str] = Field(default_factory=list[str])
    appended: int = 0
    duplicates: int = 0
    erased: int = 0
    failed: list[str] = Field(default_factory=list[str])

    def fail(self, location: str, problem: str) -> None:
        """Note a turn that could not be stored, and print it at once."""
        self.failed.append(f"{location}: {problem}")
        say(self.failed[-1])


class ReplayReport(BaseModel):
    """The results of all files."""

    files: list[Replayed]


def show_report(report: ReplayReport) -> RenderableType:
    """Return the counts of each file as a table."""
    rows = [
        (len(file.sessions), file.appended, file.duplicates, file.erased, len(file.failed), file.file)
        for file in report.files
    ]
    return table("sessions", "added", "there already", "forgotten", "failed", "file", rows=rows)


@verb(
    app,
    "threefold replay talk.json --wait",
    "threefold replay *.jsonl --session-prefix import/ --user u-1",
    show=show_report,
    ok=lambda report: not any(file.failed for file in report.files),
)
def replay(
    memory: MemoryClient,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True, help="Files to load.")
    ],
    session_prefix: Annotated[str, typer.Option(metavar="TEXT", help="Text to put before each session id.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until background work on the sessions is done, at most 600 s each.")
    ] = False,
) -> ReplayReport:
    """Load conversation files. Loading a file again adds nothing.

    \b
    JSON lines: one turn per line; role is user, assistant, tool or system; name, created_at and id are optional:
      {"session_id": "s1", "role": "user", "content": "Hello.",
       "name": "Ada", "created_at": "2026-05-08T13:56:00Z", "id": "1"}
    LoCoMo files (.json): speaker_a is the user, speaker_b the assistant; session ids are FILE/session_N.
    """
    with progress() as bar:
        report = ReplayReport(files=[_replay_file(memory, path, session_prefix, bar) for path in files])
        if wait:
            sessions = {session for file in report.files for session in file.sessions}
            for session in bar.track(sorted(sessions), description="background work"):
                memory.wait(session, timeout=WAIT_SECONDS)
    return report


def _replay_file(memory: MemoryClient, path: Path, prefix: str, bar: Progress) -> Replayed:
    conversation = open_conversation(path)
    task = bar.add_task(path.name, total=conversation.length)
    report = Replayed(file=str(path))
    for batch in _batches(conversation.entries):
        for session_id, turns in _by_session(batch, report).items():
            _write(memory, prefix + session_id, turns, report)
        bar.advance(task, len(batch))
    bar.update(task, completed=conversation.length)
    return report


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    chars = 0
    for entry in entries:
        batch.append(entry)
        chars += len(entry.turn.content) + len(entry.turn.payload or "") if isinstance(entry, FileTurn) else 0
        if len(batch) >= BATCH_TURNS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    yield batch


def _by_session(batch: Iterable[Entry], report: Replayed) -> dict[str, list[FileTurn]]:
    """Return the turns of a batch by session, in order. Unreadable entries are reported."""
    sessions: dict[str, list[FileTurn]] = {}
    for entry in batch:
        if isinstance(entry, FileTurn):
            sessions.setdefault(entry.session_id, []).append(entry)
        else:
            report.fail(entry.location, entry.problem)
    return sessions


def _write(memory: MemoryClient, session_id: str, turns: list[FileTurn], report: Replayed) -> None:
    """Write turns of one session. If the service refuses them, write each alone, so that only the faulty ones fail."""
    try:
        answer = memory.write(session_id, [entry.turn for entry in turns])
    except (Conflict, InvalidRequest, TooLarge) as error:
        if len(turns) == 1:
            report.fail(turns[0].location, error.message)
            return
        for entry in turns:
            _write(memory, session_id, [entry], report)
        return
    except ThreefoldError:
        say(f"Stopped before {turns[0].location}. Run the same command again to continue: no turn is stored twice.")
        raise
    report.appended += answer.appended
    report.duplicates += answer.duplicates
    report.erased += answer.erased
    if session_id not in report.sessions:
        report.sessions.append(session_id)
