"""The routes under `/v1/admin`. All of them require an administrator."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from threefold.checks import checked
from threefold.contract import ForgetReceipt, MemoryPage, paths
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
from threefold_server.http.identity import CallerDep, identified
from threefold_server.http.routes import LONG, REFUSALS, ServiceDep, check_query
from threefold_server.operations import admin as operations
from threefold_server.operations import archive
from threefold_server.rules.access import Principal, check_admin

CHUNK_BYTES = 65_536
JSONL = "application/jsonl"
JSON_LINES: dict[str, Any] = {"content": {JSONL: {"schema": {"type": "string"}}}, "description": "An archive."}


async def administrator(caller: CallerDep) -> Principal:
    """Return the verified caller. Raise Forbidden if it is not an administrator."""
    check_admin(caller)
    return caller


class AdministratorRoute(IdentifiedRoute):
    """A route that reads a body only for administrators."""

    async def admit(self, request: Request) -> None:
        """Raise Forbidden if the caller is not an administrator."""
        check_admin(await identified(request))


AdminDep = Annotated[Principal, Depends(administrator)]

router = APIRouter(
    route_class=AdministratorRoute,
    responses=REFUSALS,
    dependencies=[*LONG, Depends(check_query), Depends(administrator)],
)


@router.get(paths.ADMIN_OWNERS)
async def get_owners(
    admin: AdminDep, service: ServiceDep, cursor: Cursor | None = None, limit: PageLimit = 50
) -> OwnerPage:
    """Return the owners with memory, and how much each has."""
    return await operations.list_owners(service, admin, cursor, limit)


@router.get(paths.ADMIN_USAGE)
async def get_usage(service: ServiceDep) -> StoreUsage:
    """Return how much the whole store holds."""
    return await operations.usage(service)


@router.post(paths.ADMIN_LIST)
async def post_admin_list(body: AdminListRequest, admin: AdminDep, service: ServiceDep) -> MemoryPage:
    """Return the memories of one owner or of all, whatever their visibility."""
    return await operations.list_memories(service, admin, body)


@router.post(paths.ADMIN_FORGET)
async def post_admin_forget(body: AdminForgetRequest, admin: AdminDep, service: ServiceDep) -> ForgetReceipt:
    """Erase one owner, one source, or everything."""
    return await operations.forget(service, admin, body)


@router.post(paths.ADMIN_RENAME)
async def post_rename(body: RenameRequest, admin: AdminDep, service: ServiceDep) -> RenameReceipt:
    """Rename a user. The new name must not have memory yet."""
    return await operations.rename(service, admin, body)


@router.get(paths.ADMIN_EXPORT, response_class=StreamingResponse, responses={200: JSON_LINES})
async def get_export(
    admin: AdminDep, service: ServiceDep, user: Id | None = None, self_agent: Id | None = None
) -> StreamingResponse:
    """Return everything that is stored of one owner, as JSON lines."""
    file = await archive.export(service, admin, checked(OneOwner, user=user, self_agent=self_agent))
    chunks = iter(partial(file.read, CHUNK_BYTES), b"")
    return StreamingResponse(chunks, media_type=JSONL, background=BackgroundTask(file.close))


@router.post(paths.ADMIN_IMPORT)
async def post_import(body: ImportRequest, admin: AdminDep, service: ServiceDep) -> ImportReceipt:
    """Add rows of an archive to this store, all or none."""
    return await archive.load(service, admin, body)


@router.get(paths.ADMIN_KEYS)
async def get_keys(service: ServiceDep) -> KeyList:
    """Return every key of the store, without its token."""
    return await operations.list_keys(service)


@router.delete(paths.ADMIN_KEY)
async def remove_key(key_id: Id, admin: AdminDep, service: ServiceDep) -> KeyInfo:
    """Revoke a key."""
    return await operations.revoke_key(service, admin, key_id)


@router.get(paths.ADMIN_AUDIT)
async def get_audit(service: ServiceDep, cursor: Cursor | None = None, limit: PageLimit = 50) -> AuditPage:
    """Return audit entries, newest first."""
    return await operations.audit_page(service, cursor, limit)


@router.get(paths.ADMIN_AUDIT_VERIFY)
async def get_audit_verify(
    service: ServiceDep, head: Annotated[str | None, Query(max_length=128)] = None
) -> AuditCheck:
    """Check that the audit chain is whole and still contains an earlier head."""
    return await operations.verify_audit(service, head)
