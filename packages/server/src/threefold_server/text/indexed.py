"""What the search index stores of a turn or a fact: passages, their terms, and the texts to embed. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from threefold.render import strip_block
from threefold_server.clock import from_micros
from threefold_server.text.passages import MAX_PASSAGES, split_passages
from threefold_server.text.redaction import Redact
from threefold_server.text.terms import dense_text, lexical_text, terms

# Encoded images and keys contain no words, and 1 MB of them would make 64 meaningless passages.
_BLOB = re.compile(r"(?:data:[\w.+/;=-]*,)?[A-Za-z0-9+/=_-]{200,}")

MAX_UNSEEN = 20_000
"""Most distinct terms that are indexed from outside of a text's passages, the most frequent first.

A text of 1,000,000 characters may have 170,000, and every writer would wait while their rows are stored.
"""


@dataclass(frozen=True, slots=True)
class Passage:
    """One searchable part of a turn or a fact. `text` is for the embedder; `tf` counts the terms."""

    part: int
    speaker: str | None
    text: str
    tf: Counter[str]

    @property
    def length(self) -> int:
        return self.tf.total()


def own_words(content: str, redact: Redact) -> str:
    """Return a text without recalled blocks, secrets and encoded data."""
    return _BLOB.sub(" ", redact(strip_block(content)))


def turn_passages(turn: Any, redact: Redact) -> list[Passage]:
    """Return the passages of a row of `turns`; none for a system prompt, which every session repeats."""
    if turn.role == "system":
        return []
    created_at = from_micros(turn.created_at, turn.utc_offset)
    return _passages(redact(turn.name or turn.role), created_at, own_words(turn.content, redact))


def fact_passages(text: str) -> list[Passage]:
    """Return the passages of a fact, which was redacted when it was saved.

    They lack speaker and date, which would lower the recall of facts.
    """
    return _passages(None, None, text)


def _passages(speaker: str | None, created_at: datetime | None, text: str) -> list[Passage]:
    parts = split_passages(text)
    passages = [
        Passage(part, speaker, dense_text(speaker, passage), Counter(terms(lexical_text(speaker, created_at, passage))))
        for part, passage in enumerate(parts)
        if any(map(str.isalnum, passage))  # an embedder may refuse "...", and no query finds it by words
    ]
    if len(parts) == MAX_PASSAGES:  # only some passages of a longer text are embedded, but all of its words are indexed
        unseen = Counter(terms(text))
        for passage in passages:
            unseen -= passage.tf
        passages[-1].tf.update(dict(unseen.most_common(MAX_UNSEEN)))
    return passages
