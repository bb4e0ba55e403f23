"""Archives of one owner's memory, as `export` gives them: JSON lines, from a head to an end that has their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypedDict

from pydantic import ValidationError

from threefold.contract.admin import ArchiveEnd, ArchiveHead, ImportReceipt
from threefold.errors import InvalidRequest

BATCH_ROWS = 500
BATCH_CHARS = 8_000_000  # and one more row of some megabytes: well below the 32 MiB that a body may have


class Whose(TypedDict):
    """The owner that an archive names."""

    user: str | None
    self_agent: str | None


def read_archive(lines: Iterable[str]) -> tuple[Whose, Iterator[list[Any]]]:
    """Whose archive it is, and its rows in batches; `InvalidRequest` where it is none, or is torn.

    It is read to its end first: half of an archive must not get in.
    """
    kept = [line.rstrip("\r\n") for line in lines]
    head, *rows, last = kept if len(kept) > 1 else ["", ""]
    try:
        whose, end = ArchiveHead.model_validate_json(head), ArchiveEnd.model_validate_json(last)
    except ValidationError as error:
        raise InvalidRequest(
            "this is no whole archive: its first or its last line is not as `threefold admin export` writes it"
        ) from error
    digest = hashlib.sha256("".join(f"{line}\n" for line in (head, *rows)).encode()).hexdigest()
    if (end.rows, end.sha256) != (len(rows), digest):
        raise InvalidRequest("lines of this archive are missing or were changed")
    return Whose(user=whose.user, self_agent=whose.self_agent), _batches(rows)


def total(receipts: Iterable[ImportReceipt]) -> ImportReceipt:
    """The sum of what became of all batches."""
    found = list(receipts)
    return ImportReceipt(added=sum(one.added for one in found), present=sum(one.present for one in found))


def _batches(rows: Sequence[str]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    chars = 0
    for row in rows:
        batch.append(json.loads(row))
        chars += len(row)
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
