"""The digest written by a chat model: its narrative, below the rules that stand word for word."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate, takewhile

from anyio import to_thread

from threefold_server.models.chat import ChatModel
from threefold_server.models.instructions import Instructions
from threefold_server.models.lines import label, unsaid
from threefold_server.models.ports import DigestTurn, ModelError
from threefold_server.models.standing_rules import Rule, read_reply, standing_rules
from threefold_server.models.wrapping import stray_end
from threefold_server.text.terms import terms
from threefold_server.text.tokens import count_tokens, head_and_tail

DIGEST_TOKENS = 1_200
RULES_SHARE = 0.75
"""Of a digest, for its rules at most: the oldest of them, which are in no window any more."""

LEAST_GROUNDED = 0.2
"""Share of a digest's terms that what was said has too. Of an apology or of echoed instructions it is about none."""

_TURN_NUMBER = re.compile(r"\[(\d{1,9})\]")


class ModelSummarizer:
    """A digest of at most `max_tokens`. What is no digest of these turns is an error, to be tried again."""

    def __init__(self, model: ChatModel, instructions: Instructions, max_tokens: int = DIGEST_TOKENS) -> None:
        self.name, self.prompt = model.name, instructions.version
        self._model, self._max_tokens = model, max_tokens
        # in English a token is about three quarters of a word, and a margin stays
        self._instructions = instructions.text.replace("{max_words}", str(max_tokens * 6 // 10))

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the next digest; one that is too long is cut, since asking again costs money and rarely helps."""
        material = await to_thread.run_sync(_material, prior, turns)
        answer = await self._model.ask(self._instructions, material)
        if stray_end(answer, material):  # what stands before it may be reasoning or the head of the digest
            raise ModelError(f"{self.name} ended its reasoning in the midst of the digest")
        return await to_thread.run_sync(self._digest, prior or "", turns, answer)

    def _digest(self, prior: str, turns: Sequence[DigestTurn], answer: str) -> str:
        reply = read_reply(answer)
        rules = _within(standing_rules(prior, turns, reply), int(self._max_tokens * RULES_SHARE))
        if reply.narrative and not _is_grounded(reply.narrative, prior, turns):
            raise ModelError(f"{self.name} answered with something else than a digest")
        head = "\n".join(map(str, rules))
        if not reply.narrative:
            return head
        rest = unsaid(head_and_tail(unsaid(reply.narrative), self._max_tokens - count_tokens(f"{head}\n\n") - 2))
        return f"{head}\n\n{rest}" if head else rest


def _material(prior: str | None, turns: Sequence[DigestTurn]) -> str:
    """Return digest and turns as JSON, so that no text in them can pose as instructions outside of it."""
    rows = [{"seq": turn.seq, "speaker": label(turn), "role": turn.role, "text": turn.text} for turn in turns]
    return json.dumps({"prior_digest": prior, "turns": rows}, ensure_ascii=False)


def _within(rules: Sequence[Rule], budget: int) -> list[Rule]:
    costs = accumulate(count_tokens(f"{rule}\n") for rule in rules)
    return [rule for rule, _ in zip(rules, takewhile(lambda cost: cost <= budget, costs), strict=False)]


def _is_grounded(narrative: str, prior: str, turns: Sequence[DigestTurn]) -> bool:
    """Tell a digest of these turns from anything else that a model may say: it names turns, or shares their words."""
    newest = max((turn.seq for turn in turns), default=0)
    if any(0 < int(number) <= newest for number in _TURN_NUMBER.findall(narrative)):
        return True
    said = set(terms(prior)).union(*(terms(f"{turn.speaker} {turn.text}") for turn in turns))
    told = set(terms(narrative))
    return len(told & said) >= LEAST_GROUNDED * len(told)
