"""Alembic's script directory."""
