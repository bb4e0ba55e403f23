"""The operations of an administrator as data, like those of `calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import quote

from threefold.calls import Call, given, json_body
from threefold.checks import checked, checked_id
from threefold.contract import ForgetReceipt, MemoryPage
from threefold.contract.admin import (
    AdminForgetRequest,
    AdminListRequest,
    ArchiveHead,
    ArchiveRow,
    AuditCheck,
    AuditPage,
    ImportReceipt,
    ImportRequest,
    KeyInfo,
    KeyList,
    OneOwner,
    OwnerPage,
    RenameReceipt,
    RenameRequest,
    StoreUsage,
    WideSource,
)


class AdminListOptions(TypedDict, total=False):
    """Options of `list`, as in `AdminListRequest`."""

    user: str | None
    self_agent: str | None
    kinds: Sequence[Literal["fact", "turn"]]
    cursor: str | None
    limit: int


class AdminForgetOptions(TypedDict, total=False):
    """Options of `forget`, as in `AdminForgetRequest`: exactly one selector."""

    user: str | None
    self_agent: str | None
    source: WideSource | Mapping[str, Any] | None
    since: datetime | None
    everything: bool
    dry_run: bool


def owners(*, cursor: str | None = None, limit: int | None = None) -> Call[OwnerPage]:
    """One page of those who have a memory here."""
    return Call("GET", "/v1/admin/owners", OwnerPage, given(cursor=cursor, limit=limit), pace="long")


def usage() -> Call[StoreUsage]:
    """What the whole store holds."""
    return Call("GET", "/v1/admin/usage", StoreUsage, pace="long")


def list_memories(**options: Unpack[AdminListOptions]) -> Call[MemoryPage]:
    """One page of the memories of one owner or of everybody."""
    return Call("POST", "/v1/admin/list", MemoryPage, body=json_body(checked(AdminListRequest, **options)), pace="long")


def forget(**selector: Unpack[AdminForgetOptions]) -> Call[ForgetReceipt]:
    """Erase one owner, one source, or everything; a second arrival finds nothing left."""
    body = json_body(checked(AdminForgetRequest, **selector))
    return Call("POST", "/v1/admin/forget", ForgetReceipt, body=body, pace="long")


def rename(user: str, to: str) -> Call[RenameReceipt]:
    """Give one user's memory to a name that has none; a second arrival would find nothing to rename."""
    body = json_body(checked(RenameRequest, user=user, to=to))
    return Call("POST", "/v1/admin/rename", RenameReceipt, body=body, pace="long", repeatable=False)


def export(*, user: str | None = None, self_agent: str | None = None) -> Call[ArchiveHead]:
    """An archive, whose first line says whose it is."""
    whose = checked(OneOwner, user=user, self_agent=self_agent)
    return Call("GET", "/v1/admin/export", ArchiveHead, given(**whose.model_dump()), pace="long")


def load(
    rows: Sequence[ArchiveRow | Mapping[str, Any]],
    *,
    user: str | None = None,
    self_agent: str | None = None,
    trust_archive: bool = False,
) -> Call[ImportReceipt]:
    """Rows of an archive; a second arrival adds nothing."""
    trusted = given(trust_archive=trust_archive or None)
    body = json_body(checked(ImportRequest, user=user, self_agent=self_agent, rows=rows, **trusted))
    return Call("POST", "/v1/admin/import", ImportReceipt, body=body, pace="long")


def keys() -> Call[KeyList]:
    """Every key of the store."""
    return Call("GET", "/v1/admin/keys", KeyList, pace="long")


def revoke_key(key_id: str) -> Call[KeyInfo]:
    """Revoke a key; a second arrival would find it revoked."""
    return Call("DELETE", f"/v1/admin/keys/{quote(checked_id('key_id', key_id), safe='')}", KeyInfo, repeatable=False)


def audit(*, cursor: str | None = None, limit: int | None = None) -> Call[AuditPage]:
    """One page of the audit."""
    return Call("GET", "/v1/admin/audit", AuditPage, given(cursor=cursor, limit=limit), pace="long")


def verify_audit(head: str | None = None) -> Call[AuditCheck]:
    """Whether the chain of the audit is whole."""
    return Call("GET", "/v1/admin/audit/verify", AuditCheck, given(head=head), pace="long")
