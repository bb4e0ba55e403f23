"""Standing rules and refusals of a digest, kept word for word however a model words the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from threefold_server.models.cues import is_rule
from threefold_server.models.lines import LINE, label, may_give_rules, parts, same_words
from threefold_server.models.ports import DigestTurn

MAX_RULES_PER_TURN = 24
"""Limits what one pasted document can displace from the digest."""

# Two patterns: a single one with both wildcards took quadratic time for a reply that repeats the middle part.
_WITHDRAWN = re.compile(r"withdrawn: \[(\d{1,18})\] ", re.IGNORECASE)
_WITHDRAWN_BY = re.compile(r'" by \[(\d{1,18})\]\W*\Z', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its turn and its speaker."""

    seq: int
    speaker: str
    text: str

    def __str__(self) -> str:
        return f'[{self.seq}] {self.speaker}: "{self.text}"'

    def contains(self, other: Rule) -> bool:
        """Return True if both have the same speaker and this rule contains the words of the other."""
        return self.speaker == other.speaker and same_words(other.text) in same_words(self.text)


@dataclass(frozen=True)
class Reply:
    """The parts of a model's digest: quoted rules, withdrawn rules with the withdrawing turn, and the narrative."""

    quotes: list[Rule]
    withdrawn: list[tuple[Rule, int]]
    narrative: str


def read_reply(text: str) -> Reply:
    """Split a model's digest into its parts, line by line."""
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
    """Return the rules that are in force after `turns`, oldest first.

    These are the rules of the prior digest, rules that the model quotes word for word, and sentences of users that have
    the words of a rule. A rule that its own speaker has withdrawn is left out, and so is one that another contains.
    """
    known = list(_rules_of_digest(prior))
    quoted = [quote for quote in reply.quotes if _is_verbatim(quote, turns)]
    found = [rule for turn in turns for rule in _rules_of_turn(turn)]
    withdrawn = [rule for rule, seq in reply.withdrawn if _may_withdraw(rule, seq, turns)]
    kept: list[Rule] = []
    for rule in [*known, *quoted, *found]:
        if not any(other.contains(rule) for other in (*withdrawn, *kept)):
            kept.append(rule)
    return sorted(kept, key=lambda rule: rule.seq)


def _withdrawal(line: str) -> tuple[Rule, int] | None:
    """Return the withdrawn rule that a line names and the number of the turn that withdrew it; None for other lines."""
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
    """Yield the quoted rules of a digest, and unquoted lines of the built-in summarizer with the words of a rule."""
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


def _is_verbatim(quote: Rule, turns: Sequence[DigestTurn]) -> bool:
    """Return True if the quote is from its speaker in its turn, and the speaker may state rules."""
    words = " ".join(quote.text.split())
    return any(
        turn.seq == quote.seq
        and label(turn) == quote.speaker
        and may_give_rules(quote.speaker)
        and words in " ".join(turn.text.split())
        for turn in turns
    )


def _may_withdraw(rule: Rule, seq: int, turns: Sequence[DigestTurn]) -> bool:
    """Return True if turn `seq` is after the rule and by its speaker, who alone may withdraw it."""
    return any(
        turn.seq == seq > rule.seq and label(turn) == rule.speaker and may_give_rules(rule.speaker) for turn in turns
    )
