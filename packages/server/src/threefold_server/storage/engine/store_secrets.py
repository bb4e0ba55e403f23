"""Secrets of one store, generated once and kept in its database."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, bindparam, select

from threefold_server.storage.engine.prepared import Prepared
from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import store


def store_secret(connection: Connection, name: str) -> bytes:
    """Return the secret with this name; generate it at the first call."""
    found = _VALUE.all(connection, name=name)
    if not found:
        fresh = {"name": name, "value": secrets.token_hex(32)}
        connection.execute(insert_into(connection, store).values(fresh).on_conflict_do_nothing())
        found = _VALUE.all(connection, name=name)
    return bytes.fromhex(found[0].value)


_VALUE = Prepared(select(store.c.value).where(store.c.name == bindparam("name")))
