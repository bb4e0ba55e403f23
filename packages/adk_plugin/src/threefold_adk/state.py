"""State of ADK by its prefixes: session state is beside the turns, the state of user and app are items."""

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
"""Namespace with one item per key, so that sessions that change different keys do not overwrite each other."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Changes:
    """A change of state as JSON, by owner and without prefixes. Temporary state is left out."""

    session: Values
    user: Values
    app: Values

    @classmethod
    def of(cls, delta: Values) -> Changes:
        """Split a state or a delta of ADK. Values that are not JSON become text, as in ADK's own services."""
        parts: dict[str, dict[str, Any]] = {"": {}, State.USER_PREFIX: {}, State.APP_PREFIX: {}, State.TEMP_PREFIX: {}}
        for key, value in _jsonable(delta).items():
            prefix = next((prefix for prefix in parts if prefix and key.startswith(prefix)), "")
            parts[prefix][key.removeprefix(prefix)] = value
        return cls(parts[""], parts[State.USER_PREFIX], parts[State.APP_PREFIX])

    def shared(self) -> list[Call[ItemsResponse]]:
        """Return the calls that store the state of user and app."""
        return [*_puts("user", self.user), *_puts("agent", self.app)]


@dataclass(frozen=True)
class Stored:
    """The state of a session when it was last read or written; the next append continues it."""

    revision: int
    state: Values
    created: str = ""
    """Random id of the creation, so that two creations with the same state differ."""

    @classmethod
    def parse(cls, text: str | None, revision: int) -> Stored | None:
        """Parse the state of a session.

        A session without state gives an empty state; the state of another framework gives None.
        """
        if text is None:
            return cls(revision, {})
        try:
            data: Any = json.loads(text)
            return cls(revision, data["state"], data["created"]) if data["format"] == FORMAT else None
        except (ValueError, TypeError, KeyError):
            return None

    def dump(self) -> str:
        """Return the state as JSON text."""
        return json.dumps({"format": FORMAT, "created": self.created, "state": self.state}, separators=(",", ":"))

    def after(self, changes: Values) -> Stored:
        """Return the state after a write with these changes."""
        return Stored(self.revision + 1, {**self.state, **changes}, self.created)


async def shared_state(client: AsyncMemoryClient) -> dict[str, Any]:
    """Return the state of user and app, with prefixes."""
    user, app = await asyncio.gather(user_state(client), _read(client, "agent"))
    return {
        **{State.APP_PREFIX + key: value for key, value in app.items()},
        **{State.USER_PREFIX + key: value for key, value in user.items()},
    }


async def user_state(client: AsyncMemoryClient) -> dict[str, Any]:
    """Return the state of the user of a client in its app."""
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
