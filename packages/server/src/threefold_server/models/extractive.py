"""The built-in digest: the sentences worth keeping, word for word, each with its speaker and turn. No model call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate, takewhile
from string import punctuation

from anyio import to_thread

from threefold_server.models.cues import RULE, is_rule, salience
from threefold_server.models.lines import LINE, TOOL, label, may_give_rules, parts, same_words, unsaid
from threefold_server.models.ports import DigestTurn
from threefold_server.text.tokens import count_tokens, head_and_tail

MAX_TOKENS = 1_200
MAX_LINES_PER_TURN = 24
"""One pasted document must not push out all that was said before it."""

_BLOB = re.compile(r"(?:data:[\w.+-]+/[\w.+-]+;base64,)?[A-Za-z0-9+/=_-]{60,}(?:\r?\n[A-Za-z0-9+/=_-]+(?=\r?\n|\Z))*")


@dataclass(frozen=True, slots=True)
class _Line:
    """One kept sentence; `seq` is 0 for a line of a digest that another summarizer wrote."""

    seq: int
    speaker: str
    text: str

    def __str__(self) -> str:
        return f"[{self.seq}] {self.speaker}: {self.text}" if self.seq else unsaid(self.text)

    @property
    def key(self) -> tuple[str, str]:
        """What makes two lines the same: the speaker and the words."""
        return self.speaker, same_words(self.text)

    @property
    def salience(self) -> int:
        """Judged from the line alone, so that a line weighs the same in every fold."""
        if may_give_rules(self.speaker) and is_rule(self.text):
            return RULE
        return salience(self.text) - self.speaker.endswith(TOOL)


class ExtractiveSummarizer:
    """Keeps the most salient sentences of a session within `max_tokens`; rules and refusals go last.

    Of equally salient lines the newest stay; of rules, the oldest, since only they are in no window any more.
    """

    name = "extractive-v1"
    prompt = None

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the next digest: lines of `prior` and of `turns` in order of turn, none twice."""
        return await to_thread.run_sync(self._fold, prior or "", turns)

    def _fold(self, prior: str, turns: Sequence[DigestTurn]) -> str:
        unique: dict[tuple[str, str], _Line] = {}
        for line in [*_parse(prior), *(line for turn in turns for line in _select(turn))]:
            unique.setdefault(line.key, line)
        ordered = sorted(unique.values(), key=lambda line: line.seq)
        return "\n".join(_within(ordered, self._max_tokens))


def _parse(digest: str) -> Iterator[_Line]:
    """Yield the lines of a digest; what another summarizer wrote is cut into sentences."""
    for line in digest.split("\n"):
        if found := LINE.fullmatch(line):
            yield _Line(int(found[1]), found[2], found[3])
        else:
            yield from (_Line(0, "", part) for part in parts(line))


def _select(turn: DigestTurn) -> Iterator[_Line]:
    """Yield the lines worth keeping of one turn, in the order they were said."""
    text = _BLOB.sub("[…]", turn.text)
    lines = [_Line(turn.seq, label(turn), part) for part in dict.fromkeys(parts(text)) if not _is_noise(part)]
    scores = [line.salience for line in lines]
    best = nlargest(MAX_LINES_PER_TURN, range(len(lines)), key=scores.__getitem__)
    return (lines[i] for i in sorted(best) if scores[i] >= 0)


def _within(lines: Sequence[_Line], budget: int) -> list[str]:
    """Return the most salient lines that fit, in order; a single one that does not fit is cut."""
    scores = [line.salience for line in lines]
    ranked = sorted(range(len(lines)), key=lambda i: (-scores[i], i if scores[i] == RULE else -i))
    costs = accumulate(count_tokens(f"{lines[i]}\n") for i in ranked)
    kept = [i for i, _ in zip(ranked, takewhile(lambda cost: cost <= budget, costs), strict=False)]
    if ranked and not kept:
        return [" ".join(head_and_tail(str(lines[ranked[0]]), budget).split())]  # the tail must not begin a line
    return [str(lines[i]) for i in sorted(kept)]


def _is_noise(part: str) -> bool:
    """Tell punctuation soup (JSON, tables, ASCII art) and what has no letter or digit from text."""
    symbols = sum(char in punctuation for char in part)
    return 2 * symbols > len(part) - part.count(" ") or not any(map(str.isalnum, part))
