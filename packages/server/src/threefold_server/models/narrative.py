"""The digest written by a chat model, after instructions that are data with a version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from anyio import to_thread

from threefold_server.models.chat import ChatModel
from threefold_server.models.ports import DigestTurn
from threefold_server.models.tokens import head_and_tail

DIGEST_TOKENS = 1_200
TURN_TOKENS = 4_000
"""More of one turn than this would fill a small model's context; its head and tail are sent."""
PROMPT = "digest_v1"


class ModelSummarizer:
    """A digest written by a model, at most `max_tokens` long."""

    def __init__(self, model: ChatModel, max_tokens: int = DIGEST_TOKENS) -> None:
        self.name = f"openai-{model.name}-{PROMPT}"
        self._model, self._max_tokens = model, max_tokens
        self._instructions = read_prompt(max_tokens)

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the model's digest; one that is too long is cut, since asking again costs money and rarely helps."""
        material = await to_thread.run_sync(_material, prior, turns)
        return head_and_tail(await self._model.ask(self._instructions, material), self._max_tokens)


def read_prompt(max_tokens: int) -> str:
    """Return the instructions; in English a token is about three quarters of a word, and a margin stays."""
    template = files("threefold_server.models").joinpath("prompts", f"{PROMPT}.md").read_text("utf-8")
    return template.replace("{max_words}", str(max_tokens * 6 // 10))


def _material(prior: str | None, turns: Sequence[DigestTurn]) -> str:
    """Return digest and turns as JSON, so that no text in them can pose as instructions outside of it."""
    rows = [
        {
            "seq": turn.seq,
            "speaker": turn.speaker,
            "role": turn.role,
            "text": head_and_tail(turn.text, TURN_TOKENS),
        }
        for turn in turns
    ]
    return json.dumps({"prior_digest": prior, "turns": rows}, ensure_ascii=False)
