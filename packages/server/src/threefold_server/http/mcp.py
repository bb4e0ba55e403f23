"""`/mcp`: the same memory for MCP clients, over streamable HTTP. Every request proves itself, and nothing is kept
between two of them, so that any process behind a load balancer can answer the next."""

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
from threefold_server.http.headers import checked, only
from threefold_server.http.identity import Identified
from threefold_server.http.routes import Open
from threefold_server.mcp.messages import whole
from threefold_server.mcp.server import Connection, Offer
from threefold_server.operations.whoami import whoami

URL = "http://threefold.local"


class MessageRoute(IdentifiedRoute):
    """The route of MCP, which reads messages by itself. What a message asks of memory counts, not the message."""

    counts = False
    raw = True


router = APIRouter(route_class=MessageRoute)


class Choice(BaseModel):
    """What the person who configures a client may choose, in its URL."""

    model_config = ConfigDict(extra="forbid")

    profile: ProfileName = "threefold"
    tools: str | None = None
    read_only: bool = False
    session: Id | None = None


@router.post("/mcp", include_in_schema=False)
async def post_mcp(request: Request, caller: Identified, service: Open, choice: Annotated[Choice, Query()]) -> Response:
    """One message of an MCP client. What it asks of memory counts towards its rate, not the message: what is over is
    told to a model, which goes on."""
    offer = Offer.of(choice.profile, choice.tools, choice.read_only)
    named = choice.session or only(request.headers, MCP_SESSION_ID_HEADER)
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
    return Answer(manager, client, body, None if named else session_id)


class SameCaller(httpx.AsyncBaseTransport):
    """The service itself, called with the headers of an outer request: they prove the caller once more."""

    def __init__(self, outer: Request) -> None:
        peer = outer.client or ("", 0)  # a gateway is known by its address, too
        self._app = httpx.ASGITransport(Nested(outer.app), raise_app_exceptions=False, client=(peer[0], peer[1]))
        self._headers = outer.headers.raw

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        own = [(name.lower(), value) for name, value in request.headers.raw if name.lower() != b"host"]
        names = {name for name, _ in own} | {b"content-length", b"content-type", b"transfer-encoding"}
        request.headers = httpx.Headers([*own, *(pair for pair in self._headers if pair[0] not in names)])
        return await self._app.handle_async_request(request)


class Answer(Response):
    """The answer of an MCP server that lives as long as one request."""

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
    """The body, once it is known to be JSON: the library answers what it cannot read with a fault of its own (500)."""
    text = whole(body.decode(errors="replace"))
    clean = text.encode()
    if len(clean) > LARGE_BYTES:
        await bodies.parse(clean)
        return clean
    try:
        from_json(text)
    except ValueError as error:
        raise InvalidRequest(f"body: this is not JSON that can be read: {error}") from None
    return clean
