"""Long texts as passages that an embedder reads whole."""

from __future__ import annotations

from threefold_server.text.sentences import pack
from threefold_server.text.wordpiece import count_pieces

PASSAGE_PIECES = 200
"""MiniLM reads 256 word pieces: this leaves room for its two marks and for the speaker's name before each passage."""
MAX_PASSAGES = 64


def split_passages(text: str) -> list[str]:
    """Return `text` as it is where it fits, else passages of about 200 word pieces; none for a blank text.

    At most 64 passages (12,800 pieces, some 50,000 characters of English). Of a longer text, 64 passages spread
    evenly from its first to its last are kept: every part is near one of them, and words are found in all of it
    by the lexical index.
    """
    if not text.strip():
        return []
    passages = list(pack(text, PASSAGE_PIECES, count_pieces))
    if len(passages) == 1:
        return passages
    passages = [passage.strip() for passage in passages if passage.strip()]
    return spread(passages, MAX_PASSAGES)


def spread(items: list[str], most: int) -> list[str]:
    """Return at most `most` of `items`, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]
