"""Request bodies: read after the caller is known; large ones limited in number and parsed off the event loop."""

from __future__ import annotations

import json
import json.decoder
import json.scanner
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from json import JSONDecodeError, JSONDecoder
from typing import Any, ClassVar

import anyio
import anyio.to_thread
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from threefold.errors import InvalidRequest, Unavailable
from threefold_server.http.identity import caller, identified
from threefold_server.storage.engine.deadline import LONG_SECONDS, allowed

LARGE_BYTES = 128 * 2**10
"""Smaller bodies are parsed in the event loop: 3 to 5 ms for 128 KiB of small values on a shared core."""
MAX_LARGE_BODIES = 4
"""Large bodies in memory at once. Parsing 29 MiB of text with an emoji in each turn took 228 MiB at most."""
SLOT_SECONDS = 10.0
"""Time that a large body waits for one of these slots."""
MAX_VALUES = 500_000
"""Most values in a large body. An empty list takes 3 bytes on the wire and 64 in memory."""
NESTED = "threefold.nested"
"""Key in the scope of a request that another request makes (MCP) and whose body has a slot already."""

_object: Callable[..., Any] = vars(json.decoder)["JSONObject"]
_array: Callable[..., Any] = vars(json.decoder)["JSONArray"]
_scanner: Callable[..., Any] = vars(json.scanner)["py_make_scanner"]
_Scan = Callable[[str, int], Any]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Bodies:
    """The slots and the parser for the large bodies of one process."""

    def __init__(self) -> None:
        self._slots = anyio.CapacityLimiter(MAX_LARGE_BODIES)
        self._parsing = anyio.CapacityLimiter(1)  # more threads would share one interpreter lock

    @asynccontextmanager
    async def slot(self, request: Request) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        """Yield a function that waits for a slot; the end of the block releases it.

        The function raises Unavailable if no slot becomes free in time.
        """
        borrower = object()
        acquired = False

        async def acquire() -> None:
            nonlocal acquired
            if acquired or request.scope.get(NESTED):
                return
            with anyio.move_on_after(SLOT_SECONDS):
                await self._slots.acquire_on_behalf_of(borrower)
                acquired = True
                return
            raise Unavailable(
                "the service is parsing too many large requests; nothing was stored, try again", {"retry_after": 1}
            )

        try:
            yield acquire
        finally:
            if acquired:
                self._slots.release_on_behalf_of(borrower)

    async def parse(self, body: bytes, model: type[BaseModel] | None = None) -> Any:
        """Parse a large body in a thread, and validate it there if a model is given."""
        return await anyio.to_thread.run_sync(_parse, body, model, limiter=self._parsing)


class ReadRequest(Request):
    """A request whose body has been read, and parsed if it is large."""

    def __init__(self, request: Request, body: bytes, parsed: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._read = body
        self._parsed = parsed

    async def body(self) -> bytes:
        """Return the whole body."""
        return self._read

    async def json(self) -> Any:
        """Return the body as JSON; a large one as the model that the route asks for."""
        return json.loads(self._read) if self._parsed is None else self._parsed


class IdentifiedRoute(APIRoute):
    """A route that identifies its caller before it reads the body, so that unknown callers cost little."""

    counts: ClassVar[bool] = True
    """Whether a request counts towards the caller's rate."""
    raw: ClassVar[bool] = False
    """Whether the route parses the body itself."""

    def get_route_handler(self) -> Handler:
        """Return the handler of the route, preceded by the identification of the caller."""
        handle = super().get_route_handler()
        field = self.body_field
        model = None if field is None else field.field_info.annotation

        async def identify_first(request: Request) -> Response:
            principal = await identified(request)
            if self.counts:
                await caller(request, principal)
            await self.admit(request)
            if field is None and not self.raw:
                return await handle(request)
            bodies: Bodies = request.app.state.bodies
            async with bodies.slot(request) as acquire:
                return await handle(await _read(request, bodies, acquire, model))

        return identify_first

    async def admit(self, request: Request) -> None:
        """Raise Forbidden if a verified caller may not use this route."""


class Nested:
    """The application as one of its own requests calls it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, NESTED: True}, receive, send)


async def _read(request: Request, bodies: Bodies, acquire: Callable[[], Awaitable[None]], model: Any) -> ReadRequest:
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > LARGE_BYTES:
        await acquire()
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > LARGE_BYTES:
            await acquire()
        body += chunk
    whole = bytes(body)
    if len(whole) <= LARGE_BYTES or model is None or "json" not in request.headers.get("content-type", ""):
        return ReadRequest(request, whole, None)
    allowed.set(LONG_SECONDS)  # storing it takes longer too
    return ReadRequest(request, whole, await bodies.parse(whole, model))


def _parse(body: bytes, model: type[BaseModel] | None) -> Any:
    try:
        value = _YieldingDecoder().decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        return value if model is None or value is None else model.model_validate(value, from_attributes=True)
    except RecursionError:
        raise InvalidRequest("body: nested too deeply", {"field": "body"}) from None
    except JSONDecodeError as error:
        detail = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}
        raise RequestValidationError([detail]) from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in found[:50]]) from None
    except ValueError:  # not UTF-8, or a number with thousands of digits
        raise InvalidRequest("body: not JSON in UTF-8", {"field": "body"}) from None


class _YieldingDecoder(JSONDecoder):
    """Parses objects and arrays in Python, so that the event loop runs between them.

    The parser in C holds the interpreter lock until it is done, in whatever thread it runs. This one also counts the
    values, and raises InvalidRequest above `MAX_VALUES`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values = 0
        self.parse_object: Any = self._object
        self.parse_array: Any = self._array
        self.scan_once: Any = _scanner(self)

    def _object(self, s_and_end: Any, strict: bool, scan_once: _Scan, *rest: Any) -> Any:
        return _object(s_and_end, strict, partial(self._counted, scan_once), *rest)

    def _array(self, s_and_end: Any, scan_once: _Scan) -> Any:
        return _array(s_and_end, partial(self._counted, scan_once))

    def _counted(self, scan_once: _Scan, text: str, start: int) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise InvalidRequest(f"body: more than {MAX_VALUES:,} values; send it in parts", {"field": "body"})
        return scan_once(text, start)
