"""State of sessions by its prefixes: a session's own beside its turns, that of user and app as items."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.adk.sessions import State
from pydantic_core import to_jsonable_python

from threefold import AsyncMemoryClient, InvalidRequest, calls
from threefold.calls import Call
from threefold.checks import checked
from threefold.contract import DataScope, ItemsResponse, PutItem, SearchItems
from threefold.contract.items import MAX_ITEMS

FORMAT = "adk-session/1"
NAMESPACE = ["google-adk", "state"]
"""Holds an item per key, so that sessions which change different keys at once do not undo each other's."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Changes:
    """A change of state as JSON, by whose it is and without prefixes. What is temporary is in none of them."""

    session: Values
    user: Values
    app: Values

    @classmethod
    def of(cls, delta: Values) -> Changes:
        """A state or a delta of ADK; what is no JSON becomes its text, as in ADK's own services."""
        parts: dict[str, dict[str, Any]] = {"": {}, State.USER_PREFIX: {}, State.APP_PREFIX: {}, State.TEMP_PREFIX: {}}
        for key, value in _jsonable(delta).items():
            prefix = next((prefix for prefix in parts if prefix and key.startswith(prefix)), "")
            parts[prefix][key.removeprefix(prefix)] = value
        return cls(parts[""], parts[State.USER_PREFIX], parts[State.APP_PREFIX])

    def shared(self) -> list[Call[ItemsResponse]]:
        """What stores the part that outlives the session."""
        return [*_puts("user", self.user), *_puts("agent", self.app)]


@dataclass(frozen=True)
class Stored:
    """What the service held of a session when it was last read or written: the next append builds on it."""

    revision: int
    state: Values
    created: str = ""
    """Tells two creations apart that ask for the same."""

    @classmethod
    def parse(cls, text: str | None, revision: int) -> Stored | None:
        """From a session's state, which another framework may have written; where only turns were, there is none."""
        if text is None:
            return cls(revision, {})
        try:
            data: Any = json.loads(text)
            return cls(revision, data["state"], data["created"]) if data["format"] == FORMAT else None
        except (ValueError, TypeError, KeyError):
            return None

    def dump(self) -> str:
        """As a session's state."""
        return json.dumps({"format": FORMAT, "created": self.created, "state": self.state}, separators=(",", ":"))

    def after(self, changes: Values) -> Stored:
        """One write later."""
        return Stored(self.revision + 1, {**self.state, **changes}, self.created)


async def shared_state(client: AsyncMemoryClient) -> dict[str, Any]:
    """The state of user and app, with prefixes."""
    user, app = await asyncio.gather(user_state(client), _read(client, "agent"))
    return {
        **{State.APP_PREFIX + key: value for key, value in app.items()},
        **{State.USER_PREFIX + key: value for key, value in user.items()},
    }


async def user_state(client: AsyncMemoryClient) -> dict[str, Any]:
    """The state of the client's user in its app."""
    return await _read(client, "user")


async def _read(client: AsyncMemoryClient, scope: DataScope) -> dict[str, Any]:
    search = SearchItems(op="search", prefix=NAMESPACE, limit=MAX_ITEMS)
    found = await client.items_batch([search], scope=scope)
    return {item.key: item.value["value"] for item in found.results[0].items}


def _jsonable(delta: Values) -> dict[str, Any]:
    try:
        return to_jsonable_python(delta, serialize_unknown=True, bytes_mode="base64")
    except ValueError as error:
        raise InvalidRequest(f"state: must be JSON: {error}") from error


def _puts(scope: DataScope, values: Values) -> Iterator[Call[ItemsResponse]]:
    if values:
        yield calls.items_batch([_put(key, value) for key, value in values.items()], scope=scope)


def _put(key: str, value: Any) -> PutItem:
    return checked(PutItem, op="put", namespace=NAMESPACE, key=key, value={"value": value}, index=False)
