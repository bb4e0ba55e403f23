"""Embedder and summarizer behind any OpenAI-compatible HTTP endpoint; needs `threefold-server[openai]`."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.resources import files
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from anyio import fail_after, to_thread
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from threefold.contract.common import clean_text
from threefold_server.models.packaged import InstallationError
from threefold_server.models.ports import DigestTurn, ModelError, ModelRefused, Vectors
from threefold_server.models.tokens import head_and_tail

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

BASE_URL = "https://api.openai.com/v1"
TIMEOUT = 30.0
TEXTS_PER_REQUEST = 128
DIGEST_TOKENS = 1_200
TURN_TOKENS = 4_000
"""More of one turn than this would fill a small model's context; its head and tail are sent."""
PROMPT = "digest_v1"
MESSAGE_CHARS = 300
_RETRIED_4XX = frozenset({408, 409, 425, 429})


class _Embedding(BaseModel):
    index: int
    embedding: str | list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    finish_reason: str | None = None
    message: _Message


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class OpenAIEmbedder:
    """Vectors of `model`; a reply with another number of vectors or of dimensions is refused."""

    def __init__(
        self, model: str, dimensions: int, *, api_key: str, base_url: str = BASE_URL, timeout: float = TIMEOUT
    ) -> None:
        self.name = f"openai-{model}-{dimensions}"
        self.dimensions = dimensions
        self._model, self._timeout = model, timeout
        self._client = _connect(api_key, base_url)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vectors of `texts`, asked for in groups."""
        starts = range(0, len(texts), TEXTS_PER_REQUEST)
        groups = [await self._request(texts[start : start + TEXTS_PER_REQUEST]) for start in starts]
        return np.concatenate([np.empty((0, self.dimensions), np.float32), *groups])

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _request(self, texts: Sequence[str]) -> Vectors:
        inputs = [str(clean_text(text)) or " " for text in texts]  # an empty input is answered with 400
        with _errors(), fail_after(self._timeout):
            reply = await self._client.embeddings.with_raw_response.create(
                model=self._model, input=inputs, encoding_format="base64"
            )
            items = sorted(_Embeddings.model_validate_json(reply.content).data, key=lambda item: item.index)
            if [item.index for item in items] != list(range(len(texts))):
                raise ModelError(f"{self._model} answered {len(items)} vectors for {len(texts)} texts")
            return self._unit_rows([_decode(item.embedding) for item in items])

    def _unit_rows(self, rows: list[NDArray[np.floating]]) -> Vectors:
        sizes = {len(row) for row in rows}
        if sizes != {self.dimensions}:
            raise ModelError(f"{self._model} answered {sorted(sizes)} dimensions, {self.dimensions} are configured")
        vectors = np.stack(rows).astype(np.float64)  # squares of large float32 values overflow
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or (lengths == 0).any():
            raise ModelError(f"{self._model} answered a vector without a direction")
        return (vectors / lengths).astype(np.float32)


class OpenAISummarizer:
    """A digest written by `model` after the packaged instructions."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str = BASE_URL,
        timeout: float = TIMEOUT,
        max_tokens: int = DIGEST_TOKENS,
    ) -> None:
        self.name = f"openai-{model}-{PROMPT}"
        self._model, self._timeout, self._max_tokens = model, timeout, max_tokens
        self._instructions = read_prompt(max_tokens)
        self._client = _connect(api_key, base_url)

    async def fold(self, prior: str | None, turns: Sequence[DigestTurn]) -> str:
        """Return the model's digest; one that is too long is cut, since asking again costs money and rarely helps."""
        material = await to_thread.run_sync(_material, prior, turns)
        with _errors(), fail_after(self._timeout):
            reply = await self._client.chat.completions.with_raw_response.create(
                model=self._model,
                messages=[
                    {"role": "system", "content": self._instructions},
                    {"role": "user", "content": material},
                ],
            )
            choice = _Completion.model_validate_json(reply.content).choices[0]
        return head_and_tail(_answer(choice, self._model), self._max_tokens)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()


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
    return str(clean_text(json.dumps({"prior_digest": prior, "turns": rows}, ensure_ascii=False)))


def _answer(choice: _Choice, model: str) -> str:
    if choice.message.refusal or choice.finish_reason == "content_filter":
        raise ModelRefused(f"{model} refused: {choice.message.refusal or 'content filter'}")
    if choice.finish_reason == "length":
        raise ModelError(f"{model} was cut off by its length limit")
    answer = (choice.message.content or "").strip()
    if not answer:
        raise ModelError(f"{model} gave an empty answer")
    return answer


def _decode(embedding: str | list[float]) -> NDArray[np.floating]:
    """Return a vector from base64, or from the plain numbers of a server that knows no other form."""
    if isinstance(embedding, str):
        return np.frombuffer(b64decode(embedding, validate=True), "<f4")
    return np.asarray(embedding, np.float64)


def _connect(api_key: str, base_url: str) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise InstallationError("models over HTTP need the extra: pip install 'threefold-server[openai]'") from error
    # A server without keys gets a dummy: without any, the library takes one from the environment, or refuses.
    # No retries and no timeout of its own: our worker retries, and our deadline covers a reply that trickles in.
    return AsyncOpenAI(api_key=api_key or "none", base_url=base_url, max_retries=0, timeout=None)


@contextmanager
def _errors() -> Generator[None]:
    """Turn whatever a call can raise into ModelError, or ModelRefused where the same call would fail again."""
    import openai

    try:
        yield
    except openai.APIStatusError as error:
        raise _status_error(error) from error
    except TimeoutError as error:
        raise ModelError("the model did not answer in time") from error
    except (openai.OpenAIError, ValueError) as error:
        raise ModelError(f"no usable answer: {type(error).__name__}") from error


def _status_error(error: APIStatusError) -> ModelError:
    status = error.status_code
    message = f"the model's server answered {status}: {error.message[:MESSAGE_CHARS]}"
    if status >= 500 or status in _RETRIED_4XX:
        return ModelError(message, _seconds(error.response.headers.get("retry-after")))
    return ModelRefused(message)


def _seconds(retry_after: str | None) -> float | None:
    """Read a Retry-After header: seconds, or the date until which to wait."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        return _seconds_until(retry_after)
    return max(0.0, seconds) if isfinite(seconds) else None


def _seconds_until(date: str) -> float | None:
    try:
        wait = parsedate_to_datetime(date) - datetime.now(UTC)
    except (ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())
