"""The lines of a digest, `[turn] speaker: words`: their pattern, their speakers, and the sentences they are made of."""

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
    """Return the speaker as a line names it.

    A colon before a space ends the speaker, so those colons are removed from the name: a name must not fake another.
    """
    named = head(" ".join(turn.speaker.split()), MAX_SPEAKER_CHARS)
    speaker = _ENDS_SPEAKER.sub("", named) or turn.role
    if turn.role == "tool":
        return speaker + TOOL
    return speaker + ASSISTANT if turn.role == "assistant" and speaker != "assistant" else speaker


def may_give_rules(speaker: str) -> bool:
    """Return True if the speaker named in a line may state a standing rule.

    Only a person may: not an assistant, not a tool, and not a line that reports what somebody else said.
    """
    return not speaker.endswith((TOOL, ASSISTANT)) and speaker not in ("", "assistant", "tool")


def without_speakers(text: str) -> str:
    """Return the text with "- " before each line that looks like "[12] name: ...", so that no line claims a speaker."""
    return "\n".join(f"- {line}" if LINE.fullmatch(line.strip()) else line for line in text.split("\n"))


def parts(text: str) -> Iterator[str]:
    """Yield the sentences of `text`, each on one line and without its bullet. Very long ones are split into pieces."""
    for sentence in sentences(text):
        for piece in pack(sentence, MAX_LINE_CHARS, len):
            if part := _BULLET.sub("", " ".join(piece.split())):
                yield part


def same_words(text: str) -> str:
    """Return the words of a statement without case and final punctuation, for comparing two statements."""
    return text.casefold().rstrip(" .!…。！")
