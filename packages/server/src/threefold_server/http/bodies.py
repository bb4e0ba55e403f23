"""Bodies of requests: read once the caller is known, in bounded numbers, and parsed off the event loop when large."""

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
"""Smaller bodies are parsed in the event loop, within about 5 ms."""
HELD_AT_ONCE = 4
"""Large bodies in memory, whatever the number of requests: each takes up to ten times its size while it is parsed."""
TURN_SECONDS = 10.0
"""For a large body to wait until others are done."""
MAX_VALUES = 500_000
"""Values in a large body. An empty list takes 3 bytes on the wire and 64 in memory."""
NESTED = "threefold.nested"
"""In the scope of a request that a request makes (MCP): its body is held already."""

_object: Callable[..., Any] = vars(json.decoder)["JSONObject"]
_array: Callable[..., Any] = vars(json.decoder)["JSONArray"]
_scanner: Callable[..., Any] = vars(json.scanner)["py_make_scanner"]
_Scan = Callable[[str, int], Any]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Bodies:
    """The large bodies of one process."""

    def __init__(self) -> None:
        self._held = anyio.CapacityLimiter(HELD_AT_ONCE)
        self._parsing = anyio.CapacityLimiter(1)  # the interpreter lock lets only one thread work anyway

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        """Yield a function that waits until one more large body may be held; the block gives the place back."""
        holder = object()
        held = False

        async def take() -> None:
            nonlocal held
            if held or request.scope.get(NESTED):
                return
            with anyio.move_on_after(TURN_SECONDS):
                await self._held.acquire_on_behalf_of(holder)
                held = True
                return
            raise Unavailable("too many large requests at once; nothing was stored, try again", {"retry_after": 1})

        try:
            yield take
        finally:
            if held:
                self._held.release_on_behalf_of(holder)

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
    """A route that knows its caller before it reads a body, so that strangers cost neither memory nor time."""

    counts: ClassVar[bool] = True
    """Whether a request counts towards the caller's rate."""
    raw: ClassVar[bool] = False
    """Whether the route parses the body itself."""

    def get_route_handler(self) -> Handler:
        """Return the handler of the route, with identity before it."""
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
            async with bodies.turn(request) as take:
                return await handle(await _read(request, bodies, take, model))

        return identify_first

    async def admit(self, request: Request) -> None:
        """Refuse a verified caller that this route is not for."""


class Nested:
    """The application, called by one of its own requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, NESTED: True}, receive, send)


async def _read(request: Request, bodies: Bodies, take: Callable[[], Awaitable[None]], model: Any) -> ReadRequest:
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > LARGE_BYTES:
        await take()
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > LARGE_BYTES:
            await take()
        body += chunk
    whole = bytes(body)
    if len(whole) <= LARGE_BYTES or model is None or "json" not in request.headers.get("content-type", ""):
        return ReadRequest(request, whole, None)
    allowed.set(LONG_SECONDS)  # to store it takes longer, too
    return ReadRequest(request, whole, await bodies.parse(whole, model))


def _parse(body: bytes, model: type[BaseModel] | None) -> Any:
    try:
        value = _Patient().decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        return value if model is None or value is None else model.model_validate(value, from_attributes=True)
    except RecursionError:
        raise InvalidRequest("body: nested too deeply", {"field": "body"}) from None
    except JSONDecodeError as error:
        detail = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}
        raise RequestValidationError([detail]) from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in found[:50]]) from None
    except ValueError:  # not UTF-8, or a number of thousands of digits
        raise InvalidRequest("body: not JSON in UTF-8", {"field": "body"}) from None


class _Patient(JSONDecoder):
    """Parses in Python, except strings: the parser in C holds the interpreter lock until it is done, which stops the
    event loop from any thread. Refuses a body of too many values."""

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
            raise InvalidRequest(f"body: more than {MAX_VALUES} values; send it in parts", {"field": "body"})
        return scan_once(text, start)
