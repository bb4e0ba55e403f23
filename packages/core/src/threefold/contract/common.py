"""Types, limits and base models that every part of the contract shares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

MAX_ID_CHARS = 512
MAX_CONTENT_CHARS = 1_000_000
MAX_PAYLOAD_CHARS = 4_000_000
MAX_TURNS_PER_WRITE = 1_000
MAX_QUERY_CHARS = 10_000
MAX_FACT_CHARS = 10_000
MAX_METADATA_BYTES = 16_384
MAX_METADATA_DEPTH = 32
MAX_IDS_PER_CALL = 10_000
MAX_PAGE = 1_000

Level = Literal["session", "agent", "user", "store"]
CallerLevel = Literal["session", "agent", "user"]
"""The levels that a caller can be granted; `store` is only for the routes of administrators."""
Visibility = Literal["session", "agent", "user"]
DataScope = Literal["user", "agent"]
"""Who owns a framework's items and threads: the caller's user with its agent, or the agent, for all of its users."""
Role = Literal["user", "assistant", "tool", "system"]
OnConflict = Literal["refuse", "keep"]
TurnKind = Literal["message", "tool_call", "tool_result"]
Origin = Literal["user", "assistant", "tool", "import"]
NotedBy = Literal["assistant", "tool"]
"""Who reports a turn or a fact that the application did not hear itself. It can only lower the trust."""
ScoreTest = Literal["either", "cosine"]
Tier = Literal["short_term", "medium_term", "long_term", "shared"]

Flag = Annotated[bool, Field(strict=True)]
"""true or false. `1` or `"no"` is refused: it may be a mistake, and some flags erase."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # after an even number of backslashes
REPLACEMENT = "\ufffd"


def clean_text(value: object) -> object:
    """Replace NUL and lone surrogates, which no database can store, by U+FFFD: the rule for free text."""
    return _UNSTORABLE.sub(REPLACEMENT, value) if isinstance(value, str) else value


def check_exact(value: object) -> object:
    """Refuse text that cannot be stored exactly: the rule for ids, keys, queries and payloads."""
    if isinstance(value, str) and _UNSTORABLE.search(value):
        raise ValueError("must not contain NUL or a lone surrogate")
    return value


def check_json(value: dict[str, Any], levels: int, size: int) -> dict[str, Any]:
    """Refuse JSON that cannot be stored exactly (NUL, lone surrogates, NaN), that is too deep or too large."""
    if _deeper(value, levels):
        raise ValueError(f"must not be nested more than {levels} levels deep")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"must be JSON: {error}") from None
    check_exact(text)
    if _ESCAPED_NUL.search(text):
        raise ValueError("must not contain NUL")
    if len(text.encode()) > size:
        raise ValueError(f"must not exceed {size} bytes of JSON")
    return value


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = cast(Iterable[Any], value.values() if isinstance(value, dict) else value)
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)


def check_id(value: str) -> str:
    """Refuse blank ids and the wildcard `*`; every other id is opaque and stored unchanged."""
    if not value.strip():
        raise ValueError("must not be blank")
    if value == "*":
        raise ValueError("must not be '*': there are no wildcards")
    return value


def check_moment(value: AwareDatetime) -> AwareDatetime:
    """Refuse times that are outside of the years 1 to 9999 in UTC because of their offset."""
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be within the years 1 to 9999 in UTC") from None
    return value


Id = Annotated[
    str, BeforeValidator(check_exact), Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(check_id)
]
Content = Annotated[str, BeforeValidator(clean_text), Field(max_length=MAX_CONTENT_CHARS)]
Query = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_QUERY_CHARS)]
Payload = Annotated[str, BeforeValidator(check_exact), Field(max_length=MAX_PAYLOAD_CHARS)]
Cursor = Annotated[str, BeforeValidator(check_exact), Field(max_length=2_048)]
Timestamp = Annotated[AwareDatetime, AfterValidator(check_moment)]
PageLimit = Annotated[int, Field(ge=0, le=MAX_PAGE)]


class Request(BaseModel):
    """A request body. Unknown fields are refused, so that a misspelt field or an identity field is an error."""

    model_config = ConfigDict(extra="forbid")


class Response(BaseModel):
    """A response body. Unknown fields are ignored, so that an older client reads a newer service."""

    model_config = ConfigDict(extra="ignore")


class SourceRange(Response):
    """The turns of one session that a memory rests on; both ends are inclusive sequence numbers."""

    session_id: str
    from_seq: int
    upto_seq: int
