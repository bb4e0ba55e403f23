"""Row-level security on Postgres: the policies, and the check that they apply to the role of the service."""

from __future__ import annotations

from sqlalchemy import Connection, text

from threefold_server.rules.access import SHARED_POOL

_OWN_KEY = "NULLIF(current_setting('threefold.owner', true), '')::uuid"
_OWNER = f"owner = {_OWN_KEY}"
_PADDED = "string_agg(set_byte('\\x00'::bytea, 0, get_byte(secret, i) # {pad}), ''::bytea ORDER BY i)"
PSEUDONYM_FUNCTION = f"""
CREATE FUNCTION threefold_pseudonym(key uuid) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT encode(substring(sha256(outer_pad || sha256(inner_pad || uuid_send(key))) FROM 1 FOR 16), 'hex')::uuid
    FROM (
        SELECT {_PADDED.format(pad=0x36)} AS inner_pad, {_PADDED.format(pad=0x5C)} AS outer_pad
        FROM generate_series(0, 63) AS i,
            (SELECT decode(rpad(value, 128, '0'), 'hex') AS secret FROM store WHERE name = 'pseudonym_key') AS kept
    ) AS pads
$$
"""
"""HMAC-SHA256 of an owner's key with the store's secret, cut to 16 bytes, as `pseudonyms.py` computes it. It is a
function because a column of `store` that a policy names could not be altered."""

_SYSTEM = "current_setting('threefold.system', true) = 'on'"


def tenant_policies(table: str) -> list[str]:
    """Return DDL that enables row-level security on a table, also for its owner. Without a scope no row is visible."""
    return [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY own_rows ON {table} USING ({_OWNER}) WITH CHECK ({_OWNER})",
        f"CREATE POLICY system_work ON {table} USING ({_SYSTEM}) WITH CHECK ({_SYSTEM})",
    ]


def append_only_policies(table: str) -> list[str]:
    """Return DDL for a table to which an owner's transactions add rows, and that only "system" reads or changes."""
    enabled, forced, _, system = tenant_policies(table)
    return [enabled, forced, f"CREATE POLICY own_entries ON {table} FOR INSERT WITH CHECK ({_OWNER})", system]


def pseudonymous_policy(table: str) -> str:
    """Return DDL that lets an owner's transactions add rows under the owner's pseudonym. Only "system" reads them."""
    return f"CREATE POLICY own_entries ON {table} FOR INSERT WITH CHECK (owner = threefold_pseudonym({_OWN_KEY}))"


def shared_reads(table: str, condition: str) -> str:
    """Return DDL that lets every owner read the shared rows of a table."""
    return f"CREATE POLICY shared_reads ON {table} FOR SELECT USING ({condition.format(shared=SHARED_POOL)})"


def unbound_role(connection: Connection) -> str | None:
    """Return the name of the connected role if it bypasses row-level security, else None."""
    row = connection.execute(
        text("SELECT rolname, rolsuper OR rolbypassrls AS unbound FROM pg_roles WHERE rolname = current_user")
    ).one()
    return row.rolname if row.unbound else None
