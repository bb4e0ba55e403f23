"""Row-level security on Postgres: the policies, and the check that the service's role is bound by them."""

from __future__ import annotations

from sqlalchemy import Connection, text

from threefold_server.access import SHARED_POOL

_OWNER = "owner = NULLIF(current_setting('threefold.owner', true), '')::uuid"
_SYSTEM = "current_setting('threefold.system', true) = 'on'"


def tenant_policies(table: str) -> list[str]:
    """DDL that binds one tenant table, also for its owner. With no scope set, no row is visible."""
    return [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY own_rows ON {table} USING ({_OWNER}) WITH CHECK ({_OWNER})",
        f"CREATE POLICY system_work ON {table} USING ({_SYSTEM}) WITH CHECK ({_SYSTEM})",
    ]


def append_only_policies(table: str) -> list[str]:
    """DDL for a table that an owner's transactions add to, and only system work reads or changes."""
    enabled, forced, _, system = tenant_policies(table)
    return [enabled, forced, f"CREATE POLICY own_entries ON {table} FOR INSERT WITH CHECK ({_OWNER})", system]


def shared_reads(table: str, condition: str) -> str:
    """DDL that lets everybody read the shared rows of a tenant table."""
    return f"CREATE POLICY shared_reads ON {table} FOR SELECT USING ({condition.format(shared=SHARED_POOL)})"


def unbound_role(connection: Connection) -> str | None:
    """The name of the connected role if row-level security does not bind it, else None."""
    row = connection.execute(
        text("SELECT rolname, rolsuper OR rolbypassrls AS unbound FROM pg_roles WHERE rolname = current_user")
    ).one()
    return row.rolname if row.unbound else None
