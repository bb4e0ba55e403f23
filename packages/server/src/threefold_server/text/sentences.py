"""Splits text at sentence ends, else at white space, else between two characters as readers see them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from threefold.graphemes import boundary_after

Ends = Callable[[str], Iterator[int]]

# A full stop ends a sentence only before white space (not in 3.5 or a.py); CJK ones need no white space.
_SENTENCE_END = re.compile(r"""[.!?…؟।۔]["'”’»)\]]*\s+|[。！？｡][」』”’）]*\s*|\n\s*""")
_ABBREVIATION = re.compile(
    r"(?<!\w)(?:[A-Z]|\d{1,2}|[DdMS]r|Mrs|Ms|[Pp]rof|St|No|Nr|vs|ca|approx|e\.g|i\.e|z\.B|[ap]\.m)\.\Z"
)
_ABBREVIATION_CHARS = 8
_SPACE = re.compile(r"\s+")
_ATOM = re.compile(r"\w{1,100}|\W{1,20}")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of `text` with the white space after them. Joined, they equal `text`."""
    return _slices(text, _sentence_ends(text))


def pack(text: str, limit: int, measure: Callable[[str], int]) -> Iterator[str]:
    """Yield `text` in parts that measure at most `limit`, cut at the widest boundary that allows it."""
    return _pack(text, limit, measure, (_sentence_ends, _word_ends, _atom_ends))


def _pack(text: str, limit: int, measure: Callable[[str], int], boundaries: tuple[Ends, ...]) -> Iterator[str]:
    part: list[str] = []  # joined once: a part may have any number of pieces that measure 0
    used = 0
    for piece in _slices(text, boundaries[0](text)):
        size = measure(piece)
        if part and used + size > limit:
            yield "".join(part)
            part, used = [], 0
        if size > limit and boundaries[1:]:
            yield from _pack(piece, limit, measure, boundaries[1:])
        else:
            part.append(piece)
            used += size
    if part:
        yield "".join(part)


def _slices(text: str, ends: Iterator[int]) -> Iterator[str]:
    start = 0
    for end in ends:
        safe = boundary_after(text, end)
        if safe > start:
            yield text[start:safe]
            start = safe
    if start < len(text):
        yield text[start:]


def _sentence_ends(text: str) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(text):
        stop = match.start() + 1
        if not _ABBREVIATION.search(text, max(0, stop - _ABBREVIATION_CHARS), stop):
            yield match.end()


def _word_ends(text: str) -> Iterator[int]:
    return (match.end() for match in _SPACE.finditer(text))


def _atom_ends(text: str) -> Iterator[int]:
    return (match.end() for match in _ATOM.finditer(text))
