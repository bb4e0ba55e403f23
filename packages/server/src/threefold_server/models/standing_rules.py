"""Standing rules and refusals in a digest: word for word what somebody said, whatever a model makes of the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from threefold_server.models.cues import is_rule
from threefold_server.models.lines import LINE, label, may_give_rules, parts, same_words
from threefold_server.models.ports import DigestTurn

MAX_RULES_PER_TURN = 24
"""One pasted document must not push out all that was said before it."""

# Two patterns: one with both wildcards took quadratic time for a reply that repeats the middle.
_WITHDRAWN = re.compile(r"withdrawn: \[(\d{1,18})\] ", re.IGNORECASE)
_WITHDRAWN_BY = re.compile(r'" by \[(\d{1,18})\]\W*\Z', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """One statement with its turn and its speaker."""

    seq: int
    speaker: str
    text: str

    def __str__(self) -> str:
        return f'[{self.seq}] {self.speaker}: "{self.text}"'

    def says(self, other: Rule) -> bool:
        """True where this one holds all that the other does."""
        return self.speaker == other.speaker and same_words(other.text) in same_words(self.text)


@dataclass(frozen=True)
class Reply:
    """A model's digest, taken apart: what it quotes as rules, what it says was taken back and where, and the rest."""

    quotes: list[Rule]
    withdrawn: list[tuple[Rule, int]]
    narrative: str


def read_reply(text: str) -> Reply:
    """Take a model's digest apart, line by line."""
    reply = Reply([], [], "")
    rest: list[str] = []
    for line in map(str.strip, text.split("\n")):
        if withdrawn := _withdrawal(line):
            reply.withdrawn.append(withdrawn)
        elif quote := _quote(line):
            reply.quotes.append(quote)
        else:
            rest.append(line)
    return Reply(reply.quotes, reply.withdrawn, "\n".join(rest).strip())


def standing_rules(prior: str, turns: Sequence[DigestTurn], reply: Reply) -> list[Rule]:
    """The rules after `turns`, oldest first: those of the digest before, those that the model quotes as they were
    said, and those whose words give them away; but none that its own speaker has taken back."""
    known = list(_rules_of_digest(prior))
    stated = [quote for quote in reply.quotes if _is_said(quote, turns)]
    heard = [rule for turn in turns for rule in _rules_of_turn(turn)]
    taken_back = [rule for rule, seq in reply.withdrawn if _may_withdraw(rule, seq, turns)]
    kept: list[Rule] = []
    for rule in [*known, *stated, *heard]:
        if not any(other.says(rule) for other in (*taken_back, *kept)):
            kept.append(rule)
    return sorted(kept, key=lambda rule: rule.seq)


def _withdrawal(line: str) -> tuple[Rule, int] | None:
    """The rule that a line says was taken back, and the turn that took it back."""
    start, end = _WITHDRAWN.match(line), _WITHDRAWN_BY.search(line)
    if start is None or end is None:
        return None
    speaker, quoted, words = line[start.end() : end.start()].partition(': "')
    return (Rule(int(start[1]), speaker, words), int(end[1])) if quoted else None


def _quote(line: str) -> Rule | None:
    found = LINE.fullmatch(line)
    quoted = found is not None and len(found[3]) > 2 and found[3][0] == found[3][-1] == '"'
    return Rule(int(found[1]), found[2], found[3][1:-1]) if found and quoted else None


def _rules_of_digest(digest: str) -> Iterator[Rule]:
    """What a digest before quotes; of one by the built-in summarizer, which does not quote, what looks like a rule."""
    for line in digest.split("\n"):
        found = LINE.fullmatch(line)
        quote = _quote(line)
        if quote and may_give_rules(quote.speaker):
            yield quote
        elif found and not quote and is_rule(found[3]) and may_give_rules(found[2]):
            yield Rule(int(found[1]), found[2], found[3])


def _rules_of_turn(turn: DigestTurn) -> Iterator[Rule]:
    if may_give_rules(label(turn)):
        rules = (Rule(turn.seq, label(turn), part) for part in parts(turn.text) if is_rule(part))
        yield from islice(rules, MAX_RULES_PER_TURN)


def _is_said(quote: Rule, turns: Sequence[DigestTurn]) -> bool:
    """Whether that person said these words in that turn. What a tool or an assistant said is nobody's rule."""
    words = " ".join(quote.text.split())
    return any(
        turn.seq == quote.seq
        and label(turn) == quote.speaker
        and may_give_rules(quote.speaker)
        and words in " ".join(turn.text.split())
        for turn in turns
    )


def _may_withdraw(rule: Rule, seq: int, turns: Sequence[DigestTurn]) -> bool:
    """Only whoever stated a rule takes it back, later and in person."""
    return any(
        turn.seq == seq > rule.seq and label(turn) == rule.speaker and may_give_rules(rule.speaker) for turn in turns
    )
