"""Cut a text without splitting what a reader sees as one character. Pure.

It follows the rules of Unicode's UAX #29 for extended grapheme clusters, as far as the standard library knows
the characters (`unicodedata.unidata_version`): CR LF, combining and enclosing marks, spacing vowel signs, conjuncts of
Indic scripts, Hangul jamo, flags, skin tones, keycaps, tag sequences, and emoji joined by ZWJ. Where a rule needs a
table that the library lacks, two characters are kept together: a text is cut at fewer positions than Unicode allows,
never at others.
"""

from __future__ import annotations

import unicodedata

MARK = "\n…\n"
"""Replaces the middle of a text."""

LONGEST = 256
"""Most code points of a cluster; a longer run is cut. Stream-safe texts of Unicode have at most 30 marks per letter."""

_ZWJ = "\u200d"
_VIRAMA = 9  # the combining class of signs that join two consonants
_JOINING_CATEGORIES = ("Mn", "Me", "Mc")
_PREPENDED = frozenset(
    "\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3\U00011d46\U00011f02"
)
_PREPENDED_RANGES = ((0x600, 0x605), (0x1193F, 0x11941), (0x11A3A, 0x11A3A), (0x11A84, 0x11A89))
_JOINING = frozenset("\u200c\u200d\u0e33\u0eb3\uff9e\uff9f")
_JOINING_RANGES = ((0x1F3FB, 0x1F3FF), (0xE0020, 0xE007F))
_LEADING, _VOWELS, _TRAILING, _SYLLABLES = (
    ((0x1100, 0x115F), (0xA960, 0xA97C)),
    ((0x1160, 0x11A7), (0xD7B0, 0xD7C6)),
    ((0x11A8, 0x11FF), (0xD7CB, 0xD7FB)),
    ((0xAC00, 0xD7A3),),
)
_FLAGS = ((0x1F1E6, 0x1F1FF),)


def head(text: str, limit: int) -> str:
    """Return the beginning of a text, at most `limit` code points."""
    return text[: boundary_before(text, limit)]


def middle_cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` code points: all of it, or its head and tail with `MARK` between."""
    if len(text) <= limit:
        return text
    half = (limit - len(MARK)) // 2
    if half < 1:
        return head(text, limit)
    return text[: boundary_before(text, half)] + MARK + text[boundary_after(text, len(text) - half) :]


def boundary_before(text: str, at: int) -> int:
    """Return the last position up to `at` where a text may be cut."""
    at = min(max(at, 0), len(text))
    return next((position for position in range(at, max(at - LONGEST, -1), -1) if not _joins(text, position)), at)


def boundary_after(text: str, at: int) -> int:
    """Return the first position from `at` on where a text may be cut."""
    at = min(max(at, 0), len(text))
    positions = range(at, min(at + LONGEST, len(text) + 1))
    return next((position for position in positions if not _joins(text, position)), at)


def _joins(text: str, at: int) -> bool:
    """Return True if the characters on both sides of a position belong together."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300":  # all of Latin
        return before == "\r" and after == "\n"
    return (
        _extends(after)
        or before == _ZWJ
        or before in _PREPENDED
        or _among(before, _PREPENDED_RANGES)
        or _joins_jamo(before, after)
        or _joins_flag(text, at)
        or (unicodedata.category(after) == "Lo" and _follows_virama(text, at))
    )


def _extends(char: str) -> bool:
    return unicodedata.category(char) in _JOINING_CATEGORIES or char in _JOINING or _among(char, _JOINING_RANGES)


def _joins_jamo(before: str, after: str) -> bool:
    if _among(before, _LEADING):
        return _among(after, (*_LEADING, *_VOWELS, *_SYLLABLES))
    return _among(before, (*_VOWELS, *_TRAILING, *_SYLLABLES)) and _among(after, (*_VOWELS, *_TRAILING))


def _joins_flag(text: str, at: int) -> bool:
    """Return True if a position is inside a flag, which is a pair of letters: an odd number of letters is before it."""
    if not (_among(text[at], _FLAGS) and _among(text[at - 1], _FLAGS)):
        return False
    first = at
    while first > 0 and _among(text[first - 1], _FLAGS):
        first -= 1
    return (at - first) % 2 == 1


def _follows_virama(text: str, at: int) -> bool:
    for position in range(at - 1, max(at - LONGEST, -1), -1):
        if unicodedata.combining(text[position]) == _VIRAMA:
            return True
        if not _extends(text[position]):
            return False
    return False


def _among(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(char)
    return any(low <= code <= high for low, high in ranges)
