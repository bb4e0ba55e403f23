"""How the database is reached, and what its errors contain."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from threefold.errors import Unavailable
from threefold_server.storage.engine.database import SILENT_HOST, Database
from threefold_server.storage.engine.tables import owners


def test_error_contains_no_values(database_url: str) -> None:
    owner = uuid4()

    def add(connection: Connection) -> None:
        connection.execute(insert(owners).values(owner=owner, kind="user", name="kumquat", created_at=0))

    with closing(Database(database_url)) as database:
        database.write_sync(owner, add)
        with pytest.raises(IntegrityError) as failure:
            database.write_sync(owner, add)
    assert "kumquat" not in str(failure.value)


@pytest.mark.parametrize("parameter", ["", "?connect_timeout=2"], ids=["by default", "as the URL says"])
def test_silent_host_is_given_up(monkeypatch: pytest.MonkeyPatch, parameter: str) -> None:
    """The host accepts the connection and never answers. The shortest timeout of the driver is two seconds."""
    monkeypatch.setitem(SILENT_HOST, "connect_timeout", 600 if parameter else 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://ana:secret@127.0.0.1:{silent.getsockname()[1]}/threefold{parameter}"
        with closing(Database(url)) as database, pytest.raises(Unavailable, match="ConnectionTimeout") as failure:
            database.read_sync("system", lambda connection: connection.execute(select(owners)).all())
    assert "THREEFOLD_DATABASE_URL" in failure.value.message
    assert "secret" not in failure.value.message


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has all of these options")
def test_socket_options_detect_a_silent_host(postgres_url: str) -> None:
    """The operating system watches each connection with these options."""

    def options(connection: Connection) -> list[int]:
        with socket.socket(fileno=os.dup(connection.connection.driver_connection.fileno())) as wire:  # pyright: ignore[reportOptionalMemberAccess]
            names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            return [wire.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]

    with closing(Database(postgres_url)) as database:
        assert database.read_sync("system", options) == [10_000, 10, 5, 2]
