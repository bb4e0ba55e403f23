"""The block that a model reads, within a token budget: digest, memories and window. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from threefold.contract import DigestView, Dropped, RecalledMemory, SeqRange, TokenUse, Turn
from threefold.render import block_lines, digest_lines, join_block, memory_line, turn_line
from threefold.turn_groups import SMALLEST_CUT, Cut, fit_window, give_up_oldest, newest_user_turn

TIER_SHARE = 0.3
"""Largest share of the budget for the digest, and the same again for the memories. The window gets the rest."""

Count = Callable[[str], int]


@dataclass
class Assembled:
    """A block, what is in it, and what did not fit."""

    block: str
    window: list[Turn]
    tokens: TokenUse
    dropped: list[Dropped]


@dataclass
class _Draft:
    """The parts of a block with their token counts."""

    digest: list[str] = field(default_factory=list[str])
    digest_tokens: int = 0
    memories: list[tuple[str, int, RecalledMemory]] = field(default_factory=list[tuple[str, int, RecalledMemory]])
    window: list[Turn] = field(default_factory=list[Turn])

    @property
    def memory_tokens(self) -> int:
        return sum(tokens for _, tokens, _ in self.memories)

    def block(self, count: Count) -> tuple[str, int]:
        """Return the block and its tokens."""
        turns = [turn_line(turn) for turn in self.window]
        memories = [line for line, _, _ in self.memories]
        digest = ["\n".join(self.digest)] if self.digest else []  # one text: `count_lines` is wrong before blank lines
        return join_block(self.digest, memories, turns), count_lines(block_lines(digest, memories, turns), count)


def assemble(
    digest: DigestView | None,
    memories: Sequence[RecalledMemory],
    turns: Sequence[Turn],
    budget: int,
    count: Count,
    cut: Cut,
) -> Assembled:
    """Fit the tiers into a token budget.

    Args:
        turns: Candidates for the window, oldest first.
        budget: Most tokens of the rendered block; it is never exceeded.
        count: Counts the tokens of a text.
        cut: Cuts a text to a number of tokens.
    """
    share = int(budget * TIER_SHARE)
    draft = _Draft()
    dropped: list[Dropped] = []
    if digest is not None:
        draft.digest, draft.digest_tokens = _fit_digest(digest, share, count, cut)
        if not draft.digest:
            dropped.append(Dropped(tier="medium_term", id=str(digest.version), tokens=draft.digest_tokens))
            draft.digest_tokens = 0
    draft.memories, lost = _fit_memories(memories, share, count, cut)
    fence = count(join_block([], ["-"], ["-"]))  # with headings, measured with lines of one character
    taken = fence + draft.digest_tokens + draft.memory_tokens
    draft.window = fit_window(turns, budget - taken, _turn_cost(count), cut)
    block, used, given_up = _shrink(draft, digest, budget, count)
    by_tier = {"medium_term": draft.digest_tokens, "long_term": draft.memory_tokens}
    by_tier["short_term"] = max(0, used - sum(by_tier.values()))  # including the fence
    return Assembled(
        block, draft.window, TokenUse(budget=budget, used=used, by_tier=by_tier), dropped + lost + given_up
    )


def find_gap(digest: DigestView | None, window: Sequence[Turn], last_seq: int) -> SeqRange | None:
    """Return the range of turns that neither digest nor window shows; None if there is no gap."""
    first = digest.upto_seq + 1 if digest else 1
    last = _before(window) if window else last_seq
    return SeqRange(from_seq=first, upto_seq=last) if first <= last else None


def _before(window: Sequence[Turn]) -> int:
    """Return the sequence number before the window.

    If turns are missing after a leading newest user turn, count from the second turn.
    """
    apart = len(window) > 1 and window[1].seq > window[0].seq + 1 and window[0].id == _asked(window)
    return window[1 if apart else 0].seq - 1


def _asked(window: Sequence[Turn]) -> str | None:
    asked = newest_user_turn(window)
    return asked.id if asked else None


def guaranteed_window(turns: Sequence[Turn], budget: int, count: Count, cut: Cut) -> list[Turn]:
    """Return the turns that fit the window even if digest and memories use their whole shares.

    The caller leaves these turns out of the memories.
    """
    return fit_window(turns, int(budget * (1 - 2 * TIER_SHARE)), _turn_cost(count), cut)


def count_lines(lines: Sequence[str], count: Count) -> int:
    """Return the tokens of lines of a block, joined.

    cl100k never joins a line's end with the first character of the next line, unless that is white space. So the counts
    of the lines add up, and the count of a line can be used again in later blocks.
    """
    return sum(count(f"{line}\n") for line in lines[:-1]) + sum(map(count, lines[-1:]))


def _fit_digest(digest: DigestView, share: int, count: Count, cut: Cut) -> tuple[list[str], int]:
    """Return the digest's lines, cut to the share, and their tokens; no lines if not even a part fits."""
    lines = digest_lines(digest)
    needed = count("\n".join(lines)) + 1
    if needed <= share:
        return lines, needed
    heading = needed - count(digest.text)
    shorter = digest.model_copy(update={"text": cut(digest.text, max(0, share - heading))})
    lines = digest_lines(shorter)
    tokens = count("\n".join(lines)) + 1
    return (lines, tokens) if shorter.text and tokens <= share else ([], needed)


