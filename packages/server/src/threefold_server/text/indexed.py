"""What the search index knows of a turn or a fact: its passages, their terms, and the texts to embed. Pure."""

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

# Encoded images and keys: no words, and one of 1 MB would be 64 meaningless passages.
_BLOB = re.compile(r"(?:data:[\w.+/;=-]*,)?[A-Za-z0-9+/=_-]{200,}")


MAX_UNSEEN = 20_000
"""Distinct terms outside of the passages of one text that are found, the most frequent first: a text of 1,000,000
characters may have 170,000, for whose rows every writer would wait."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One searchable part of a turn or a fact; `text` is for the embedder, `tf` counts the terms."""

    part: int
    speaker: str | None
    text: str
    tf: Counter[str]

    @property
    def length(self) -> int:
        return self.tf.total()


def own_words(content: str, redact: Redact) -> str:
    """What was really said and may be remembered: without blocks that we ourselves recalled, secrets, encoded data."""
    return _BLOB.sub(" ", redact(strip_block(content)))


def turn_passages(turn: Any, redact: Redact) -> list[Passage]:
    """The passages of a row of `turns`. System prompts have none: restated in every session, they would drown talk."""
    if turn.role == "system":
        return []
    said = from_micros(turn.created_at, turn.utc_offset)
    return _passages(redact(turn.name or turn.role), said, own_words(turn.content, redact))


def fact_passages(text: str) -> list[Passage]:
    """The passages of a fact, redacted when it was saved: without speaker and date, which would cost recall here."""
    return _passages(None, None, text)


def _passages(speaker: str | None, said: datetime | None, text: str) -> list[Passage]:
    parts = split_passages(text)
    passages = [
        Passage(part, speaker, dense_text(speaker, passage), Counter(terms(lexical_text(speaker, said, passage))))
        for part, passage in enumerate(parts)
        if any(map(str.isalnum, passage))  # an embedder may refuse "...", and no word finds it
    ]
    if len(parts) == MAX_PASSAGES:  # of a longer text only some passages are embedded; its words are all found
        unseen = Counter(terms(text))
        for passage in passages:
            unseen -= passage.tf
        passages[-1].tf.update(dict(unseen.most_common(MAX_UNSEEN)))
    return passages
