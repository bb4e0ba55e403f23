"""The SQL of every prepared statement, as each database is sent it; `statements/*.sql` shows it to readers.

After a change on purpose: `UPDATE_STATEMENTS=1 pytest tests/server/storage/test_statements.py`, and review the diff.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.dialects.sqlite import pysqlite

from threefold_server import storage
from threefold_server.storage.engine.prepared import Prepared, PreparedAmong

DIALECTS: dict[str, Dialect] = {"sqlite": pysqlite.dialect(), "postgresql": psycopg.dialect()}


def modules() -> Iterator[ModuleType]:
    """Every module of `storage/`, migrations apart."""
    for found in pkgutil.walk_packages(storage.__path__, "threefold_server.storage."):
        if ".migrations" not in found.name:
            yield importlib.import_module(found.name)


def statements(dialect: Dialect) -> Iterator[str]:
    """Every prepared statement as a paragraph of SQL under its name; those of a mapping with their key."""
    for module in modules():
        path = module.__name__.removeprefix("threefold_server.")
        for name, value in vars(module).items():
            several = cast("dict[object, object]", value) if isinstance(value, dict) else {}
            named: dict[str, object] = {
                name: value,
                **{f"{name}[{key}]": statement for key, statement in several.items()},
            }
            for label, statement in named.items():
                if isinstance(statement, Prepared | PreparedAmong):
                    yield f"-- {path}.{label}\n{statement.sql(dialect)};\n"


@pytest.mark.parametrize("name", DIALECTS)
def test_statements_are_those_on_file(name: str) -> None:
    golden = Path(__file__).parent / "statements" / f"{name}.sql"
    found = "\n".join(statements(DIALECTS[name]))
    if os.environ.get("UPDATE_STATEMENTS"):
        golden.write_text(found)
    assert found == golden.read_text()


def test_searches_filter_by_owner_or_pool() -> None:
    sent = [text for text in statements(DIALECTS["postgresql"]) if "passages" in text or "postings" in text]
    assert sent
    assert [text for text in sent if "owner" not in text and "pool" not in text] == []
