"""Text analysis: the terms of lexical search, the texts that are indexed, and the speakers that a query names."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import Stemmer

MAX_TERM_CHARS = 64
"""Most characters of a term: a blob without spaces must fit a B-tree entry of Postgres (2,704 bytes)."""

MAX_QUERY_TERMS = 64
"""Most distinct terms of a query."""

PIECE_CHARS, STEMS_AT_ONCE = 40_000, 5_000
"""Size of one piece of work, about 5 ms that no other thread can interrupt."""

# Only words without a topic: articles, pronouns, auxiliaries, question words, small talk. The usual longer lists
# (after, before, more, few, off ...) cost a point of recall@10. German and Spanish words that are words or names in
# another language are left out (die, war, hat, son, con, un): their rarity gives them a low weight anyway.
STOPWORDS = frozenset(
    """
    a an the and or but if of to in on at by for with from as into about than
    i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our ours
    ourselves they them their theirs themselves this that these those
    am is are was were be been being do does did doing have has had having can could would should shall
    who whom whose what which when where why how here there so too just not no nor
    i'm i've i'd i'll you're you've you'd you'll he's he'd he'll she's she'd she'll it's it'd it'll we're we've we'd
    we'll they're they've they'd they'll that's there's here's what's who's where's how's when's why's let's
    aren't can't couldn't didn't doesn't don't hadn't hasn't haven't isn't shouldn't wasn't weren't won't wouldn't
    hi hey hello bye goodbye thanks thank please yes yeah no ok okay oh wow
    auf aus dass dem das der des dich dir ein eine einem einen einer eines es habe haben ich ihr ist mein mich mir
    nicht oder sein sich sie sind und uns von wann warum wer wie wir wird wo zu zum zur
    cual cuando de del donde el ella ellos es esta este fue la las le lo los mi muy nos para pero por porque que
    quien se su sus tu una y yo
    """.split()
)

MONTHS = "January February March April May June July August September October November December".split()

# Scripts without spaces, and Korean, which attaches particles to words. They are split into pairs of characters.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
)
_SPACED = rf"[^\W_{_DENSE}]"
_CHUNK = re.compile(rf"[{_DENSE}]+|{_SPACED}+(?:[-_.@:/+']{_SPACED}+)*")
_WORD = re.compile(rf"{_SPACED}+(?:'(?:s|t|d|m|ll|re|ve)\b)?")
_SPACE = re.compile(r"\s+")
_IS_DENSE = re.compile(f"[{_DENSE}]")
_IS_IDENTIFIER = re.compile(r"[\d@_]")

_VOICING = "\u3099\u309a"  # combining marks that change a Japanese letter into another one

_stem: Callable[[list[str]], list[str]] = Stemmer.Stemmer("english").stemWords  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_stem_lock = threading.Lock()


def terms(text: str) -> list[str]:
    """Return the terms of a text, with repeats.

    Stop words are left out, unless the text has no other words: "To be or not to be" can be saved and found.
    """
    words = _words(text)
    return _stems([word for word in words if word not in STOPWORDS] or words)


def query_terms(query: str) -> list[str]:
    """Return the distinct terms of a query, the most frequent first, at most `MAX_QUERY_TERMS`."""
    return [term for term, _ in Counter(terms(query)).most_common(MAX_QUERY_TERMS)]


def lexical_text(speaker: str | None, created_at: datetime | None, text: str) -> str:
    """Return the text whose terms are indexed. The date in words adds 1.3 points of recall@10."""
    day = f"[{created_at.day} {MONTHS[created_at.month - 1]} {created_at.year}] " if created_at else ""
    return day + dense_text(speaker, text)


def dense_text(speaker: str | None, text: str) -> str:
    """Return the text that is embedded.

    Without the speaker's name dense recall@10 falls from 45 to 29; with a date it loses 1 point.
    """
    return f"{speaker}: {text}" if speaker else text


def speakers_named(query: str, speakers: Iterable[str]) -> frozenset[str]:
    """Return the speakers whose names share at least one word with the query."""
    query_words = set(_stems(_words(query)))
    return frozenset(speaker for speaker in speakers if not query_words.isdisjoint(terms(speaker)))


def _words(text: str) -> list[str]:
    chunks = (chunk for piece in _pieces(text) for chunk in _CHUNK.findall(_fold(piece)))
    return [word[:MAX_TERM_CHARS] for chunk in chunks for word in _split(chunk)]


def _pieces(text: str) -> Iterator[str]:
    """Yield a long text in pieces that end at white space, since code in C holds the interpreter lock."""
    start = 0
    while space := _SPACE.search(text, start + PIECE_CHARS):
        yield text[start : space.end()]
        start = space.end()
    yield text[start:] if start else text


def _split(chunk: str) -> list[str]:
    """Return the words of one chunk; for an identifier (ZX-99, 2.3.1, anna@example.com) its parts and itself."""
    if _IS_DENSE.match(chunk):
        return [chunk[i : i + 2] for i in range(max(1, len(chunk) - 1))]
    words = _WORD.findall(chunk)
    return [*words, chunk] if len(words) > 1 and _IS_IDENTIFIER.search(chunk) else words


def _fold(text: str) -> str:
    """Return a text with case, compatibility forms, apostrophes and accents folded (Jose finds José)."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    letters = filter(_is_no_accent, unicodedata.normalize("NFD", folded))
    return unicodedata.normalize("NFC", "".join(letters))


def _is_no_accent(char: str) -> bool:
    return char in _VOICING or not unicodedata.category(char).startswith("M")


def _stems(words: list[str]) -> list[str]:
    stems: list[str] = []
    for start in range(0, len(words), STEMS_AT_ONCE):
        with _stem_lock:  # a stemmer is not thread safe
            stems += _stem(words[start : start + STEMS_AT_ONCE])
    return stems
