"""Alembic environment: migrations run on the connection, and in the transaction, of the caller."""

from alembic import context

from threefold_server.storage.engine.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
context.run_migrations()
