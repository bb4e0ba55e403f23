"""How statements reach the database, and what their errors tell."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from threefold_server.storage.database import Database
from threefold_server.storage.tables import owners


def test_an_error_quotes_no_values(database_url: str) -> None:
    owner = uuid4()

    def add(connection: Connection) -> None:
        connection.execute(insert(owners).values(owner=owner, kind="user", name="kumquat", created_at=0))

    with closing(Database(database_url)) as database:
        database.write_sync(owner, add)
        with pytest.raises(IntegrityError) as failure:
            database.write_sync(owner, add)
    assert "kumquat" not in str(failure.value)
