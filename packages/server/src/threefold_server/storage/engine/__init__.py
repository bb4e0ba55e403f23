"""The databases themselves: connections, transactions, the schema, migrations, row-level security."""
