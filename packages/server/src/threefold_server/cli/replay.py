"""`threefold replay`: conversation files into the memory, through a client."""

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
from threefold_server.cli.conversations import Said, Unreadable, open_conversation
from threefold_server.cli.output import progress, say, table

app = typer.Typer()

BATCH_TURNS = 500
BATCH_CHARS = 4_000_000  # and one more turn of a million at most: well below the 32 MiB that a body may have
WAIT_SECONDS = 600.0

Entry = Said | Unreadable


class Replayed(BaseModel):
    """What became of one file."""

    file: str
    sessions: list[str] = Field(default_factory=list[str])
    appended: int = 0
    duplicates: int = 0
    erased: int = 0
    failed: list[str] = Field(default_factory=list[str])

    def fail(self, place: str, problem: str) -> None:
        """Note, and say at once, what could not be stored."""
        self.failed.append(f"{place}: {problem}")
        say(self.failed[-1])


class ReplayReport(BaseModel):
    """What became of all files."""

    files: list[Replayed]


def show_report(report: ReplayReport) -> RenderableType:
    """The counts."""
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
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)],
    session_prefix: Annotated[str, typer.Option(metavar="TEXT", help="Put before each session's id.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the background work on the sessions.")] = False,
) -> ReplayReport:
    """Load conversation files. To load one again adds nothing.

    \b
    JSON lines: one turn per line. Its role is user, assistant, tool or system; name, created_at and id may be left out:
      {"session_id": "s1", "role": "user", "content": "Hello.",
       "name": "Ada", "created_at": "2026-05-08T13:56:00Z", "id": "1"}
    LoCoMo files (.json): speaker_a speaks as user, speaker_b as assistant; a session is FILE/session_N.
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
    task = bar.add_task(path.name, total=conversation.places)
    report = Replayed(file=str(path))
    for batch in _batches(conversation.entries):
        for session_id, said in _by_session(batch, report).items():
            _write(memory, prefix + session_id, said, report)
        bar.advance(task, len(batch))
    bar.update(task, completed=conversation.places)
    return report


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    chars = 0
    for entry in entries:
        batch.append(entry)
        chars += len(entry.turn.content) + len(entry.turn.payload or "") if isinstance(entry, Said) else 0
        if len(batch) >= BATCH_TURNS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    yield batch


def _by_session(batch: Iterable[Entry], report: Replayed) -> dict[str, list[Said]]:
    """The turns of a batch by session, in order; what could not be read is reported."""
    sessions: dict[str, list[Said]] = {}
    for entry in batch:
        if isinstance(entry, Said):
            sessions.setdefault(entry.session_id, []).append(entry)
        else:
            report.fail(entry.place, entry.problem)
    return sessions


def _write(memory: MemoryClient, session_id: str, said: list[Said], report: Replayed) -> None:
    """Write turns of one session; where the service refuses them, one by one, to find out which it minds."""
    try:
        answer = memory.write(session_id, [entry.turn for entry in said])
    except (Conflict, InvalidRequest, TooLarge) as error:
        if len(said) == 1:
            report.fail(said[0].place, error.message)
            return
        for entry in said:
            _write(memory, session_id, [entry], report)
        return
    except ThreefoldError:
        say(f"Stopped before {said[0].place}. The same command goes on there: what is stored is not added twice.")
        raise
    report.appended += answer.appended
    report.duplicates += answer.duplicates
    report.erased += answer.erased
    if session_id not in report.sessions:
        report.sessions.append(session_id)
