"""`threefold backup | restore | migrate-store`: copies of a whole store to a file, from a file, or to a database."""

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
    """The number of rows of a table, and a hash of their content that is the same on both databases."""

    table: str
    rows: int
    hash: str


class StoreContent(BaseModel):
    """The tables that were copied and compared."""

    tables: list[TableContent]


@store_verb(app, "threefold backup memory.backup --database-url postgresql://threefold_app@db/threefold")
def backup(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; it must not exist yet.")],
    json: Json = False,
) -> None:
    """Copy the whole store into one file: memories, keys and receipts. The service may keep running."""
    check_exists(settings)
    with whole_file(file) as path:
        _transfer(settings, _embedded(path), json=json)
    say(
        f"Backed up to {file}. Protect it like the store: it contains what users said, and a forget does not change it."
    )


@store_verb(app, "threefold restore memory.backup --data ./memory")
def restore(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `threefold backup`.")],
    json: Json = False,
) -> None:
    """Fill an empty store from a backup of this version or an earlier one of Threefold."""
    if not _is_backup(file):
        raise UsageError(f"{file} is not a backup; give a file of `threefold backup`")
    with tempfile.TemporaryDirectory(prefix="threefold-") as folder:
        copy = Path(shutil.copy(file, folder))  # migrated to the current schema, so not in place
        _transfer(_embedded(copy), settings, json=json)
    say("Restored. Memories that were forgotten since the backup are back: forget them again.")


@store_verb(
    app, "threefold migrate-store --data ./memory --to postgresql://threefold_app@db/threefold", name="migrate-store"
)
def migrate_store(
    settings: Settings,
    to: Annotated[str, typer.Option("--to", help="URL of the empty store to fill: postgresql://... or sqlite:///...")],
    json: Json = False,
) -> None:
    """Copy a whole store into another database. Stop the service first: later writes are not copied."""
    check_exists(settings)
    target = load_settings(database_url=to)
    if target.url == settings.url:
        raise UsageError("--to names the store that is copied; name another one")
    _transfer(settings, target, json=json)
    say("Copied. Start the service on the new store, check it, and then remove the old one.")


def _is_backup(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return content.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def _embedded(path: Path) -> Settings:
    return load_settings(database_url=f"sqlite:///{path}")


def _transfer(source: Settings, target: Settings, *, json: bool) -> None:
    with open_database(source) as old, open_database(target) as new, progress() as bar:
        task = bar.add_task("rows", total=None)
        with explained():
            copied = copy_store(old, new, lambda rows, total: bar.update(task, advance=rows, total=total))
    if json:
        show_json(StoreContent(tables=[TableContent(**one._asdict()) for one in copied]))
    else:
        out.print(table("table", "rows", "content", rows=[(*one[:2], one.hash[:16]) for one in copied]))
