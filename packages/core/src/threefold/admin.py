"""What an administrator does: `client.admin`, for both clients. Everybody else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from threefold import admin_calls as calls
from threefold.admin_calls import AdminForgetOptions, AdminListOptions
from threefold.archive import read_archive, total
from threefold.calls import Call, R
from threefold.contract import ForgetReceipt, MemoryPage
from threefold.contract.admin import (
    ArchiveRow,
    AuditCheck,
    AuditPage,
    ImportReceipt,
    KeyInfo,
    KeyList,
    OwnerPage,
    RenameReceipt,
    StoreUsage,
)
from threefold.threads import AsyncSender, Sender


class Streamer(Sender, Protocol):
    """A `MemoryClient`."""

    def stream(self, call: Call[R]) -> Iterator[str]:
        """The body of an answer, line by line as it comes."""
        ...


class AsyncStreamer(AsyncSender, Protocol):
    """An `AsyncMemoryClient`."""

    def stream(self, call: Call[R]) -> AsyncIterator[str]:
        """The body of an answer, line by line as it comes."""
        ...


class Admin:
    """The calls of an administrator."""

    def __init__(self, client: Streamer) -> None:
        self._client = client

    def owners(self, *, cursor: str | None = None, limit: int | None = None) -> OwnerPage:
        """One page of those who have a memory here, and how much."""
        return self._client.send(calls.owners(cursor=cursor, limit=limit))

    def usage(self) -> StoreUsage:
        """What the whole store holds."""
        return self._client.send(calls.usage())

    def list(self, **options: Unpack[AdminListOptions]) -> MemoryPage:
        """One page of the memories of one owner or of everybody, whatever their visibility."""
        return self._client.send(calls.list_memories(**options))

    def forget(self, **selector: Unpack[AdminForgetOptions]) -> ForgetReceipt:
        """Erase one owner, one source, or everything; the receipt counts it."""
        return self._client.send(calls.forget(**selector))

    def rename(self, user: str, to: str) -> RenameReceipt:
        """Give one user's memory to a name that has none yet."""
        return self._client.send(calls.rename(user, to))

    def export(self, *, user: str | None = None, self_agent: str | None = None) -> Iterator[str]:
        """Everything that is kept of one owner, as the lines of an archive."""
        return self._client.stream(calls.export(user=user, self_agent=self_agent))

    def load(self, lines: Iterable[str] | Iterable[bytes], *, trust_archive: bool = False) -> ImportReceipt:
        """Load an archive into this store. To load one again adds nothing; a torn one is refused as a whole.

        Args:
            lines: The lines of the archive, for example an opened file.
            trust_archive: Keep origin, trust and pins as they were exported. For an archive of your own; needs the
                right to share. Otherwise everything has origin `import` and trust up to 0.8, and nothing is pinned.

        Returns:
            How many rows were added, and how many were there already.

        Raises:
            InvalidRequest: The lines are no whole archive, or a row breaks a rule of a save.
            Forbidden: The caller does not administer the store, or may not share what the archive shares.
        """
        with read_archive(lines) as archive:
            options = {"trust_archive": trust_archive}
            return total([self.load_rows(rows, **archive.whose, **options) for rows in archive.batches()])

    def load_rows(
        self,
        rows: Sequence[ArchiveRow | Mapping[str, Any]],
        *,
        user: str | None = None,
        self_agent: str | None = None,
        trust_archive: bool = False,
    ) -> ImportReceipt:
        """Load some rows of an archive, in its order."""
        return self._client.send(calls.load(rows, user=user, self_agent=self_agent, trust_archive=trust_archive))

    def keys(self) -> KeyList:
        """Every key of the store, without its token."""
        return self._client.send(calls.keys())

    def revoke_key(self, key_id: str) -> KeyInfo:
        """Refuse a key from now on; services do so within five seconds."""
        return self._client.send(calls.revoke_key(key_id))

    def audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditPage:
        """One page of the audit, the newest entry first."""
        return self._client.send(calls.audit(cursor=cursor, limit=limit))

    def verify_audit(self, head: str | None = None) -> AuditCheck:
        """Whether the chain of the audit is whole, and still holds a `head` that was noted earlier."""
        return self._client.send(calls.verify_audit(head))


class AsyncAdmin:
    """`Admin`, awaited."""

    def __init__(self, client: AsyncStreamer) -> None:
        self._client = client

    async def owners(self, *, cursor: str | None = None, limit: int | None = None) -> OwnerPage:
        return await self._client.send(calls.owners(cursor=cursor, limit=limit))

    async def usage(self) -> StoreUsage:
        return await self._client.send(calls.usage())

    async def list(self, **options: Unpack[AdminListOptions]) -> MemoryPage:
        return await self._client.send(calls.list_memories(**options))

    async def forget(self, **selector: Unpack[AdminForgetOptions]) -> ForgetReceipt:
        return await self._client.send(calls.forget(**selector))

    async def rename(self, user: str, to: str) -> RenameReceipt:
        return await self._client.send(calls.rename(user, to))

    def export(self, *, user: str | None = None, self_agent: str | None = None) -> AsyncIterator[str]:
        return self._client.stream(calls.export(user=user, self_agent=self_agent))

    async def load(self, lines: Iterable[str] | Iterable[bytes], *, trust_archive: bool = False) -> ImportReceipt:
        """Load an archive into this store, as `Admin.load`."""
        with await asyncio.to_thread(read_archive, lines) as archive:
            options = {"trust_archive": trust_archive}
            return total([await self.load_rows(rows, **archive.whose, **options) for rows in archive.batches()])

    async def load_rows(
        self,
        rows: Sequence[ArchiveRow | Mapping[str, Any]],
        *,
        user: str | None = None,
        self_agent: str | None = None,
        trust_archive: bool = False,
    ) -> ImportReceipt:
        return await self._client.send(calls.load(rows, user=user, self_agent=self_agent, trust_archive=trust_archive))

    async def keys(self) -> KeyList:
        return await self._client.send(calls.keys())

    async def revoke_key(self, key_id: str) -> KeyInfo:
        return await self._client.send(calls.revoke_key(key_id))

    async def audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditPage:
        return await self._client.send(calls.audit(cursor=cursor, limit=limit))

    async def verify_audit(self, head: str | None = None) -> AuditCheck:
        return await self._client.send(calls.verify_audit(head))
