"""Archives of one owner's memory, as `export` gives them: JSON lines, from a head to an end that has their hash.

Whoever hands over an archive may have made it up: lines, rows and the whole have limits, and nothing is sent before all
of it has been read.
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
BATCH_BYTES = 8_000_000  # and one more row of some megabytes: well below the 32 MiB that a body may have
MAX_LINE_BYTES = 32 * 2**20
MAX_ROWS = 10_000_000
MAX_BYTES = 64 * 2**30
"""Rows wait in a temporary file. An archive is never unpacked, so that file is not larger than the archive."""
IN_MEMORY_BYTES = 4 * 2**20

NOT_WHOLE = "this is no whole archive: its {} line is not as `threefold admin export` writes it"
_OTHER_FILES = (
    (b"PK", "a zip file; unpack it first"),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"BZh", "a bzip2 file; unpack it first"),
    (b"\xfd7zXZ", "an xz file; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first"),
    (b"SQLite format 3", "a database; `threefold restore` reads backups"),
)


class Whose(TypedDict):
    """The owner that an archive names."""

    user: str | None
    self_agent: str | None


class _Form(BaseModel):
    """What the head of an archive of any version says."""

    threefold_archive: int


@dataclass
class Archive:
    """An archive that was read to its end and is whole; to be closed."""

    whose: Whose
    rows: IO[bytes]

    def batches(self) -> Iterator[list[Any]]:
        """The rows, some at a time."""
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
    """Read an archive to its end: half of one must not get in. `InvalidRequest` if it is none, or is torn."""
    rows = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed by whoever reads the archive
    try:
        return Archive(_spool(_bounded(lines), rows), rows)
    except BaseException:
        rows.close()
        raise


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, none of which is read further than a line may be long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line


def total(receipts: Iterable[ImportReceipt]) -> ImportReceipt:
    """The sum of what became of all batches."""
    found = list(receipts)
    return ImportReceipt(added=sum(one.added for one in found), present=sum(one.present for one in found))


def _spool(lines: Iterator[bytes], rows: IO[bytes]) -> Whose:
    """Keep the rows, and say whose they are, once the end has their number and their hash."""
    head = next(lines, b"")
    whose = _whose(head)
    digest = hashlib.sha256(head)
    count = -1  # the last line is no row
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
    return whose


def _bounded(lines: Iterable[str] | Iterable[bytes]) -> Iterator[bytes]:
    """Each line with one line end, as it was hashed; refused where an archive could not be so large."""
    size = 0
    try:
        for number, line in enumerate(lines):
            data = (line if isinstance(line, bytes) else line.encode()).rstrip(b"\r\n") + b"\n"
            size += len(data)
            if b"\n" in data[:-1]:
                raise InvalidRequest("this is no archive: a line of it has line ends inside")
            if len(data) > MAX_LINE_BYTES or number > MAX_ROWS + 1 or size > MAX_BYTES:
                raise InvalidRequest(
                    f"this is no archive, or one too large to import: up to {MAX_LINE_BYTES} bytes a line, "
                    f"{MAX_ROWS} rows and {MAX_BYTES} bytes in all"
                )
            yield data
    except UnicodeError:
        raise InvalidRequest("this is no archive: it is not text in UTF-8") from None


def _whose(head: bytes) -> Whose:
    for start, name in _OTHER_FILES:
        if head.startswith(start):
            raise InvalidRequest(f"this is no archive but {name}")
    try:
        form = _Form.model_validate_json(head).threefold_archive
    except ValidationError:
        form = 0
    if form > FORM:
        raise InvalidRequest(
            f"this archive has form {form}, which a newer version wrote; update threefold to import it"
        )
    try:
        whose = ArchiveHead.model_validate_json(head)
    except ValidationError:
        raise InvalidRequest(NOT_WHOLE.format("first")) from None
    return Whose(user=whose.user, self_agent=whose.self_agent)


def _check_row(line: bytes, number: int) -> None:
    try:
        ArchiveRow.model_validate(from_json(line, allow_inf_nan=False))
    except (ValidationError, ValueError):
        raise InvalidRequest(f"row {number} of this archive is no row of a table in JSON") from None
