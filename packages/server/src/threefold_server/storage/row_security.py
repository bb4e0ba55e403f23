"""Row-level security on Postgres: the policies, and the check that the service's role is bound by them."""

from __future__ import annotations

from sqlalchemy import Connection, text

from threefold_server.access import SHARED_POOL
from threefold_server.storage.tables import SHARED_READS, TENANT_TABLES

_OWNER = "owner = NULLIF(current_setting('threefold.owner', true), '')::uuid"
_SYSTEM = "current_setting('threefold.system', true) = 'on'"


def policy_statements() -> list[str]:
    """DDL that binds every tenant table, also for its owner. With no scope set, no row is visible."""
    statements: list[str] = []
    for table in TENANT_TABLES:
        statements += [
            f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table.name} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY own_rows ON {table.name} USING ({_OWNER}) WITH CHECK ({_OWNER})",
            f"CREATE POLICY system_work ON {table.name} USING ({_SYSTEM}) WITH CHECK ({_SYSTEM})",
        ]
    for table, shared in SHARED_READS.items():
        condition = shared.format(shared=SHARED_POOL)
        statements.append(f"CREATE POLICY shared_reads ON {table.name} FOR SELECT USING ({condition})")
    return statements


def unbound_role(connection: Connection) -> str | None:
    """The name of the connected role if row-level security does not bind it, else None."""
    row = connection.execute(
        text("SELECT rolname, rolsuper OR rolbypassrls AS unbound FROM pg_roles WHERE rolname = current_user")
    ).one()
    return row.rolname if row.unbound else None
