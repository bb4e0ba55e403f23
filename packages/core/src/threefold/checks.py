"""Check what a caller gives against the contract, before it is sent."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from threefold.contract.common import Id
from threefold.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)


_ID: TypeAdapter[str] = TypeAdapter(Id)


def checked(model: type[M], /, **fields: Any) -> M:
    """A model of the contract, or `InvalidRequest` that names the fields and quotes none of their content."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        refusal = _refusal(error)
    raise refusal  # out here, as a chained pydantic error would quote the content


def checked_id(name: str, value: str) -> str:
    """An id as the contract wants it, exactly as it came."""
    try:
        return _ID.validate_python(value)
    except ValidationError as error:
        refusal = _refusal(error, name)
    raise refusal


def id_or_none(text: str | None) -> str | None:
    """A name that a model or a framework made up, where it can be an id: it must not cost the turn it comes with."""
    try:
        return checked_id("name", text or "")
    except InvalidRequest:
        return None


def id_or_hash(text: str | None) -> str:
    """An id; in place of one that memory refuses its hash, so that the same message stays the same turn."""
    return id_or_none(text) or sha256((text or "").encode(errors="surrogatepass")).hexdigest()


def problem(message: str) -> str:
    """A validation message without the word that pydantic puts before ours."""
    return message.removeprefix("Value error, ")


def _refusal(error: ValidationError, *prefix: str) -> InvalidRequest:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [
        {"field": ".".join(map(str, (*prefix, *item["loc"]))) or "request", "problem": problem(item["msg"])}
        for item in problems
    ]
    message = "; ".join(f"{item['field']}: {item['problem']}" for item in fields[:5])
    return InvalidRequest(message, {"fields": fields[:50]})
