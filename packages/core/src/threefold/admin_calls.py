"""The operations of an administrator as data, in the form of `calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from threefold.calls import Call, given, json_body, path_of
from threefold.checks import checked, checked_id
from threefold.contract import ForgetReceipt, MemoryPage, paths
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
    """Only the memories of this user (default: of all owners)."""
    self_agent: str | None
    """Only the memories of this agent that acts for itself."""
    kinds: Sequence[Literal["fact", "turn"]]
    """The kinds to return (default: both)."""
    cursor: str | None
    """`next_cursor` of the previous page."""
    limit: int
    """Memories per page, 0 to 1,000 (default 50)."""


class AdminForgetOptions(TypedDict, total=False):
    """Options of `forget`, as in `AdminForgetRequest`: exactly one selector."""

    user: str | None
    """Selector: everything of one user."""
    self_agent: str | None
    """Selector: everything of one agent that acts for itself."""
    source: WideSource | Mapping[str, Any] | None
    """Selector: everything that came from one tool or agent, of all owners."""
    since: datetime | None
    """With `source`: only what was written at this time or later; needs an offset."""
    everything: bool
    """Selector: the memory of every owner of the store."""
    dry_run: bool
    """Count without erasing (default false)."""


def owners(*, cursor: str | None = None, limit: int | None = None) -> Call[OwnerPage]:
    """Return one page of the owners that have a memory in the store."""
    return Call("GET", paths.ADMIN_OWNERS, OwnerPage, given(cursor=cursor, limit=limit), deadline="long")


def usage() -> Call[StoreUsage]:
    """Return counts of everything in the store."""
    return Call("GET", paths.ADMIN_USAGE, StoreUsage, deadline="long")


def list_memories(**options: Unpack[AdminListOptions]) -> Call[MemoryPage]:
    """Return one page of the memories of one owner or of all."""
    return Call(
        "POST", paths.ADMIN_LIST, MemoryPage, body=json_body(checked(AdminListRequest, **options)), deadline="long"
    )


def forget(**selector: Unpack[AdminForgetOptions]) -> Call[ForgetReceipt]:
    """Erase one owner, one source, or everything. Repeatable: a second arrival finds nothing left."""
    body = json_body(checked(AdminForgetRequest, **selector))
    return Call("POST", paths.ADMIN_FORGET, ForgetReceipt, body=body, deadline="long")


def rename(user: str, to: str) -> Call[RenameReceipt]:
    """Rename a user. Not repeatable: a second arrival would find nothing to rename."""
    body = json_body(checked(RenameRequest, user=user, to=to))
    return Call("POST", paths.ADMIN_RENAME, RenameReceipt, body=body, deadline="long", repeatable=False)


def export(*, user: str | None = None, self_agent: str | None = None) -> Call[ArchiveHead]:
    """Return an archive; its first line names the owner."""
    owner = checked(OneOwner, user=user, self_agent=self_agent)
    return Call("GET", paths.ADMIN_EXPORT, ArchiveHead, given(**owner.model_dump()), deadline="long")


def load(
    rows: Sequence[ArchiveRow | Mapping[str, Any]],
    *,
    user: str | None = None,
    self_agent: str | None = None,
    trust_archive: bool = False,
) -> Call[ImportReceipt]:
    """Import rows of an archive. Repeatable: a second arrival adds nothing."""
    trusted = given(trust_archive=trust_archive or None)
    body = json_body(checked(ImportRequest, user=user, self_agent=self_agent, rows=rows, **trusted))
    return Call("POST", paths.ADMIN_IMPORT, ImportReceipt, body=body, deadline="long")


def keys() -> Call[KeyList]:
    """Return every key of the store."""
    return Call("GET", paths.ADMIN_KEYS, KeyList, deadline="long")


def revoke_key(key_id: str) -> Call[KeyInfo]:
    """Revoke a key. Not repeatable: a second arrival would answer that there is no such live key."""
    return Call("DELETE", path_of(paths.ADMIN_KEY, checked_id("key_id", key_id)), KeyInfo, repeatable=False)


def audit(*, cursor: str | None = None, limit: int | None = None) -> Call[AuditPage]:
    """Return one page of the audit."""
    return Call("GET", paths.ADMIN_AUDIT, AuditPage, given(cursor=cursor, limit=limit), deadline="long")


def verify_audit(head: str | None = None) -> Call[AuditCheck]:
    """Return whether the chain of the audit is whole."""
    return Call("GET", paths.ADMIN_AUDIT_VERIFY, AuditCheck, given(head=head), deadline="long")
