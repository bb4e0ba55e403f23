"""`client.admin` of both clients: the operations of an administrator."""

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
    """The part of `MemoryClient` that `Admin` needs."""

    def stream(self, call: Call[R]) -> Iterator[str]:
        """Yield the lines of an answer as they arrive."""
        ...


class AsyncStreamer(AsyncSender, Protocol):
    """The part of `AsyncMemoryClient` that `AsyncAdmin` needs."""

    def stream(self, call: Call[R]) -> AsyncIterator[str]:
        """Yield the lines of an answer as they arrive."""
        ...


class Admin:
    """The operations of an administrator; the service refuses all other identities."""

    def __init__(self, client: Streamer) -> None:
        self._client = client

    def owners(self, *, cursor: str | None = None, limit: int | None = None) -> OwnerPage:
        """Return one page of the owners that have a memory in the store, oldest first, with counts.

        Args:
            cursor: `next_cursor` of the previous page.
            limit: Owners per page, 0 to 1,000 (default 50).

        Returns:
            The owners, and `next_cursor`, which is None on the last page.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.owners(cursor=cursor, limit=limit))

    def usage(self) -> StoreUsage:
        """Return counts of everything in the store.

        Returns:
            The counts, and the open background work by state.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.usage())

    def list(self, **options: Unpack[AdminListOptions]) -> MemoryPage:
        """Return one page of the memories of one owner or of all, whatever their visibility.

        Args:
            **options: `user` or `self_agent` (default: all owners), `kinds`, `cursor` (of the previous page), `limit`
                (0 to 1,000, default 50).

        Returns:
            The memories, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong, or two owners are named.
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.list_memories(**options))

    def forget(self, **selector: Unpack[AdminForgetOptions]) -> ForgetReceipt:
        """Erase one owner, one source, or everything. Each owner is erased in a transaction of its own.

        Args:
            **selector: Exactly one of `user`, `self_agent`, `source` and `everything`. With `source`: `since` (only
                what was written at this time or later). `dry_run` counts without erasing.

        Returns:
            The receipt: rows erased per tier, whether anything is left, whether the bytes are gone from the files.

        Raises:
            InvalidRequest: There is no selector, or more than one.
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.forget(**selector))

    def rename(self, user: str, to: str) -> RenameReceipt:
        """Give the memory of one user to another name. Not retried once sent.

        Args:
            user: The present name.
            to: The new name; nothing may be stored under it.

        Returns:
            Counts of rows that were moved, by table.

        Raises:
            NotFound: Nothing is stored of this user.
            Conflict: The new name has a memory already; two memories are not merged.
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.rename(user, to))

    def export(self, *, user: str | None = None, self_agent: str | None = None) -> Iterator[str]:
        """Yield everything that is stored of one owner, as the lines of an archive.

        Args:
            user: The user. Name exactly one of `user` and `self_agent`.
            self_agent: The agent that acts for itself.

        Returns:
            An iterator of lines without line ends; it fetches the archive when it is read.

        Raises:
            InvalidRequest: Neither or both are named.
            NotFound: Nothing is stored of this owner.
            Forbidden: This identity does not administer the store.
        """
        return self._client.stream(calls.export(user=user, self_agent=self_agent))

    def load(self, lines: Iterable[str] | Iterable[bytes], *, trust_archive: bool = False) -> ImportReceipt:
        """Load an archive into this store.

        The archive is read to its end before anything is sent. Loading it again adds nothing.

        Args:
            lines: The lines of the archive, for example an opened file.
            trust_archive: Keep origin, trust and pins as they were exported (default false). Only for an archive of
                your own; needs the right to share. Otherwise everything has origin `import` and trust up to 0.8, and
                nothing is pinned.

        Returns:
            Counts of rows that were added and rows that were there already.

        Raises:
            InvalidRequest: The lines are not a whole archive, or a row breaks a rule of a save.
            Conflict: A row contradicts one that is stored.
            QuotaExceeded: The owner would have more than the store allows.
            Forbidden: This identity does not administer the store, or may not share what the archive shares.
        """
        with read_archive(lines) as archive:
            options = {"trust_archive": trust_archive}
            return total([self.load_rows(rows, **archive.owner, **options) for rows in archive.batches()])

    def load_rows(
        self,
        rows: Sequence[ArchiveRow | Mapping[str, Any]],
        *,
        user: str | None = None,
        self_agent: str | None = None,
        trust_archive: bool = False,
    ) -> ImportReceipt:
        """Load some rows of an archive, all or none. `load` calls it for each part of an archive.

        Args:
            rows: At most 1,000 rows, in the order of the archive.
            user: The user that owns the rows. Name exactly one of `user` and `self_agent`.
            self_agent: The agent that owns the rows and acts for itself.
            trust_archive: Keep origin, trust and pins as they were exported (default false), as for `load`.

        Returns:
            Counts of rows that were added and rows that were there already.

        Raises:
            InvalidRequest: A row breaks a rule of a save; the message names it.
            Conflict: A row contradicts one that is stored.
            QuotaExceeded: The owner would have more than the store allows.
            Forbidden: This identity does not administer the store, or may not share what the rows share.
        """
        return self._client.send(calls.load(rows, user=user, self_agent=self_agent, trust_archive=trust_archive))

    def keys(self) -> KeyList:
        """Return every key of the store, oldest first, without its token.

        Returns:
            The keys.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.keys())

    def revoke_key(self, key_id: str) -> KeyInfo:
        """Revoke a key. Every service of the store refuses it within five seconds. Not retried once sent.

        Args:
            key_id: The id of the key, as `keys` shows it.

        Returns:
            The revoked key.

        Raises:
            NotFound: There is no such key, or it is not alive.
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.revoke_key(key_id))

    def audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditPage:
        """Return one page of the audit, newest entry first.

        Args:
            cursor: `next_cursor` of the previous page.
            limit: Entries per page, 0 to 1,000 (default 50).

        Returns:
            The entries, and `next_cursor`, which is None on the last page.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.audit(cursor=cursor, limit=limit))

    def verify_audit(self, head: str | None = None) -> AuditCheck:
        """Check that the chain of the audit is whole.

        Args:
            head: A `head` that an earlier check returned; the chain must still contain it.

        Returns:
            `ok`, the problem if there is one, and the present `head`.

        Raises:
            InvalidRequest: `head` is not one that a check returned.
            Forbidden: This identity does not administer the store.
        """
        return self._client.send(calls.verify_audit(head))


