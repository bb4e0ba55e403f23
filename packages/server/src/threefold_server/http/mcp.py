"""`/mcp`: memory for MCP clients, over streamable HTTP.

Every request is authenticated and no state is kept between requests, so that any process behind a load balancer can
answer the next one.
"""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

import httpx
from fastapi import APIRouter, Query, Request, Response
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json
from starlette.types import Message, Receive, Scope, Send

from threefold import AsyncMemoryClient, AsyncMemorySession
from threefold.contract.common import Id
from threefold.errors import InvalidRequest
from threefold.tools.definitions import ProfileName
from threefold_server.http.bodies import LARGE_BYTES, Bodies, IdentifiedRoute, Nested
from threefold_server.http.headers import checked, single_value
from threefold_server.http.identity import IdentifiedDep
from threefold_server.http.routes import ServiceDep
from threefold_server.mcp.messages import replace_surrogates
from threefold_server.mcp.server import Connection, Offer
from threefold_server.operations.whoami import whoami

URL = "http://threefold.local"


class MessageRoute(IdentifiedRoute):
    """The route of MCP, which parses messages itself.

    A message does not count towards the caller's rate; the calls of memory that it makes do. A call above the rate is
    then reported to the model, which can go on.
    """

    counts = False
    raw = True


router = APIRouter(route_class=MessageRoute)


class McpQuery(BaseModel):
    """The query parameters with which a person configures an MCP client."""

    model_config = ConfigDict(extra="forbid")

    profile: ProfileName = "threefold"
    tools: str | None = None
    read_only: bool = False
    session: Id | None = None


@router.post("/mcp", include_in_schema=False)
async def post_mcp(
    request: Request, caller: IdentifiedDep, service: ServiceDep, query: Annotated[McpQuery, Query()]
) -> Response:
    """Answer one message of an MCP client."""
    offer = Offer.of(query.profile, query.tools, query.read_only)
    named = query.session or single_value(request.headers, MCP_SESSION_ID_HEADER)
    session_id = uuid4().hex if named is None else checked(MCP_SESSION_ID_HEADER, named)
    client = AsyncMemoryClient(URL, transport=SameCaller(request))
    connection = Connection(AsyncMemorySession(client, session_id), offer, whoami(service, caller))
    manager = StreamableHTTPSessionManager(
        connection.server(),
        json_response=True,
        stateless=True,
        max_request_body_size=service.settings.max_body_bytes,
    )
    body = await _readable(await request.body(), request.app.state.bodies)
    return McpAnswer(manager, client, body, None if named else session_id)


class SameCaller(httpx.AsyncBaseTransport):
    """Calls the service itself with the headers of an outer request, which identify the caller again."""

    def __init__(self, outer: Request) -> None:
        peer = outer.client or ("", 0)  # mode gateway checks the address too
        self._app = httpx.ASGITransport(Nested(outer.app), raise_app_exceptions=False, client=(peer[0], peer[1]))
        self._headers = outer.headers.raw

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        own = [(name.lower(), value) for name, value in request.headers.raw if name.lower() != b"host"]
        names = {name for name, _ in own} | {b"content-length", b"content-type", b"transfer-encoding"}
        request.headers = httpx.Headers([*own, *(pair for pair in self._headers if pair[0] not in names)])
        return await self._app.handle_async_request(request)


class McpAnswer(Response):
    """The answer of an MCP server that is made for one request."""

    def __init__(
        self, manager: StreamableHTTPSessionManager, client: AsyncMemoryClient, body: bytes, new_session: str | None
    ) -> None:
        super().__init__()
        self._manager = manager
        self._client = client
        self._body: bytes | None = body
        self._new_session = new_session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_again() -> Message:
            if self._body is None:
                return await receive()
            body, self._body = self._body, None
            return {"type": "http.request", "body": body}

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start" and self._new_session is not None:
                message["headers"] = [*message["headers"], (MCP_SESSION_ID_HEADER.encode(), self._new_session.encode())]
            await send(message)

        async with self._client, self._manager.run():
            await self._manager.handle_request(scope, receive_again, send_named)


async def _readable(body: bytes, bodies: Bodies) -> bytes:
    """Return the body if it is JSON. The library would answer 500 to other bodies."""
    text = replace_surrogates(body.decode(errors="replace"))
    data = text.encode()
    if len(data) > LARGE_BYTES:
        await bodies.parse(data)
        return data
    try:
        from_json(text)
    except ValueError as error:
        raise InvalidRequest(f"body: not JSON: {error}") from None
    return data
