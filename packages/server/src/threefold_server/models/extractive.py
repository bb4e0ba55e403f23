"""The built-in summarizer. Without a model, it keeps salient sentences word for word, with their speaker and turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate, takewhile
from string import punctuation

from anyio import to_thread

from threefold_server.models.cues import RULE, is_rule, salience
from threefold_server.models.lines import LINE, TOOL, label, may_give_rules, parts, same_words, without_speakers
from threefold_server.models.ports import DigestTurn
from threefold_server.text.tokens import count_tokens, head_and_tail

MAX_TOKENS = 1_200
MAX_LINES_PER_TURN = 24
"""Limits what one pasted document can displace from the digest."""

_BLOB = re.compile(r"(?:data:[\w.+-]+/[\w.+-]+;base64,)?[A-Za-z0-9+/=_-]{60,}(?:\r?\n[A-Za-z0-9+/=_-]+(?=\r?\n|\Z))*")


@dataclass(frozen=True, slots=True)
class _Line:
    """One sentence of a digest; `seq` is 0 if another summarizer wrote it."""

    seq: int
    speaker: str
    text: str

    def __str__(self) -> str:
        return f"[{self.seq}] {self.speaker}: {self.text}" if self.seq else without_speakers(self.text)

    @property
    def key(self) -> tuple[str, str]:
        """Two lines with the same key say the same."""
        return self.speaker, same_words(self.text)

    @property
    def salience(self) -> int:
        """The weight of the line. It depends on the line only, so that it is the same in every fold."""
        if may_give_rules(self.speaker) and is_rule(self.text):
            return RULE
        return salience(self.text) - self.speaker.endswith(TOOL)


class ExtractiveSummarizer:
    """Keeps the most salient sentences of a session within `max_tokens`; rules and refusals are removed last.

    Among equally salient lines the newest are kept. Among rules the oldest are kept, as newer ones may still be in the
    window.
    """

    name = "extractive-v1"
    prompt = None

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the next digest: lines of `prior` and of `turns` in the order of turns, without duplicates."""
        return await to_thread.run_sync(self._fold, prior or "", turns)

    def _fold(self, prior: str, turns: Sequence[DigestTurn]) -> str:
        unique: dict[tuple[str, str], _Line] = {}
        for line in [*_lines_of_digest(prior), *(line for turn in turns for line in _lines_of_turn(turn))]:
            unique.setdefault(line.key, line)
        ordered = sorted(unique.values(), key=lambda line: line.seq)
        return "\n".join(_within(ordered, self._max_tokens))


def _lines_of_digest(digest: str) -> Iterator[_Line]:
    """Yield the lines of a digest. Text that another summarizer wrote is split into sentences."""
    for line in digest.split("\n"):
        if found := LINE.fullmatch(line):
            yield _Line(int(found[1]), found[2], found[3])
        else:
            yield from (_Line(0, "", part) for part in parts(line))


def _lines_of_turn(turn: DigestTurn) -> Iterator[_Line]:
    """Yield the lines of one turn that are worth keeping, in their order."""
    text = _BLOB.sub("[…]", turn.text)
    lines = [_Line(turn.seq, label(turn), part) for part in dict.fromkeys(parts(text)) if not _is_noise(part)]
    scores = [line.salience for line in lines]
    best = nlargest(MAX_LINES_PER_TURN, range(len(lines)), key=scores.__getitem__)
    return (lines[i] for i in sorted(best) if scores[i] >= 0)


def _within(lines: Sequence[_Line], budget: int) -> list[str]:
    """Return the most salient lines that fit, in order. If not even one fits, return the most salient one, cut."""
    scores = [line.salience for line in lines]
    ranked = sorted(range(len(lines)), key=lambda i: (-scores[i], i if scores[i] == RULE else -i))
    costs = accumulate(count_tokens(f"{lines[i]}\n") for i in ranked)
    kept = [i for i, _ in zip(ranked, takewhile(lambda cost: cost <= budget, costs), strict=False)]
    if ranked and not kept:
        return [" ".join(head_and_tail(str(lines[ranked[0]]), budget).split())]  # the tail must not begin a line
    return [str(lines[i]) for i in sorted(kept)]


def _is_noise(part: str) -> bool:
    """Return True for JSON, tables, ASCII art, and text without a letter or digit."""
    symbols = sum(char in punctuation for char in part)
    return 2 * symbols > len(part) - part.count(" ") or not any(map(str.isalnum, part))