class AsyncAdmin:
    """Asynchronous twin of `Admin`."""

    def __init__(self, client: AsyncStreamer) -> None:
        self._client = client

    async def owners(self, *, cursor: str | None = None, limit: int | None = None) -> OwnerPage:
        """Return one page of the owners that have a memory in the store, oldest first, with counts.

        Args:
            cursor: `next_cursor` of the previous page.
            limit: Owners per page, 0 to 1,000 (default 50).

        Returns:
            The owners, and `next_cursor`, which is None on the last page.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.owners(cursor=cursor, limit=limit))

    async def usage(self) -> StoreUsage:
        """Return counts of everything in the store.

        Returns:
            The counts, and the open background work by state.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.usage())

    async def list(self, **options: Unpack[AdminListOptions]) -> MemoryPage:
        """Return one page of the memories of one owner or of all, whatever their visibility.

        Args:
            **options: `user` or `self_agent` (default: all owners), `kinds`, `cursor` (of the previous page), `limit`
                (0 to 1,000, default 50).

        Returns:
            The memories, and `next_cursor`, which is None on the last page.

        Raises:
            InvalidRequest: A field is wrong, or two owners are named.
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.list_memories(**options))

    async def forget(self, **selector: Unpack[AdminForgetOptions]) -> ForgetReceipt:
        """Erase one owner, one source, or everything. Each owner is erased in a transaction of its own.

        Args:
            **selector: Exactly one of `user`, `self_agent`, `source` and `everything`. With `source`: `since` (only
                what was written at this time or later). `dry_run` counts without erasing.

        Returns:
            The receipt: rows erased per tier, whether anything is left, whether the bytes are gone from the files.

        Raises:
            InvalidRequest: There is no selector, or more than one.
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.forget(**selector))

    async def rename(self, user: str, to: str) -> RenameReceipt:
        """Give the memory of one user to another name. Not retried once sent.

        Args:
            user: The present name.
            to: The new name; nothing may be stored under it.

        Returns:
            Counts of rows that were moved, by table.

        Raises:
            NotFound: Nothing is stored of this user.
            Conflict: The new name has a memory already; two memories are not merged.
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.rename(user, to))

    def export(self, *, user: str | None = None, self_agent: str | None = None) -> AsyncIterator[str]:
        """Yield everything that is stored of one owner, as the lines of an archive.

        Args:
            user: The user. Name exactly one of `user` and `self_agent`.
            self_agent: The agent that acts for itself.

        Returns:
            An iterator of lines without line ends; it fetches the archive when it is read.

        Raises:
            InvalidRequest: Neither or both are named.
            NotFound: Nothing is stored of this owner.
            Forbidden: This identity does not administer the store.
        """
        return self._client.stream(calls.export(user=user, self_agent=self_agent))

    async def load(self, lines: Iterable[str] | Iterable[bytes], *, trust_archive: bool = False) -> ImportReceipt:
        """Load an archive into this store.

        The archive is read to its end before anything is sent. Loading it again adds nothing.

        Args:
            lines: The lines of the archive, for example an opened file.
            trust_archive: Keep origin, trust and pins as they were exported (default false). Only for an archive of
                your own; needs the right to share. Otherwise everything has origin `import` and trust up to 0.8, and
                nothing is pinned.

        Returns:
            Counts of rows that were added and rows that were there already.

        Raises:
            InvalidRequest: The lines are not a whole archive, or a row breaks a rule of a save.
            Conflict: A row contradicts one that is stored.
            QuotaExceeded: The owner would have more than the store allows.
            Forbidden: This identity does not administer the store, or may not share what the archive shares.
        """
        with await asyncio.to_thread(read_archive, lines) as archive:
            options = {"trust_archive": trust_archive}
            return total([await self.load_rows(rows, **archive.owner, **options) for rows in archive.batches()])

    async def load_rows(
        self,
        rows: Sequence[ArchiveRow | Mapping[str, Any]],
        *,
        user: str | None = None,
        self_agent: str | None = None,
        trust_archive: bool = False,
    ) -> ImportReceipt:
        """Load some rows of an archive, all or none. `load` calls it for each part of an archive.

        Args:
            rows: At most 1,000 rows, in the order of the archive.
            user: The user that owns the rows. Name exactly one of `user` and `self_agent`.
            self_agent: The agent that owns the rows and acts for itself.
            trust_archive: Keep origin, trust and pins as they were exported (default false), as for `load`.

        Returns:
            Counts of rows that were added and rows that were there already.

        Raises:
            InvalidRequest: A row breaks a rule of a save; the message names it.
            Conflict: A row contradicts one that is stored.
            QuotaExceeded: The owner would have more than the store allows.
            Forbidden: This identity does not administer the store, or may not share what the rows share.
        """
        return await self._client.send(calls.load(rows, user=user, self_agent=self_agent, trust_archive=trust_archive))

    async def keys(self) -> KeyList:
        """Return every key of the store, oldest first, without its token.

        Returns:
            The keys.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.keys())

    async def revoke_key(self, key_id: str) -> KeyInfo:
        """Revoke a key. Every service of the store refuses it within five seconds. Not retried once sent.

        Args:
            key_id: The id of the key, as `keys` shows it.

        Returns:
            The revoked key.

        Raises:
            NotFound: There is no such key, or it is not alive.
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.revoke_key(key_id))

    async def audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditPage:
        """Return one page of the audit, newest entry first.

        Args:
            cursor: `next_cursor` of the previous page.
            limit: Entries per page, 0 to 1,000 (default 50).

        Returns:
            The entries, and `next_cursor`, which is None on the last page.

        Raises:
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.audit(cursor=cursor, limit=limit))

    async def verify_audit(self, head: str | None = None) -> AuditCheck:
        """Check that the chain of the audit is whole.

        Args:
            head: A `head` that an earlier check returned; the chain must still contain it.

        Returns:
            `ok`, the problem if there is one, and the present `head`.

        Raises:
            InvalidRequest: `head` is not one that a check returned.
            Forbidden: This identity does not administer the store.
        """
        return await self._client.send(calls.verify_audit(head))
