"""Tokens that background work spends on models, by owner and day. The functions run in the scope "system"."""

from __future__ import annotations

from typing import Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, case, delete, func, select, update

from threefold_server.storage.engine.statements import insert_into
from threefold_server.storage.engine.tables import model_use

KEPT_DAYS = 31


class Limits(NamedTuple):
    """The most tokens per day for the store and for one user; None: no limit."""

    store: int | None
    user: int | None


def charge(
    connection: Connection, owner: UUID, day: int, tokens: int, limits: Limits
) -> Literal["store", "user"] | None:
    """Charge a call to an owner's day, or return whose budget is spent. The last call within a budget may exceed it."""
    own = func.sum(case((model_use.c.owner == owner, model_use.c.tokens), else_=0))
    used = select(func.coalesce(func.sum(model_use.c.tokens), 0), func.coalesce(own, 0)).where(model_use.c.day == day)
    of_store, of_user = connection.execute(used).one()
    if limits.store is not None and of_store >= limits.store:
        return "store"
    if limits.user is not None and of_user >= limits.user:
        return "user"
    statement = insert_into(connection, model_use).values(owner=owner, day=day, calls=1, failed=0, tokens=tokens)
    more = {"calls": model_use.c.calls + 1, "tokens": model_use.c.tokens + tokens}
    connection.execute(statement.on_conflict_do_update(index_elements=["owner", "day"], set_=more))
    return None


def settle(connection: Connection, owner: UUID, day: int, tokens: int, outcome: str) -> None:
    """Correct a charge after the call, and count the call if it failed.

    Args:
        tokens: The difference between the tokens that were used and those that were charged.
    """
    failed = int(outcome != "answered")
    connection.execute(
        update(model_use)
        .where(model_use.c.owner == owner, model_use.c.day == day)
        .values(tokens=model_use.c.tokens + tokens, failed=model_use.c.failed + failed)
    )


def sweep(connection: Connection, day: int) -> None:
    """Delete the rows of days older than `KEPT_DAYS`."""
    connection.execute(delete(model_use).where(model_use.c.day < day - KEPT_DAYS))
