"""`threefold backup | restore | migrate-store`: a whole store, to a file and back, or to another database."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from threefold_server.cli.commands import Json
from threefold_server.cli.files import whole_file
from threefold_server.cli.output import UsageError, out, progress, say, show_json, table
from threefold_server.cli.store import check_exists, explained, load_settings, open_database, store_verb
from threefold_server.settings import Settings
from threefold_server.storage.store.transfer import copy_store

SQLITE_MAGIC = b"SQLite format 3\0"

app = typer.Typer()


class TableContent(BaseModel):
    """One table: its rows, and a hash of their content that is the same on either database."""

    table: str
    rows: int
    hash: str


class StoreContent(BaseModel):
    """What was copied, and found again in the copy."""

    tables: list[TableContent]


@store_verb(app, "threefold backup memory.backup --database-url postgresql://threefold_app@db/threefold")
def backup(
    settings: Settings, file: Annotated[Path, typer.Argument(help="The file to make.")], json: Json = False
) -> None:
    """Copy the whole store into one file: memories, keys, receipts. The service may go on meanwhile."""
    check_exists(settings)
    with whole_file(file) as made:
        _transfer(settings, _embedded(made), json=json)
    say(f"Backed up to {file}. It holds what users said, so keep it as safe as the store; a forget does not reach it.")


@store_verb(app, "threefold restore memory.backup --data ./memory")
def restore(settings: Settings, file: Annotated[Path, typer.Argument(help="A backup.")], json: Json = False) -> None:
    """Fill an empty store from a backup of this version or an earlier one."""
    if not _is_backup(file):
        raise UsageError(f"{file} is not a backup; `threefold backup` makes one")
    with tempfile.TemporaryDirectory(prefix="threefold-") as folder:
        copy = Path(shutil.copy(file, folder))  # one of an earlier version is brought to this one's schema
        _transfer(_embedded(copy), settings, json=json)
    say("Restored. Whatever was forgotten since the backup is back: forget it again.")


@store_verb(
    app, "threefold migrate-store --data ./memory --to postgresql://threefold_app@db/threefold", name="migrate-store"
)
def migrate_store(
    settings: Settings,
    to: Annotated[str, typer.Option("--to", help="The empty store to fill: postgresql://... or sqlite:///...")],
    json: Json = False,
) -> None:
    """Copy a whole store into another database. Stop the service first: what it writes meanwhile is not copied."""
    check_exists(settings)
    target = load_settings(database_url=to)
    if target.url == settings.url:
        raise UsageError("--to names the store itself")
    _transfer(settings, target, json=json)
    say("Copied. Start the service on the new store, and remove the old one once you have looked at it.")


def _is_backup(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def _embedded(path: Path) -> Settings:
    return load_settings(database_url=f"sqlite:///{path}")


def _transfer(source: Settings, target: Settings, *, json: bool) -> None:
    with open_database(source) as here, open_database(target) as there, progress() as bar:
        task = bar.add_task("rows", total=None)
        with explained():
            found = copy_store(here, there, lambda rows, total: bar.update(task, advance=rows, total=total))
    if json:
        show_json(StoreContent(tables=[TableContent(**one._asdict()) for one in found]))
    else:
        out.print(table("table", "rows", "content", rows=[(*one[:2], one.hash[:16]) for one in found]))
