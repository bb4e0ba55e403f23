"""What an administrator does: `client.admin`, for both clients. Everybody else is refused."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Unpack

from threefold import admin_calls as calls
from threefold.admin_calls import AdminForgetOptions, AdminListOptions
from threefold.calls import Call, R
from threefold.contract import ForgetReceipt, MemoryPage
from threefold.contract.admin import AuditCheck, AuditPage, OwnerPage, StoreUsage


class Send(Protocol):
    """`MemoryClient.send`."""

    def __call__(self, call: Call[R]) -> R: ...


class AsyncSend(Protocol):
    """`AsyncMemoryClient.send`."""

    def __call__(self, call: Call[R]) -> Awaitable[R]: ...


class Admin:
    """The calls of an administrator."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def owners(self, *, cursor: str | None = None, limit: int | None = None) -> OwnerPage:
        """One page of those who have a memory here, and how much."""
        return self._send(calls.owners(cursor=cursor, limit=limit))

    def usage(self) -> StoreUsage:
        """What the whole store holds."""
        return self._send(calls.usage())

    def list(self, **options: Unpack[AdminListOptions]) -> MemoryPage:
        """One page of the memories of one owner or of everybody, whatever their visibility."""
        return self._send(calls.list_memories(**options))

    def forget(self, **selector: Unpack[AdminForgetOptions]) -> ForgetReceipt:
        """Erase one owner, one source, or everything; the receipt counts it."""
        return self._send(calls.forget(**selector))

    def audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditPage:
        """One page of the audit, the newest entry first."""
        return self._send(calls.audit(cursor=cursor, limit=limit))

    def verify_audit(self, head: str | None = None) -> AuditCheck:
        """Whether the chain of the audit is whole, and still holds a `head` that was noted earlier."""
        return self._send(calls.verify_audit(head))


class AsyncAdmin:
    """`Admin`, awaited."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send

    async def owners(self, *, cursor: str | None = None, limit: int | None = None) -> OwnerPage:
        return await self._send(calls.owners(cursor=cursor, limit=limit))

    async def usage(self) -> StoreUsage:
        return await self._send(calls.usage())

    async def list(self, **options: Unpack[AdminListOptions]) -> MemoryPage:
        return await self._send(calls.list_memories(**options))

    async def forget(self, **selector: Unpack[AdminForgetOptions]) -> ForgetReceipt:
        return await self._send(calls.forget(**selector))

    async def audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditPage:
        return await self._send(calls.audit(cursor=cursor, limit=limit))

    async def verify_audit(self, head: str | None = None) -> AuditCheck:
        return await self._send(calls.verify_audit(head))
