"""Check the arguments of a caller against the contract before they are sent."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from threefold.contract.common import Id
from threefold.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)


_ID: TypeAdapter[str] = TypeAdapter(Id)


def checked(model: type[M], /, **fields: Any) -> M:
    """Return a model of the contract. Raise InvalidRequest with the names of wrong fields, without their content."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        refusal = _refusal(error)
    raise refusal  # outside of `except`: a chained error of pydantic would quote the content


def checked_id(name: str, value: str) -> str:
    """Return an id unchanged. Raise InvalidRequest if the contract does not allow it."""
    try:
        return _ID.validate_python(value)
    except ValidationError as error:
        refusal = _refusal(error, name)
    raise refusal


def id_or_none(text: str | None) -> str | None:
    """Return a name that a model or a framework chose, or None if it is not a valid id, so that its turn is kept."""
    try:
        return checked_id("name", text or "")
    except InvalidRequest:
        return None


def id_or_hash(text: str | None) -> str:
    """Return an id, or the hash of an invalid id, so that the same message is always the same turn."""
    return id_or_none(text) or sha256((text or "").encode(errors="surrogatepass")).hexdigest()


def problem(message: str) -> str:
    """Return a validation message without the prefix that pydantic adds."""
    return message.removeprefix("Value error, ")


def _refusal(error: ValidationError, *prefix: str) -> InvalidRequest:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [
        {"field": ".".join(map(str, (*prefix, *item["loc"]))) or "request", "problem": problem(item["msg"])}
        for item in problems
    ]
    message = "; ".join(f"{item['field']}: {item['problem']}" for item in fields[:5])
    return InvalidRequest(message, {"fields": fields[:50]})
