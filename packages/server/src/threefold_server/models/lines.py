"""One line of a digest, `[turn] speaker: words`: how it is written, read, and cut from what was said."""

from __future__ import annotations

import re
from collections.abc import Iterator

from threefold.graphemes import head
from threefold_server.models.ports import DigestTurn
from threefold_server.text.sentences import pack, sentences

MAX_LINE_CHARS = 400
MAX_SPEAKER_CHARS = 80

TOOL = " (tool)"
LINE = re.compile(r"\[([1-9][0-9]{0,17})\] (.*?): (.*)")
_BULLET = re.compile(r"^(?:[-*•–>#]+|\d{1,2}[.)])\s+")


def label(turn: DigestTurn) -> str:
    """Who spoke, as a line names it. ": " ends the speaker, so that none can pose as another."""
    speaker = head(" ".join(turn.speaker.split()).replace(": ", " "), MAX_SPEAKER_CHARS) or turn.role
    return speaker + TOOL if turn.role == "tool" else speaker


def parts(text: str) -> Iterator[str]:
    """Yield the sentences of `text`, each on one line and without its bullet; a very long one in pieces."""
    for sentence in sentences(text):
        for piece in pack(sentence, MAX_LINE_CHARS, len):
            if part := _BULLET.sub("", " ".join(piece.split())):
                yield part


def same_words(text: str) -> str:
    """What makes two statements the same: their words, whatever the case and the final stop."""
    return text.casefold().rstrip(" .!…。！")
