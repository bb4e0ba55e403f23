"""The routes of an administrator. Every one of them refuses whoever is none."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from threefold.checks import checked
from threefold.contract import ForgetReceipt, MemoryPage
from threefold.contract.admin import (
    AdminForgetRequest,
    AdminListRequest,
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
)
from threefold.contract.common import Cursor, Id, PageLimit
from threefold_server.http.bodies import IdentifiedRoute
from threefold_server.http.identity import Caller, identified
from threefold_server.http.routes import LONG, REFUSALS, Open, known_query_only
from threefold_server.operations import admin as administer
from threefold_server.operations import archive
from threefold_server.rules.access import Principal, check_admin

CHUNK = 65_536
JSONL = "application/jsonl"
JSON_LINES: dict[str, Any] = {"content": {JSONL: {"schema": {"type": "string"}}}, "description": "An archive."}


async def administrator(caller: Caller) -> Principal:
    """The verified caller, if it administers the store."""
    check_admin(caller)
    return caller


class AdministratorRoute(IdentifiedRoute):
    """A route whose body is read for administrators only."""

    async def admit(self, request: Request) -> None:
        """Refuse a caller that does not administer the store."""
        check_admin(await identified(request))


Admin = Annotated[Principal, Depends(administrator)]

router = APIRouter(
    route_class=AdministratorRoute,
    prefix="/v1/admin",
    responses=REFUSALS,
    dependencies=[*LONG, Depends(known_query_only), Depends(administrator)],
)


@router.get("/owners")
async def get_owners(admin: Admin, service: Open, cursor: Cursor | None = None, limit: PageLimit = 50) -> OwnerPage:
    """Everybody of whom something is kept, and how much."""
    return await administer.list_owners(service, admin, cursor, limit)


@router.get("/usage")
async def get_usage(service: Open) -> StoreUsage:
    """What the whole store holds."""
    return await administer.usage(service)


@router.post("/list")
async def post_admin_list(body: AdminListRequest, admin: Admin, service: Open) -> MemoryPage:
    """The memories of one owner or of everybody, whatever their visibility."""
    return await administer.list_memories(service, admin, body)


@router.post("/forget")
async def post_admin_forget(body: AdminForgetRequest, admin: Admin, service: Open) -> ForgetReceipt:
    """Erase one owner, one source, or everything."""
    return await administer.forget(service, admin, body)


@router.post("/rename")
async def post_rename(body: RenameRequest, admin: Admin, service: Open) -> RenameReceipt:
    """Give one user's memory to a name that has none yet."""
    return await administer.rename(service, admin, body)


@router.get("/export", response_class=StreamingResponse, responses={200: JSON_LINES})
async def get_export(
    admin: Admin, service: Open, user: Id | None = None, self_agent: Id | None = None
) -> StreamingResponse:
    """Everything that is kept of one owner, as JSON lines."""
    file = await archive.export(service, admin, checked(OneOwner, user=user, self_agent=self_agent))
    chunks = iter(partial(file.read, CHUNK), b"")
    return StreamingResponse(chunks, media_type=JSONL, background=BackgroundTask(file.close))


@router.post("/import")
async def post_import(body: ImportRequest, admin: Admin, service: Open) -> ImportReceipt:
    """Rows of an archive into this store, all or none."""
    return await archive.load(service, admin, body)


@router.get("/keys")
async def get_keys(service: Open) -> KeyList:
    """Every key of the store, without its token."""
    return await administer.list_keys(service)


@router.delete("/keys/{key_id:id}")
async def remove_key(key_id: Id, admin: Admin, service: Open) -> KeyInfo:
    """Revoke a key."""
    return await administer.revoke_key(service, admin, key_id)


@router.get("/audit")
async def get_audit(service: Open, cursor: Cursor | None = None, limit: PageLimit = 50) -> AuditPage:
    """Who did what, the newest first."""
    return await administer.audit_page(service, cursor, limit)


@router.get("/audit/verify")
async def get_audit_verify(service: Open, head: Annotated[str | None, Query(max_length=128)] = None) -> AuditCheck:
    """Whether the chain of the audit is whole, and still holds a head of earlier days."""
    return await administer.verify_audit(service, head)
