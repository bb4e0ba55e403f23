"""Splits long texts into passages that an embedder can read whole. Pure."""

from __future__ import annotations

from threefold_server.text.sentences import pack
from threefold_server.text.wordpiece import count_pieces

PASSAGE_PIECES = 200
"""Word pieces of a passage. MiniLM reads 256; the rest is for its two markers and the speaker's name."""
MAX_PASSAGES = 64


def split_passages(text: str) -> list[str]:
    """Return `text` unchanged if it fits, else in passages of about 200 word pieces; an empty list for a blank text.

    There are at most 64 passages (12,800 pieces, about 50,000 characters of English). Of a longer text, 64 evenly
    spaced ones are kept, the first and the last among them. The lexical index still contains all of its words.
    """
    if not text.strip():
        return []
    passages = list(pack(text, PASSAGE_PIECES, count_pieces))
    if len(passages) == 1:
        return passages
    passages = [passage.strip() for passage in passages if passage.strip()]
    return spread(passages, MAX_PASSAGES)


def spread(items: list[str], limit: int) -> list[str]:
    """Return at most `limit` of `items`, evenly spaced, the first and the last among them."""
    if len(items) <= limit:
        return items
    return [items[i * (len(items) - 1) // (limit - 1)] for i in range(limit)]
