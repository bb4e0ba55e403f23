"""What the headers of a request say: names, and tokens."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from threefold.checks import problem
from threefold.contract.common import Id
from threefold.errors import Forbidden, InvalidRequest, Unauthenticated

USER_HEADER = "x-threefold-user"
AGENT_HEADER = "x-threefold-agent"

_ID: TypeAdapter[str] = TypeAdapter(Id)


def named(headers: Headers, header: str) -> str | None:
    """The id in a header of our clients: percent-encoded UTF-8, since header bytes are not text. None where absent."""
    value = only(headers, header)
    try:
        # Bytes that are not ASCII come as Latin-1: encoded again, raw UTF-8 would name somebody else.
        return None if value is None else checked(header, unquote_to_bytes(value.encode("ascii")).decode())
    except UnicodeError as error:
        raise InvalidRequest(f"{header}: not percent-encoded UTF-8", {"field": header}) from error


def only(headers: Headers, header: str) -> str | None:
    """The one value of a header, None where it is absent; which of several was meant, nobody can tell."""
    values = headers.getlist(header)
    if len(values) > 1:
        raise InvalidRequest(f"{header}: given {len(values)} times", {"field": header})
    return values[0] if values else None


def checked(field: str, value: object) -> str:
    """A value that is an id, exactly as it is."""
    try:
        return _ID.validate_python(value, strict=True)
    except ValidationError as error:
        raise InvalidRequest(f"{field}: {problem(error.errors()[0]['msg'])}", {"field": field}) from error


def bearer(headers: Headers, how: str) -> str:
    """The token of `Authorization: Bearer`; without one, refused with how to get it."""
    scheme, _, token = (only(headers, "authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(how)
    return token.strip()


def agree(headers: Headers, header: str, granted: str | None) -> str | None:
    """What was granted; refused where the request names somebody else, rather than answered for the wrong one."""
    asked = named(headers, header)
    if asked is not None and asked != granted:
        raise Forbidden(f"this caller may not speak for the one named in {header}; leave it out, or use a key that may")
    return granted
