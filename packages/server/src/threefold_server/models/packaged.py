"""Data files that ship inside the package, read only when their checksum is right."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from io import BytesIO
from typing import BinaryIO

SHA256 = {
    "cl100k_base.tiktoken.gz": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",  # unpacked
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


class DamagedInstall(Exception):
    """A file of this installation is missing or altered; the message says what to do."""


def check_sha256(data: BinaryIO, expected: str, what: str, remedy: str) -> None:
    """Refuse data whose checksum is not `expected`: other weights or ranks would give wrong results in silence."""
    found = hashlib.file_digest(data, "sha256").hexdigest()
    if found != expected:
        raise DamagedInstall(f"{what} has sha256 {found}, expected {expected}. {remedy}")


def read_packaged(name: str) -> bytes:
    """Return a file of `models/data`, unpacked."""
    data = files(__package__).joinpath("data", name).read_bytes()
    plain = gzip.decompress(data) if name.endswith(".gz") else data
    check_sha256(BytesIO(plain), SHA256[name], f"the packaged {name}", "Reinstall threefold-server.")
    return plain
