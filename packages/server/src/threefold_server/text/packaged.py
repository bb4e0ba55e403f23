"""Data files of this package, read after a check of their SHA-256."""

from __future__ import annotations

import gzip
from hashlib import sha256
from importlib.resources import files

SHA256 = {
    "cl100k_base.tiktoken.gz": "fc41a727e9805107673135c211cd4103f52e397e58dbe28678dae8f3fbd1f8f7",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


class InstallationError(Exception):
    """A file of this installation is missing or altered. The message says what to do."""


def check_sha256(found: str, expected: str, what: str, remedy: str) -> None:
    """Raise InstallationError if a checksum is not the expected one: other data would silently give wrong results."""
    if found != expected:
        raise InstallationError(f"{what} has sha256 {found}, expected {expected}. {remedy}")


def read_packaged(name: str) -> bytes:
    """Return the content of a file in `text/data`, decompressed."""
    data = files("threefold_server.text").joinpath("data", name).read_bytes()
    check_sha256(sha256(data).hexdigest(), SHA256[name], f"the packaged {name}", "Reinstall threefold-server.")
    return gzip.decompress(data) if name.endswith(".gz") else data
