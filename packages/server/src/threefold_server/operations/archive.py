"""Export of one owner's memory as JSON lines, and import of such rows. For administrators.

The first line names the owner. The last line has the number of rows and the SHA-256 of all lines before it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from itertools import chain
from typing import IO

import anyio.to_thread

from threefold.contract.admin import ArchiveEnd, ArchiveHead, ImportReceipt, ImportRequest, OneOwner
from threefold.errors import NotFound
from threefold_server.clock import from_micros
from threefold_server.rules.access import Principal, Reach, check_may_share, check_may_trust_archives, check_quota
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.tables import facts, turns
from threefold_server.storage.memories import facts as fact_store
from threefold_server.storage.sessions import sessions
from threefold_server.storage.store import archive, audit
from threefold_server.storage.store.archive_rules import Rules


async def export(service: Service, principal: Principal, named: OneOwner) -> IO[bytes]:
    """Return a temporary file with the archive of an owner at one moment. The caller closes and so deletes it.

    It is a file because a transaction must not wait for the reader of a long answer.

    Raises:
        NotFound: Nothing is stored of this owner.
    """
    owner = owner_principal(named)
    now = service.clock()

    def write(connection: Connection) -> tuple[IO[bytes], int]:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed after it has been sent
        head = ArchiveHead(user=named.user, self_agent=named.self_agent, exported_at=from_micros(now))
        rows = (row.model_dump_json() for row in archive.dump(connection, owner.owner))
        return file, _write_lines(file, head.model_dump_json(), rows)

    file, rows = await service.database.read(owner.owner, write, snapshot=True)
    if not rows:
        file.close()
        raise NotFound("nothing is stored of this owner")
    actor = audit.actor_of(principal)
    await service.database.write(
        owner.owner, lambda c: audit.note(c, owner.owner, actor, "export", counts={"rows": rows}, at=now)
    )
    return file


async def load(service: Service, principal: Principal, request: ImportRequest) -> ImportReceipt:
    """Add rows of an archive, all or none, under the rules of a save.

    Rows that exist already are counted as present.

    Raises:
        InvalidRequest: A row is not valid.
        Conflict: A row contradicts a stored one.
        Forbidden: The caller may not share, or may not trust archives.
        QuotaExceeded: The owner would have more turns or facts than the store allows.
    """
    if request.trust_archive:
        check_may_trust_archives(principal)
    owner = owner_principal(request)
    now = service.clock()
    redact_turn = service.redact if service.settings.redact == "all" else str
    rules = Rules(owner, service.redact, redact_turn, now, trusted=request.trust_archive)
    prepared = await anyio.to_thread.run_sync(archive.prepare, request.rows, rules)
    if any(fact.get("shared") for fact in prepared[facts]):
        check_may_share(principal)

    def write(connection: Connection) -> ImportReceipt:
        added = archive.load(connection, owner, prepared, now, service.redact)
        _check_quotas(service, connection, owner, added)
        count = sum(map(len, added.values()))
        receipt = ImportReceipt(added=count, present=len(request.rows) - count)
        audit.note(connection, owner.owner, audit.actor_of(principal), "import", counts=receipt.model_dump(), at=now)
        return receipt

    receipt = await service.database.write(owner.owner, write)
    service.wake()
    return receipt


def _check_quotas(service: Service, connection: Connection, owner: Principal, added: archive.Added) -> None:
    """Raise QuotaExceeded if the owner has too many rows. It runs after the insert, which tells new rows apart."""
    settings = service.settings
    if settings.max_facts_per_user is not None and (more := len(added[facts])):
        stored = fact_store.count(connection, owner.owner) - more
        check_quota("facts", stored, more, settings.max_facts_per_user)
    if settings.max_turns_per_user is not None and (more := sum(not turn.get("erased") for turn in added[turns])):
        stored = sessions.send_turn_count(connection, owner.owner)() - more
        check_quota("turns", stored, more, settings.max_turns_per_user)


def owner_principal(named: OneOwner) -> Principal:
    """Return the principal of the owner that a request names."""
    return Principal(user=named.user, agent=named.self_agent or "", ceiling=Reach.user)


def _write_lines(file: IO[bytes], head: str, rows: Iterator[str]) -> int:
    """Write head, rows and end. Return the number of rows."""
    digest = hashlib.sha256()
    count = -1  # the head is not a row
    for line in chain([head], rows):
        count += 1
        data = line.encode() + b"\n"
        digest.update(data)
        file.write(data)
    file.write(ArchiveEnd(rows=count, sha256=digest.hexdigest()).model_dump_json().encode() + b"\n")
    file.seek(0)
    return count