def _fit_memories(
    memories: Sequence[RecalledMemory], share: int, count: Count, cut: Cut
) -> tuple[list[tuple[str, int, RecalledMemory]], list[Dropped]]:
    """Return the lines that fit, in order of rank, and what was dropped.

    A memory that needs more than half of the share is cut to a third of it.
    """
    kept: list[tuple[str, int, RecalledMemory]] = []
    dropped: list[Dropped] = []
    left = share
    for memory in memories:
        line = memory_line(memory)
        tokens = count(line) + 1
        if tokens > share // 2 and share >= SMALLEST_CUT * 3:
            line = memory_line(memory.model_copy(update={"text": cut(memory.text, share // 3)}))
            tokens = count(line) + 1
        if tokens <= left:
            kept.append((line, tokens, memory))
            left -= tokens
        else:
            dropped.append(_dropped(memory, tokens))
    return kept, dropped


def _turn_cost(count: Count) -> Callable[[Turn], int]:
    """Return a function that returns the tokens of a turn's line: its stored tokens plus those of the head of the line.

    A head is counted once per speaker and day. The line of a shortened turn is counted directly, because its stored
    tokens are those of the full text.
    """
    heads: dict[object, int] = {}

    def cost(turn: Turn) -> int:
        if turn.cut:
            return count(turn_line(turn)) + 1
        key = (turn.role, turn.kind, turn.name, turn.created_at.date())
        if key not in heads:
            heads[key] = count(turn_line(turn.model_copy(update={"content": ""}))) + 1
        return heads[key] + turn.tokens

    return cost


def _shrink(draft: _Draft, digest: DigestView | None, budget: int, count: Count) -> tuple[str, int, list[Dropped]]:
    """Return the block, its tokens, and what was dropped to fit the budget.

    The block may count more than the sum of its lines. Then these are dropped until it fits: the oldest turns, the last
    memories, the newest group, the newest user turn, the digest.
    """
    dropped: list[Dropped] = []
    while True:
        block, used = draft.block(count)
        if used <= budget:
            return block, used, dropped
        if len(smaller := give_up_oldest(draft.window, used - budget)) < len(draft.window):
            draft.window = smaller
        elif draft.memories:
            _, tokens, memory = draft.memories.pop()
            dropped.append(_dropped(memory, tokens))
        elif draft.window:
            asked = newest_user_turn(draft.window)
            draft.window = [] if asked is None or len(draft.window) == 1 else [asked]
        else:
            assert digest is not None
            dropped.append(Dropped(tier="medium_term", id=str(digest.version), tokens=draft.digest_tokens))
            draft.digest, draft.digest_tokens = [], 0


def _dropped(memory: RecalledMemory, tokens: int) -> Dropped:
    return Dropped(tier="shared" if memory.shared else "long_term", id=memory.id, tokens=tokens)
