"""Row-level security on Postgres: without the right scope no rows can be read or written."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import ProgrammingError

from threefold_server.rules.access import SHARED_POOL
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.row_security import unbound_role
from threefold_server.storage.engine.tables import TENANT_TABLES, metadata, owners, passages

STORE_TABLES = {"api_keys", "store"}
"""Tables without tenants: hashed keys, and settings of the store."""


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    opened = Database(postgres_url)
    yield opened
    opened.close()


def add_owner(connection: Connection, owner: UUID) -> None:
    connection.execute(insert(owners).values(owner=owner, kind="user", name=str(owner), created_at=0))


def add_passage(connection: Connection, owner: UUID, pool: UUID) -> None:
    values = {"source": uuid4(), "seq": 0, "part": 0, "agent": "a", "visibility": 2, "length": 1}
    connection.execute(insert(passages).values(pool=pool, owner=owner, event_at=0, trust=1.0, **values))


def test_every_table_has_row_security_or_is_listed_without_tenants(database: Database) -> None:
    def bound(connection: Connection) -> set[str]:
        query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relrowsecurity AND relforcerowsecurity"
        return set(connection.execute(text(query)).scalars())

    tenant_tables = {table.name for table in TENANT_TABLES}
    assert database.read_sync("system", bound) == tenant_tables
    assert tenant_tables | STORE_TABLES == set(metadata.tables)


def test_rows_are_visible_to_their_owner_and_to_system_work_only(database: Database) -> None:
    first, second = uuid4(), uuid4()
    for owner in (first, second):
        database.write_sync(owner, lambda c, owner=owner: add_owner(c, owner))

    def seen(connection: Connection) -> set[UUID]:
        return set(connection.execute(select(owners.c.owner)).scalars())

    assert database.read_sync(first, seen) == {first}
    assert database.read_sync(uuid4(), seen) == set()
    assert database.read_sync("system", seen) == {first, second}


def test_tenant_tables_are_empty_without_a_scope(database: Database) -> None:
    owner = uuid4()
    database.write_sync(owner, lambda c: add_owner(c, owner))
    with database._reader.begin() as connection:  # pyright: ignore[reportPrivateUsage]
        for table in TENANT_TABLES:
            assert connection.execute(select(table)).first() is None


def test_row_of_another_owner_cannot_be_written(database: Database) -> None:
    with pytest.raises(ProgrammingError, match="row-level security"):
        database.write_sync(uuid4(), lambda c: add_owner(c, uuid4()))


def test_shared_rows_are_read_by_all_and_written_by_their_writer(database: Database) -> None:
    writer, reader = uuid4(), uuid4()
    for owner in (writer, reader):
        database.write_sync(owner, lambda c, owner=owner: add_owner(c, owner))
    database.write_sync(writer, lambda c: add_passage(c, writer, SHARED_POOL))
    database.write_sync(writer, lambda c: add_passage(c, writer, writer))

    def pools(connection: Connection) -> list[UUID]:
        return list(connection.execute(select(passages.c.pool)).scalars())

    assert database.read_sync(reader, pools) == [SHARED_POOL]
    assert database.write_sync(reader, lambda c: c.execute(passages.delete()).rowcount) == 0


def test_role_of_the_tests_is_subject_to_row_security(database: Database) -> None:
    assert database.read_sync("system", unbound_role) is None
