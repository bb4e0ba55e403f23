"""Reading identity headers: ids and bearer tokens."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from threefold.checks import problem
from threefold.contract.common import Id
from threefold.errors import Forbidden, InvalidRequest, Unauthenticated

_ID: TypeAdapter[str] = TypeAdapter(Id)


def id_in(headers: Headers, header: str) -> str | None:
    """Return the id in a header of our clients, which percent-encode it in UTF-8; None if absent."""
    value = single_value(headers, header)
    try:
        # Starlette decodes headers as Latin-1, so raw UTF-8 would be read as another name. Only ASCII is accepted.
        return None if value is None else checked(header, unquote_to_bytes(value.encode("ascii")).decode())
    except UnicodeError as error:
        raise InvalidRequest(f"{header}: must be percent-encoded UTF-8", {"field": header}) from error


def single_value(headers: Headers, header: str) -> str | None:
    """Return the value of a header; None if absent. Raise InvalidRequest if it is sent more than once."""
    values = headers.getlist(header)
    if len(values) > 1:
        raise InvalidRequest(f"{header}: sent {len(values)} times; send it once", {"field": header})
    return values[0] if values else None


def checked(field: str, value: object) -> str:
    """Return `value` unchanged if it is a valid id, else raise InvalidRequest."""
    try:
        return _ID.validate_python(value, strict=True)
    except ValidationError as error:
        raise InvalidRequest(f"{field}: {problem(error.errors()[0]['msg'])}", {"field": field}) from error


def bearer_token(headers: Headers, advice: str) -> str:
    """Return the token of `Authorization: Bearer`. Raise Unauthenticated with `advice` if there is no token."""
    scheme, _, token = (single_value(headers, "authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(advice)
    return token.strip()


def granted_id(headers: Headers, header: str, granted: str | None) -> str | None:
    """Return the granted name. Raise Forbidden if the header names another one."""
    asked = id_in(headers, header)
    if asked is not None and asked != granted:
        raise Forbidden(
            f"this caller may not act for the one named in {header}; leave the header out, or use a key that may"
        )
    return granted
