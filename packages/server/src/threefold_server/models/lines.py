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
ASSISTANT = " (assistant)"
LINE = re.compile(r"\[([1-9][0-9]{0,17})\] (.*?): (.*)")
_ENDS_SPEAKER = re.compile(r":+(?=\s|$)")
_BULLET = re.compile(r"^(?:[-*•–>#]+|\d{1,2}[.)])\s+")


def label(turn: DigestTurn) -> str:
    """Return who spoke, as a line names it. A colon before a space ends the speaker, so a name has none: nobody can
    pose as another."""
    named = head(" ".join(turn.speaker.split()), MAX_SPEAKER_CHARS)
    speaker = _ENDS_SPEAKER.sub("", named) or turn.role
    if turn.role == "tool":
        return speaker + TOOL
    return speaker + ASSISTANT if turn.role == "assistant" and speaker != "assistant" else speaker


def may_give_rules(speaker: str) -> bool:
    """Tell whether somebody, by the name in a line, may state a standing rule: a person may, not an assistant, not a
    tool, and not what is only said to have been said."""
    return not speaker.endswith((TOOL, ASSISTANT)) and speaker not in ("", "assistant", "tool")


def unsaid(text: str) -> str:
    """Return text that nobody is known to have said, so that none of its lines reads as one that somebody said."""
    return "\n".join(f"- {line}" if LINE.fullmatch(line.strip()) else line for line in text.split("\n"))


def parts(text: str) -> Iterator[str]:
    """Yield the sentences of `text`, each on one line and without its bullet; a very long one in pieces."""
    for sentence in sentences(text):
        for piece in pack(sentence, MAX_LINE_CHARS, len):
            if part := _BULLET.sub("", " ".join(piece.split())):
                yield part


def same_words(text: str) -> str:
    """What makes two statements the same: their words, whatever the case and the final stop."""
    return text.casefold().rstrip(" .!…。！")
