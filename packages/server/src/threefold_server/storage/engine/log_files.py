"""The write-ahead log of Postgres: overwrite the segments that may contain erased text."""

from __future__ import annotations

from sqlalchemy import Connection, text

_ALLOWED = text(
    "SELECT has_function_privilege('pg_switch_wal()', 'EXECUTE')"
    " AND has_function_privilege('pg_ls_waldir()', 'EXECUTE')"
    " AND EXISTS (SELECT FROM pg_roles WHERE (rolname = current_user AND rolsuper)"
    " OR (rolname = 'pg_checkpoint' AND pg_has_role(oid, 'USAGE')))"
)
# The first eight digits of a segment's name are the timeline, which does not order the segments.
_CURRENT = text("SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 9)")
_SEGMENTS = text("SELECT substr(name, 9) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'")
_FILL = text("SELECT pg_logical_emit_message(false, 'threefold', 'purge')")
_SWITCH = text("SELECT pg_switch_wal()")
_CHECKPOINT = text("CHECKPOINT")


def clear_log(connection: Connection) -> str | None:
    """Overwrite the write-ahead log; return what may remain of it and until when, or None if nothing remains.

    A checkpoint does not delete old segments: it renames most for later use, with their content. A switch to the next
    segment fills the rest of the current one with zeros, so one switch per segment overwrites them all.
    """
    if not connection.execute(_ALLOWED).scalar_one():
        return _not_allowed(connection)
    connection.execute(_CHECKPOINT)
    last = connection.execute(_CURRENT).scalar_one()
    _switch(connection)
    connection.execute(_CHECKPOINT)  # after this, recovery needs no segment up to `last`
    newest = max(connection.execute(_SEGMENTS).scalars())
    while connection.execute(_CURRENT).scalar_one() <= newest:
        _switch(connection)
    connection.execute(_CHECKPOINT)
    kept = sum(name <= last for name in connection.execute(_SEGMENTS).scalars())
    if kept:
        return (
            f"{kept} segments of the write-ahead log, until a replication slot, wal_keep_size or the archiver "
            "releases them; then purge again"
        )
    return None


def _switch(connection: Connection) -> None:
    connection.execute(_FILL)  # without a new record a switch does nothing
    connection.execute(_SWITCH)


def _not_allowed(connection: Connection) -> str:
    role, interval, size = connection.execute(
        text("SELECT quote_ident(current_user), current_setting('checkpoint_timeout'), current_setting('max_wal_size')")
    ).one()
    return (
        "the write-ahead log, until Postgres has overwritten its old segments: not before its next checkpoint "
        f"(checkpoint_timeout = {interval}), and after up to twice max_wal_size ({size}) of further writes. To let "
        f"purge overwrite them, run as a superuser in this database: GRANT pg_checkpoint, pg_monitor TO {role}; "
        f"GRANT EXECUTE ON FUNCTION pg_switch_wal() TO {role}"
    )
