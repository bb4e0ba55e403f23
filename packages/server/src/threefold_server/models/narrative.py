"""The summarizer that calls a chat model. Its digests have the standing rules word for word, then a narrative."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate, takewhile

from anyio import to_thread

from threefold_server.models.chat import ChatModel
from threefold_server.models.instructions import Instructions
from threefold_server.models.lines import label, without_speakers
from threefold_server.models.ports import DigestTurn, ModelError
from threefold_server.models.standing_rules import Rule, read_reply, standing_rules
from threefold_server.models.wrapping import stray_end
from threefold_server.text.terms import terms
from threefold_server.text.tokens import count_tokens, head_and_tail

DIGEST_TOKENS = 1_200
RULES_SHARE = 0.75
"""The largest share of a digest for its rules. The oldest are kept, as newer ones may still be in the window."""

MIN_GROUNDED_SHARE = 0.2
"""The smallest share of a digest's terms that its turns must contain. Apologies and echoed prompts have about 0."""

_TURN_NUMBER = re.compile(r"\[(\d{1,9})\]")


class ModelSummarizer:
    """Writes digests of at most `max_tokens`. An answer that is no digest raises ModelError, for a retry."""

    def __init__(self, model: ChatModel, instructions: Instructions, max_tokens: int = DIGEST_TOKENS) -> None:
        self.name, self.prompt = model.name, instructions.version
        self._model, self._max_tokens = model, max_tokens
        # In English a token is about 0.75 words; 0.6 leaves a margin.
        self._instructions = instructions.text.replace("{max_words}", str(max_tokens * 6 // 10))

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the next digest. One that is too long is cut, as asking again costs money and rarely helps."""
        material = await to_thread.run_sync(_material, prior, turns)
        answer = await self._model.ask(self._instructions, material)
        if stray_end(answer, material):  # the text before it may be reasoning or the start of the digest
            raise ModelError(f"the answer of {self.name} has an end of reasoning inside the digest")
        return await to_thread.run_sync(self._digest, prior or "", turns, answer)

    def _digest(self, prior: str, turns: Sequence[DigestTurn], answer: str) -> str:
        reply = read_reply(answer)
        rules = _within(standing_rules(prior, turns, reply), int(self._max_tokens * RULES_SHARE))
        if reply.narrative and not _is_grounded(reply.narrative, prior, turns):
            raise ModelError(f"the answer of {self.name} is not a digest of the turns")
        head = "\n".join(map(str, rules))
        if not reply.narrative:
            return head
        room = self._max_tokens - count_tokens(f"{head}\n\n") - 2
        rest = without_speakers(head_and_tail(without_speakers(reply.narrative), room))  # the tail begins a new line
        return f"{head}\n\n{rest}" if head else rest


def _material(prior: str | None, turns: Sequence[DigestTurn]) -> str:
    """Return digest and turns as JSON, so that no text in them looks like instructions."""
    rows = [{"seq": turn.seq, "speaker": label(turn), "role": turn.role, "text": turn.text} for turn in turns]
    return json.dumps({"prior_digest": prior, "turns": rows}, ensure_ascii=False)


def _within(rules: Sequence[Rule], budget: int) -> list[Rule]:
    costs = accumulate(count_tokens(f"{rule}\n") for rule in rules)
    return [rule for rule, _ in zip(rules, takewhile(lambda cost: cost <= budget, costs), strict=False)]


def _is_grounded(narrative: str, prior: str, turns: Sequence[DigestTurn]) -> bool:
    """Return True if a narrative cites the turns or shares their words. Other answers of a model do neither."""
    newest = max((turn.seq for turn in turns), default=0)
    if any(0 < int(number) <= newest for number in _TURN_NUMBER.findall(narrative)):
        return True
    source_terms = set(terms(prior)).union(*(terms(f"{turn.speaker} {turn.text}") for turn in turns))
    own_terms = set(terms(narrative))
    return len(own_terms & source_terms) >= MIN_GROUNDED_SHARE * len(own_terms)
