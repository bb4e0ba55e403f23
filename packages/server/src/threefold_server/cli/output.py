"""Output of commands: tables, JSON, progress bars, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterable

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from threefold.errors import InvalidRequest, ServiceError, ThreefoldError, Unauthenticated, Unreachable
from threefold.retries import with_next_step

REFUSED = 1
USAGE = 2

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

# Stored text may contain escape sequences, which must not reach a terminal.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class UsageError(Exception):
    """The arguments are wrong; the message says which are valid. Exit code 2."""


class Failed(Exception):
    """The command failed, or a check found a problem. Exit code 1."""


def plain(text: object, style: str = "") -> Text:
    """Return text for the console. Markup in it is not interpreted, control characters are replaced."""
    return Text(str(text).translate(_CONTROLS), style)


def table(*columns: str, rows: Iterable[Iterable[object]]) -> Table:
    """Return a table whose last column takes the remaining width."""
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns, start=1):
        shown.add_column(column, overflow="fold", ratio=1 if number == len(columns) else None)
    for row in rows:
        shown.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return shown


def show_json(answer: BaseModel) -> None:
    """Print a model of the contract as JSON."""
    typer.echo(answer.model_dump_json(indent=2))


def say(text: str) -> None:
    """Print one line on standard error, apart from the results."""
    err.print(plain(text), soft_wrap=True)


def confirm(question: str) -> None:
    """Ask a question; raise Failed unless the answer is yes. typer's own prompt prints a space into the results."""
    try:
        answer = err.input(f"{question} [y/N] ", markup=False)
    except EOFError:
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise Failed("not confirmed: nothing was done; with --yes the command does not ask")


def progress() -> Progress:
    """Return a progress bar on standard error. If that is no terminal, only the last state is printed."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err)


def report(error: ThreefoldError | UsageError | Failed) -> int:
    """Print an error in one line with what to do, and return the exit code."""
    if isinstance(error, Unreachable | Unauthenticated):
        error = with_next_step(error)
    message = error.message if isinstance(error, ServiceError) else str(error)
    say(f"error: {' '.join(message.split())}")
    return USAGE if isinstance(error, InvalidRequest | UsageError) else REFUSED
