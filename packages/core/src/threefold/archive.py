"""Read archives of the memory of one owner, as `export` writes them: JSON lines from a head to an end with a hash.

An archive may be forged: lines, rows and the whole have limits, and nothing is sent before all of it was read.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self, TypedDict

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from threefold.contract.admin import ArchiveEnd, ArchiveHead, ArchiveRow, ImportReceipt
from threefold.errors import InvalidRequest

FORM = 1
BATCH_ROWS = 500
BATCH_BYTES = 8_000_000  # with one more row of some megabytes, below the 32 MiB that a body may have
MAX_LINE_BYTES = 32 * 2**20
MAX_ROWS = 10_000_000
MAX_BYTES = 64 * 2**30
"""Rows are kept in a temporary file. An archive is never unpacked, so the file is not larger than the archive."""
IN_MEMORY_BYTES = 4 * 2**20

NOT_WHOLE = "this is not a complete archive: its {} line is not as `threefold admin export` writes it"
_OTHER_FILES = (
    (b"PK", "a zip file; unpack it first"),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"BZh", "a bzip2 file; unpack it first"),
    (b"\xfd7zXZ", "an xz file; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first"),
    (b"SQLite format 3", "a database; `threefold restore` reads backups"),
)


class ArchiveOwner(TypedDict):
    """The owner that an archive names."""

    user: str | None
    self_agent: str | None


class _Form(BaseModel):
    """The form in the head of an archive of any version."""

    threefold_archive: int


@dataclass
class Archive:
    """A complete archive that was read to its end; the caller closes it."""

    owner: ArchiveOwner
    rows: IO[bytes]

    def batches(self) -> Iterator[list[Any]]:
        """Yield the rows in batches of at most `BATCH_ROWS` rows and about `BATCH_BYTES` bytes."""
        self.rows.seek(0)
        batch: list[Any] = []
        size = 0
        for line in self.rows:
            batch.append(from_json(line, allow_inf_nan=False))
            size += len(line)
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.rows.close()


def read_archive(lines: Iterable[str] | Iterable[bytes]) -> Archive:
    """Read an archive to its end, so that no part of an incomplete one is imported.

    Raise InvalidRequest if it is not an archive, or not complete.
    """
    rows = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - the reader of the archive closes it
    try:
        return Archive(_spool(_bounded(lines), rows), rows)
    except BaseException:
        rows.close()
        raise


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; of a longer line than is allowed, only the beginning is read."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line


def total(receipts: Iterable[ImportReceipt]) -> ImportReceipt:
    """Return the sum of the receipts of all batches."""
    found = list(receipts)
    return ImportReceipt(added=sum(one.added for one in found), present=sum(one.present for one in found))


def _spool(lines: Iterator[bytes], rows: IO[bytes]) -> ArchiveOwner:
    """Write the rows to a file and return their owner. Raise InvalidRequest if the end states another count or hash."""
    head = next(lines, b"")
    owner = _owner_of(head)
    digest = hashlib.sha256(head)
    count = -1  # the last line is not a row
    last = b""
    for line in lines:
        if count >= 0:
            _check_row(last, count)
            digest.update(last)
            rows.write(last)
        count += 1
        last = line
    try:
        end = ArchiveEnd.model_validate_json(last)
    except ValidationError:
        raise InvalidRequest(NOT_WHOLE.format("last")) from None
    if (end.rows, end.sha256) != (count, digest.hexdigest()):
        raise InvalidRequest("lines of this archive are missing or were changed")
    return owner


def _bounded(lines: Iterable[str] | Iterable[bytes]) -> Iterator[bytes]:
    """Yield each line with one line end, as it was hashed. Raise InvalidRequest above the limits of an archive."""
    size = 0
    try:
        for number, line in enumerate(lines):
            data = (line if isinstance(line, bytes) else line.encode()).rstrip(b"\r\n") + b"\n"
            size += len(data)
            if b"\n" in data[:-1]:
                raise InvalidRequest("this is not an archive: one of its lines contains line ends")
            if len(data) > MAX_LINE_BYTES or number > MAX_ROWS + 1 or size > MAX_BYTES:
                raise InvalidRequest(
                    f"this is not an archive, or it is too large to import: at most {MAX_LINE_BYTES} bytes per line, "
                    f"{MAX_ROWS} rows and {MAX_BYTES} bytes in all"
                )
            yield data
    except UnicodeError:
        raise InvalidRequest("this is not an archive: it is not text in UTF-8") from None


def _owner_of(head: bytes) -> ArchiveOwner:
    for start, name in _OTHER_FILES:
        if head.startswith(start):
            raise InvalidRequest(f"this is not an archive but {name}")
    try:
        form = _Form.model_validate_json(head).threefold_archive
    except ValidationError:
        form = 0
    if form > FORM:
        raise InvalidRequest(
            f"this archive has form {form}, which a newer version wrote; update threefold to import it"
        )
    try:
        owner = ArchiveHead.model_validate_json(head)
    except ValidationError:
        raise InvalidRequest(NOT_WHOLE.format("first")) from None
    return ArchiveOwner(user=owner.user, self_agent=owner.self_agent)


def _check_row(line: bytes, number: int) -> None:
    try:
        ArchiveRow.model_validate(from_json(line, allow_inf_nan=False))
    except (ValidationError, ValueError):
        raise InvalidRequest(f"row {number} of this archive is not a row of a table in JSON") from None
