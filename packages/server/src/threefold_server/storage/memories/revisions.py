"""The versions of a fact. Which of them holds is decided by when things were said, never by when we learnt of them."""

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
    """A fact of its own, found by words at once and by meaning soon."""
    facts.add(connection, values)
    _make_current(connection, values["owner"], values["fact"], now)


def add_version(connection: Connection, values: dict[str, Any], root: UUID, now: int) -> None:
    """A fact among the versions of another that it excludes. It supersedes those said before it; if a later one
    stands already, it is history from the start."""
    owner, said = values["owner"], values["event_at"]
    versions = facts.history(connection, owner, root)
    earlier = [version for version in versions if _last_said(version) <= said]
    later = [version for version in versions if _last_said(version) > said]
    until: dict[str, Any] = {}
    if later:
        until = {"valid_to": max(later[0].valid_from, said), "superseded_by": later[0].fact}
    facts.add(connection, {**values, "root": root, **until})
    if earlier and not (later and earlier[-1].valid_to is None):  # what holds now is not displaced by history
        _supersede(connection, earlier[-1], values["fact"], said)
    if not later:
        _make_current(connection, owner, values["fact"], now)


def restate(connection: Connection, known: AnyRow, event_at: int, expires_at: int | None) -> None:
    """Note that a fact was said again: it holds from the first time on, and is as recent as the last."""
    changes: dict[str, Any] = {
        "event_at": max(known.event_at, event_at),
        "valid_from": min(known.valid_from, event_at),
        "expires_at": known.expires_at and expires_at and max(known.expires_at, expires_at),
    }
    facts.change(connection, known.owner, known.fact, **changes)
    index.update_fact(connection, facts.get(connection, known.owner, known.fact))


def mend(connection: Connection, owner: UUID, roots: Iterable[UUID], now: int) -> None:
    """Close the gaps that an erasure left: where no version is current any more, the last one said holds again."""
    for root in sorted(roots):
        versions = facts.history(connection, owner, root)
        left = {version.fact for version in versions}
        for version, following in pairwise(versions):
            if version.valid_to is not None and version.superseded_by not in left:
                facts.change(connection, owner, version.fact, superseded_by=following.fact)
        if versions and all(version.valid_to is not None for version in versions):
            facts.change(connection, owner, versions[-1].fact, valid_to=None, superseded_by=None)
            _make_current(connection, owner, versions[-1].fact, now)


def _last_said(version: AnyRow) -> int:
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
    """Sequence numbers in ascending order as ranges without gaps."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found
