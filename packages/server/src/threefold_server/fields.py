"""The texts of an item that are found by meaning: paths into a JSON value. Pure.

`a.b`, `list[0]`, `list[-1]`, `list[*].name`, `*`, `{title,body}`; `$` is the whole value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from threefold_server.indexing import own_words
from threefold_server.models.passages import MAX_PASSAGES, split_passages, spread
from threefold_server.redaction import Redact

WHOLE = "$"

_STEP = re.compile(r"\[(?P<index>\*|-?\d{1,9})\]|\{(?P<choice>[^{}]*)\}|(?P<name>[^.\[\]{}]+)")


def item_passages(value: dict[str, Any], fields: Sequence[str], redact: Redact) -> list[str]:
    """What an embedder reads of a value: its indexed texts, long ones in parts."""
    texts = dict.fromkeys(own_words(text, redact).strip() for path in fields for text in texts_at(value, path))
    parts = [part for text in texts for part in split_passages(text) if any(map(str.isalnum, part))]
    return spread(parts, MAX_PASSAGES)


def texts_at(value: Any, path: str) -> list[str]:
    """The texts that a path leads to; none where it leads nowhere."""
    steps = [] if path == WHOLE else list(_STEP.finditer(path))
    return [text for found in _follow(value, steps) if (text := readable(found))]


def readable(value: Any) -> str:
    """A value in words: JSON's punctuation would only blur its meaning."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return "\n".join(f"{name}: {text}" for name in fields if (text := readable(fields[name])))
    if isinstance(value, list):
        return ", ".join(filter(None, map(readable, cast(list[Any], value))))
    return "" if value is None else str(value)


def _follow(value: Any, steps: Sequence[re.Match[str]]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    for inner in _take(value, steps[0]):
        yield from _follow(inner, steps[1:])


def _take(value: Any, step: re.Match[str]) -> Iterator[Any]:
    if step["choice"] is not None:
        for path in step["choice"].split(","):
            yield from _follow(value, list(_STEP.finditer(path.strip())))
    elif step["index"] is not None:
        yield from _at_index(value, step["index"])
    elif step["name"] == "*":
        yield from _values(value)
    elif isinstance(value, dict) and step["name"] in value:
        yield cast(dict[str, Any], value)[step["name"]]


def _at_index(value: Any, index: str) -> Iterator[Any]:
    if not isinstance(value, list):
        return
    items = cast(list[Any], value)
    if index == "*":
        yield from items
    elif -len(items) <= int(index) < len(items):
        yield items[int(index)]


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from cast(dict[str, Any], value).values()
    elif isinstance(value, list):
        yield from cast(list[Any], value)
