"""What people and machines see: tables, JSON, progress, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterable

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from threefold.errors import InvalidRequest, ServiceError, ThreefoldError, Unauthenticated, Unreachable
from threefold.exchange import with_next_step

REFUSED = 1
USAGE = 2

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

# Remembered text may hold escape sequences, which must not reach a terminal.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class UsageError(Exception):
    """What was asked for makes no sense; the message says what would."""


class Failed(Exception):
    """What was to be done, or shown, was not."""


def plain(text: object, style: str = "") -> Text:
    """Text as it is: neither markup nor escape sequences in it count."""
    return Text(str(text).translate(_CONTROLS), style)


def table(*columns: str, rows: Iterable[Iterable[object]]) -> Table:
    """A table whose last column takes the space that is left."""
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns, start=1):
        made.add_column(column, overflow="fold", ratio=1 if number == len(columns) else None)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return made


def show_json(answer: BaseModel) -> None:
    """A model of the contract as JSON."""
    typer.echo(answer.model_dump_json(indent=2))


def say(text: str) -> None:
    """One line for people, beside the results."""
    err.print(plain(text), soft_wrap=True)


def confirm(question: str) -> None:
    """Go on only where a person says yes. Not typer's: that one prints a blank into the results."""
    try:
        answer = err.input(f"{question} [y/N] ", markup=False)
    except EOFError:
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise Failed("not confirmed, so nothing was done; --yes goes on without asking")


def progress() -> Progress:
    """A bar on standard error; where that is no terminal, only its last state is written."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err)


def report(error: ThreefoldError | UsageError | Failed) -> int:
    """Say in one line what went wrong and what to do about it; returns the exit code."""
    if isinstance(error, Unreachable | Unauthenticated):
        error = with_next_step(error)
    message = error.message if isinstance(error, ServiceError) else str(error)
    say(f"error: {' '.join(message.split())}")
    return USAGE if isinstance(error, InvalidRequest | UsageError) else REFUSED
