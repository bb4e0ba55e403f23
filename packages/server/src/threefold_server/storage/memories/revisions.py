"""The versions of a fact. Which version is current depends on when each was said, not on when it was stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import facts, index
from threefold_server.storage.sessions import tasks
from threefold_server.text.indexed import fact_passages


def add_fact(connection: Connection, values: dict[str, Any], now: int) -> None:
    """Store a new fact. Search finds it by words at once, and by meaning once its vector is computed."""
    facts.add(connection, values)
    _make_current(connection, values["owner"], values["fact"], now)


def add_version(connection: Connection, values: dict[str, Any], root: UUID, now: int) -> None:
    """Store a new version of the fact `root`, which it contradicts.

    It supersedes the versions said before it. If a later version exists, it is stored as superseded.
    """
    owner, said_at = values["owner"], values["event_at"]
    versions = facts.history(connection, owner, root)
    earlier = [version for version in versions if _order_time(version) <= said_at]
    later = [version for version in versions if _order_time(version) > said_at]
    until: dict[str, Any] = {}
    if later:
        until = {"valid_to": max(later[0].valid_from, said_at), "superseded_by": later[0].fact}
    facts.add(connection, {**values, "root": root, **until})
    if earlier and not (later and earlier[-1].valid_to is None):  # an older statement does not end the current version
        _supersede(connection, earlier[-1], values["fact"], said_at)
    if not later:
        _make_current(connection, owner, values["fact"], now)


def restate(connection: Connection, fact: AnyRow, event_at: int, expires_at: int | None) -> None:
    """Record that a fact was said again. It is valid from the first time; its event time is the last one."""
    changes: dict[str, Any] = {
        "event_at": max(fact.event_at, event_at),
        "valid_from": min(fact.valid_from, event_at),
        "expires_at": fact.expires_at and expires_at and max(fact.expires_at, expires_at),
    }
    facts.change(connection, fact.owner, fact.fact, **changes)
    index.update_fact(connection, facts.get(connection, fact.owner, fact.fact))


def close_gaps(connection: Connection, owner: UUID, roots: Iterable[UUID], now: int) -> None:
    """Repair the versions after an erasure.

    A version whose successor was erased points to the next version that exists. If no version is current, the last one
    becomes current again.
    """
    for root in sorted(roots):
        versions = facts.history(connection, owner, root)
        existing = {version.fact for version in versions}
        for version, following in pairwise(versions):
            if version.valid_to is not None and version.superseded_by not in existing:
                facts.change(connection, owner, version.fact, superseded_by=following.fact)
        if versions and all(version.valid_to is not None for version in versions):
            facts.change(connection, owner, versions[-1].fact, valid_to=None, superseded_by=None)
            _make_current(connection, owner, versions[-1].fact, now)


def _order_time(version: AnyRow) -> int:
    return version.event_at if version.valid_to is None else version.valid_from


def _supersede(connection: Connection, old: AnyRow, by: UUID, at: int) -> None:
    if old.valid_to is None or old.valid_to > at:
        facts.change(connection, old.owner, old.fact, valid_to=at, superseded_by=by)
        index.remove(connection, old.owner, [old.fact])


def _make_current(connection: Connection, owner: UUID, fact: UUID, now: int) -> None:
    row = facts.get(connection, owner, fact)
    index.add_fact(connection, row, fact_passages(row.text))
    tasks.schedule(connection, owner, owner, "embed", now)


def ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending sequence numbers as ranges without gaps."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found
