"""The requests of the speed benchmark, with generated texts."""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import uuid4

from load import Make
from seeding import AGENT, QUERY_WORDS, SESSION, TURN_WORDS, Words

TEXTS = 500
EXCHANGES = 40
"""Writes to one session before a client continues with another user's: 80 turns, as in each session of the store."""


class Talk:
    """Requests to a store with a number of users."""

    def __init__(self, users: int) -> None:
        words = Words(seed=2)
        self._users = users
        self._texts = [words.text(TURN_WORDS) for _ in range(TEXTS)]
        self._queries = [words.text(QUERY_WORDS) for _ in range(TEXTS)]

    def maker(self, operation: str, run: str) -> Make:
        """Return the requests of one run of a load; each client uses its own sessions, and new ones in each run."""
        match operation:
            case "write":
                return lambda client, sent: self._write(
                    f"w{(client + 32 * (sent // EXCHANGES)) % self._users}", f"{run}-{client}"
                )
            case "write long":
                return lambda client, sent: self._write("long0", SESSION)
            case "recall":
                return lambda client, sent: self._recall(self._user(), "medium_term", "long_term")
            case "window":
                return lambda client, sent: self._recall(self._user())
            case _:
                return lambda client, sent: self._recall("long0")

    def query(self) -> str:
        """Return a query."""
        return random.choice(self._queries)

    def _user(self) -> str:
        return f"u{random.randrange(self._users)}"

    def _write(self, user: str, session: str) -> bytes:
        said = [
            {"role": role, "content": random.choice(self._texts), "id": uuid4().hex} for role in ("user", "assistant")
        ]
        return request("/v1/write", user, {"session_id": session, "turns": said})

    def _recall(self, user: str, *more: str) -> bytes:
        asked = {"query": self.query(), "session_id": SESSION, "include": ["short_term", *more]}
        return request("/v1/recall", user, asked)


def identity(user: str) -> dict[str, str]:
    """Return the headers that name a user."""
    return {"X-Threefold-User": user, "X-Threefold-Agent": AGENT}


def request(path: str, user: str, body: dict[str, Any]) -> bytes:
    """Return a request as bytes."""
    content = json.dumps(body).encode()
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(content))}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (headers | identity(user)).items())]
    return "\r\n".join([*lines, "", ""]).encode() + content
