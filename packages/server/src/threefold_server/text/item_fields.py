"""The texts of an item that are searched by meaning: paths into a JSON value. Pure.

Examples of paths: `a.b`, `list[0]`, `list[-1]`, `list[*].name`, `*`, `{title,body}`; `$` is the whole value.

The caller supplies both paths and value, so the work is limited. Above a limit `InvalidRequest` is raised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, cast

from threefold.errors import InvalidRequest
from threefold.graphemes import head
from threefold_server.text.indexed import own_words
from threefold_server.text.passages import MAX_PASSAGES, split_passages, spread
from threefold_server.text.redaction import Redact

WHOLE = "$"

MAX_STEPS = 64
"""Most steps of one path; values are not nested more deeply."""
MAX_ROUTES = 100
"""Most ways through the choices of one path: `{a,b}{c,d}` has 4."""
MAX_NODES = 2_000_000
"""Most values that the paths of one request may visit, about 1 s of work. A value of 4 MB has at most 2,000,000."""
MAX_CHARS = 40_000_000
"""Most characters that the paths of one request may select: more than a request has, so that each may be read once."""

_STEP = re.compile(r"\[(?P<index>\*|-?\d{1,9})\]|\{(?P<choice>[^{}]*)\}|(?P<name>[^.\[\]{}]+)")

Step = str | int
Route = tuple[Step, ...]
"""One way through a value: names, indices, `*` for all values, `[*]` for all items of a list."""
EVERY_VALUE, EVERY_ITEM = "*", "[*]"


class Work:
    """The work that the paths of one request may still do."""

    def __init__(self) -> None:
        self._nodes, self._chars = MAX_NODES, MAX_CHARS

    def visit(self, nodes: int = 1) -> None:
        """Count visited values."""
        self._nodes -= nodes
        if self._nodes < 0:
            raise _refused(f"the paths visit more than {MAX_NODES:,} values; name fewer or narrower paths")

    def read(self, text: str) -> None:
        """Count the characters of a selected text."""
        self._chars -= len(text)
        if self._chars < 0:
            raise _refused(f"the paths select more than {MAX_CHARS:,} characters; name fewer or narrower paths")


def item_passages(value: dict[str, Any], fields: Sequence[str], redact: Redact, work: Work | None = None) -> list[str]:
    """Return the texts of a value that are embedded; long ones are split into passages.

    Args:
        work: Shared by all items of a request; a new one by default.

    Raises:
        InvalidRequest: A path or the work exceeds a limit.
    """
    work = work or Work()
    found = dict.fromkeys(text for path in fields for text in texts_at(value, path, work))
    texts = dict.fromkeys(own_words(text, redact).strip() for text in found)
    parts = [part for text in texts for part in split_passages(text) if any(map(str.isalnum, part))]
    return spread(parts, MAX_PASSAGES)


def stored_passages(value: str, fields: str, redact: Redact) -> list[str]:
    """Return the passages of a stored item, whose value and fields are JSON.

    The list is empty for an item above the limits, which an earlier version may have accepted.
    """
    try:
        return item_passages(json.loads(value), json.loads(fields), redact)
    except InvalidRequest:
        return []


def texts_at(value: Any, path: str, work: Work | None = None) -> list[str]:
    """Return the texts that a path selects; an empty list if the path does not exist."""
    work = work or Work()
    texts: list[str] = []
    for route in routes(path):
        for found in _follow(value, route, work):
            if text := readable(found, work):
                work.read(text)
                texts.append(text)
    return texts


def routes(path: str) -> list[Route]:
    """Return every distinct route that a path describes, in order."""
    if path == WHOLE:
        return [()]
    steps = list(_STEP.finditer(path))
    if len(steps) > MAX_STEPS:
        raise _refused(f"{_shown(path)} has {len(steps)} steps; at most {MAX_STEPS} are allowed")
    choices = [_choices(step) for step in steps]
    count = prod(map(len, choices))
    if count > MAX_ROUTES:
        raise _refused(f"{_shown(path)} expands to {_at_most(count)} paths; at most {MAX_ROUTES} are allowed")
    expanded = dict.fromkeys(tuple(step for part in parts for step in part) for parts in product(*choices))
    if any(len(route) > MAX_STEPS for route in expanded):
        raise _refused(f"{_shown(path)} has a choice with more than {MAX_STEPS} steps")
    return list(expanded)


def readable(value: Any, work: Work) -> str:
    """Return a value as text without JSON's punctuation, which would blur its meaning."""
    work.visit()
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return "\n".join(f"{name}: {text}" for name in fields if (text := readable(fields[name], work)))
    if isinstance(value, list):
        return ", ".join(text for item in cast(list[Any], value) if (text := readable(item, work)))
    return "" if value is None else str(value)


def _choices(step: re.Match[str]) -> list[Route]:
    if step["choice"] is None:
        return [(_simple(step),)]
    options = [tuple(map(_simple, _STEP.finditer(path.strip()))) for path in step["choice"].split(",")]
    return list(dict.fromkeys(options))


def _simple(step: re.Match[str]) -> Step:
    if step["index"] is None:
        return step["name"]
    return EVERY_ITEM if step["index"] == "*" else int(step["index"])


def _follow(value: Any, route: Route, work: Work) -> list[Any]:
    found = [value]
    for step in route:
        work.visit(len(found))
        found = [inner for outer in found for inner in _take(outer, step)]
    return found


def _take(value: Any, step: Step) -> Iterator[Any]:
    if isinstance(value, list):
        yield from _of_list(cast(list[Any], value), step)
    elif isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        if step == EVERY_VALUE:
            yield from fields.values()
        elif isinstance(step, str) and step != EVERY_ITEM and step in fields:
            yield fields[step]


def _of_list(items: list[Any], step: Step) -> Iterator[Any]:
    if step in (EVERY_VALUE, EVERY_ITEM):
        yield from items
    elif isinstance(step, int) and -len(items) <= step < len(items):
        yield items[step]


def _shown(path: str) -> str:
    return repr(path if len(path) <= 60 else f"{head(path, 60)}…")


def _at_most(count: int) -> str:
    return f"{count:,}" if count < 10**12 else "more than 10^12"


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(f"index: {problem}", {"field": "index"})
