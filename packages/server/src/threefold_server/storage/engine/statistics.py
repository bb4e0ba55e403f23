"""Planner statistics of Postgres: keep ANALYZE from sampling columns that may contain words or names.

ANALYZE copies frequent values and a histogram of each column into `pg_statistic`, where they outlive their rows. The
rule depends on the column's type, so that a new column is covered without being listed.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, text

from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import metadata

SAMPLED_TYPES = ("bool", "float4", "float8", "int2", "int4", "int8", "uuid")
"""Types whose values are neither words nor names. Columns of every other type are not sampled."""

CATALOGS = ("pg_catalog.pg_statistic", "pg_catalog.pg_statistic_ext_data")
"""Where statistics are stored. Deleted rows stay in their files until these are rewritten."""

_OURS = "(SELECT to_regclass(name) FROM unnest(CAST(:tables AS text[])) AS name)"

_COLUMNS = f"""
SELECT c.oid::regclass::text AS relation, quote_ident(a.attname) AS name, coalesce(a.attstattarget, -1) <> 0 AS sampled,
       format_type(a.atttypid, a.atttypmod)
       || coalesce(' COLLATE ' || quote_ident(n.nspname) || '.' || quote_ident(o.collname), '') AS type
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation o ON o.oid = a.attcollation AND a.attcollation <> t.typcollation
LEFT JOIN pg_namespace n ON n.oid = o.collnamespace
WHERE c.oid IN {_OURS} AND a.attnum > 0 AND NOT a.attisdropped AND t.typname <> ALL (CAST(:types AS text[]))
ORDER BY a.attnum
"""

_EXPRESSIONS = f"""
SELECT i.indrelid::regclass::text AS relation,
       format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS 0', i.indexrelid::regclass, a.attnum) AS statement
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indexrelid
WHERE i.indrelid IN {_OURS} AND i.indkey[a.attnum - 1] = 0 AND coalesce(a.attstattarget, -1) <> 0
"""

_EXTENDED = f"""
SELECT s.stxrelid::regclass::text AS relation,
       format('ALTER STATISTICS %I.%I SET STATISTICS 0', n.nspname, s.stxname) AS statement
FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace
WHERE s.stxrelid IN {_OURS} AND coalesce(s.stxstattarget, -1) <> 0
AND (s.stxexprs IS NOT NULL OR EXISTS (
    SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = s.stxrelid AND a.attnum = ANY (s.stxkeys) AND t.typname <> ALL (CAST(:types AS text[]))
))
"""

_SAMPLED_COLUMNS = text(_COLUMNS).bindparams(types=list(SAMPLED_TYPES))
_OTHERS = text(f"{_EXPRESSIONS} UNION ALL {_EXTENDED}").bindparams(types=list(SAMPLED_TYPES))


def silence_all(database: Database, lock_timeout: str = "0") -> None:
    """Keep ANALYZE from sampling words or names, and delete the samples it has taken. Do nothing on SQLite.

    Each table has a transaction of its own: one transaction that locks several tables could deadlock with a writer that
    locks them in another order.
    """
    for table in database.read_sync("system", tables_to_silence):
        database.write_sync("system", partial(_silence, table=table, lock_timeout=lock_timeout))


def tables_to_silence(connection: Connection) -> list[str]:
    """Return the tables of which ANALYZE would still sample words or names; [] on SQLite, which never analyzes."""
    if connection.dialect.name != "postgresql":
        return []
    tables = {"tables": list(metadata.tables)}
    columns = [row.relation for row in connection.execute(_SAMPLED_COLUMNS, tables) if row.sampled]
    return sorted({*columns, *(row.relation for row in connection.execute(_OTHERS, tables))})


def _silence(connection: Connection, table: str, lock_timeout: str) -> None:
    """Keep ANALYZE from sampling words of one table, and delete the samples it has taken.

    ANALYZE keeps the old samples of a column that it skips. A change of the column's type deletes them; a change to the
    same type does not rewrite the table, but recreates partial indexes, indexes of expressions and extended statistics.
    So their settings are changed afterwards.
    """
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
    connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
    columns = connection.execute(_SAMPLED_COLUMNS, {"tables": [table]}).all()
    changes = [f"ALTER {row.name} SET STATISTICS 0, ALTER {row.name} TYPE {row.type}" for row in columns]
    if changes:
        connection.execute(text(f"ALTER TABLE {table} {', '.join(changes)}"))
    for row in connection.execute(_OTHERS, {"tables": [table]}).all():
        connection.execute(text(row.statement))
