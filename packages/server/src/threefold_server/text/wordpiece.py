"""BERT's uncased WordPiece in plain Python: the tokenizer of MiniLM, without 35 MB of tokenizer libraries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import islice

from threefold_server.text.packaged import read_packaged

MAX_WORD_CHARS = 100
UNKNOWN, START, END = "[UNK]", "[CLS]", "[SEP]"

# BERT's white space. It drops other ASCII separators (form feed, …) as control characters.
_WORD = re.compile("[^ \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class _Normal(dict[int, str]):
    """Maps a character code to its normal form: lower case, no accents, spaces around punctuation and CJK."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if category.startswith("C") or char == "\ufffd":
            return char if category == "Cn" else ""  # not cached: a million code points are unassigned
        plain = "".join(c for c in unicodedata.normalize("NFD", char) if unicodedata.category(c) != "Mn").lower()
        self[code] = f" {plain} " if _is_own_word(char) or _is_own_word(plain) else plain
        return self[code]


def _is_own_word(char: str) -> bool:
    return len(char) == 1 and (
        char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P") or bool(_CJK.match(char))
    )


_NORMAL = _Normal()


def count_pieces(text: str) -> int:
    """Return the number of word pieces of `text`."""
    return sum(1 for _ in _pieces(text))


def encode(text: str, limit: int) -> list[int]:
    """Return the ids of [CLS], the first word pieces of `text` and [SEP], at most `limit`."""
    vocabulary = _vocabulary()
    return [vocabulary[START], *islice(_pieces(text), limit - 2), vocabulary[END]]


def _pieces(text: str) -> Iterator[int]:
    vocabulary = _vocabulary()
    for match in _WORD.finditer(text):
        for word in match[0].translate(_NORMAL).split():
            yield from _split_word(word, vocabulary)


def _split_word(word: str, vocabulary: dict[str, int]) -> list[int]:
    """Return the longest known pieces from the left, or [UNK] if a part of the word is in no piece."""
    if word in vocabulary:
        return [vocabulary[word]]
    pieces: list[int] = []
    start = 0
    while start < len(word) <= MAX_WORD_CHARS:
        end = _longest(word, start, vocabulary)
        if end == start:
            break
        pieces.append(vocabulary[_piece(word, start, end)])
        start = end
    return pieces if start == len(word) else [vocabulary[UNKNOWN]]


def _longest(word: str, start: int, vocabulary: dict[str, int]) -> int:
    """Return the end of the longest known piece from `start`; `start` itself if there is no such piece."""
    return next((end for end in range(len(word), start, -1) if _piece(word, start, end) in vocabulary), start)


def _piece(word: str, start: int, end: int) -> str:
    return word[start:end] if start == 0 else "##" + word[start:end]


@cache
def _vocabulary() -> dict[str, int]:
    return {piece: index for index, piece in enumerate(read_packaged("vocab.txt").decode().splitlines())}
