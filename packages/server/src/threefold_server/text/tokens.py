"""Token counts in cl100k_base, from packaged ranks: no download, and no failure on any text."""

from __future__ import annotations

import base64
import threading
from functools import cache
from typing import TYPE_CHECKING

from threefold.graphemes import boundary_after, boundary_before
from threefold_server.text.packaged import read_packaged

if TYPE_CHECKING:
    import tiktoken

PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_loading = threading.Lock()


def count_tokens(text: str) -> int:
    """Return the number of cl100k tokens of `text`; markers such as <|endoftext|> count as plain text."""
    return len(_encoding().encode_ordinary(text))


def head_and_tail(text: str, budget: int, full: int | None = None) -> str:
    """Return `text` cut to at most `budget` tokens: head, a mark with its full length, tail.

    Args:
        full: The full length in tokens, if `text` itself is a part; by default that of `text`.
    """
    tokens = _encoding().encode_ordinary(text)
    if len(tokens) <= budget:
        return text
    mark = f"\n[… cut, {full or len(tokens):,} tokens in full …]\n"
    room = budget - count_tokens(mark)
    if room < 2:
        return "…" if budget >= count_tokens("…") else ""
    return _fit(text, tokens, mark, room, budget)


def _fit(text: str, tokens: list[int], mark: str, room: int, budget: int) -> str:
    """Return head, mark and tail. Joined, they may count a few tokens more than apart, so the sum is checked."""
    while True:
        head = text[: boundary_before(text, len(_decode(tokens[: (room + 1) // 2])))]
        tail = text[boundary_after(text, len(text) - len(_decode(tokens[len(tokens) - room // 2 :]))) :]
        excess = count_tokens(head + mark + tail) - budget
        if excess <= 0:
            return head + mark + tail
        room = max(0, room - excess)


def _decode(tokens: list[int]) -> str:
    """Return the text of `tokens` without partial characters at either end."""
    return _encoding().decode_bytes(tokens).decode("utf-8", "ignore")


def _encoding() -> tiktoken.Encoding:
    with _loading:  # `cache` alone would let two threads build it, at 0.1 s and 32 MB each
        return _load()


@cache
def _load() -> tiktoken.Encoding:
    import tiktoken

    lines = (line.split() for line in read_packaged("cl100k_base.tiktoken.gz").splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("cl100k_base", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
