"""The connection to an OpenAI-compatible HTTP endpoint, its errors, and the embedder that uses it.

Needs the extra `threefold-server[openai]`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from anyio import fail_after, to_thread
from numpy.typing import NDArray
from pydantic import BaseModel

from threefold.contract.common import clean_text
from threefold_server.models.ports import Meter, ModelError, ModelRefused, Vectors
from threefold_server.text.packaged import InstallationError
from threefold_server.text.redaction import Redact
from threefold_server.text.tokens import count_tokens

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

BASE_URL = "https://api.openai.com/v1"
TIMEOUT = 30.0
TEXTS_PER_REQUEST = 128
_RETRIED_4XX = frozenset({408, 409, 425, 429})
_CAUSES = {
    "content_filter": "content filter",
    "context_length_exceeded": "the text is longer than the model takes",
    "insufficient_quota": "the account's quota is used up",
    "invalid_api_key": "invalid API key",
    "model_not_found": "no such model",
    "rate_limit_exceeded": "rate limit",
}
"""Texts for known error codes. Nothing else of an error's body is kept, as its message may quote the request."""


class _Embedding(BaseModel):
    index: int
    embedding: str | list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]


class OpenAIEmbedder:
    """Computes vectors by a model on an OpenAI-compatible endpoint; refuses replies of a wrong number or length."""

    def __init__(
        self,
        model: str,
        dimensions: int,
        *,
        redact: Redact,
        api_key: str,
        base_url: str = BASE_URL,
        timeout: float = TIMEOUT,
        meter: Meter | None = None,
    ) -> None:
        self.name = f"openai-{model}-{dimensions}"
        self.dimensions = dimensions
        self._model, self._redact, self._timeout, self._meter = model, redact, timeout, meter
        self._client = connect(api_key, base_url)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vectors of `texts`, from one request per 128 texts."""
        texts = await to_thread.run_sync(lambda: list(map(self._redact, texts)))
        starts = range(0, len(texts), TEXTS_PER_REQUEST)
        groups = [await self._request_charged(texts[start : start + TEXTS_PER_REQUEST]) for start in starts]
        return np.concatenate([np.empty((0, self.dimensions), np.float32), *groups])

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _request_charged(self, texts: Sequence[str]) -> Vectors:
        if self._meter is None:
            return await self._request(texts)
        async with self._meter.call(sum(map(count_tokens, texts))):
            return await self._request(texts)

    async def _request(self, texts: Sequence[str]) -> Vectors:
        inputs = [str(clean_text(text)) or " " for text in texts]  # an empty input is answered with 400
        with as_model_errors(), fail_after(self._timeout):
            reply = await self._client.embeddings.with_raw_response.create(
                model=self._model, input=inputs, encoding_format="base64"
            )
            items = sorted(_Embeddings.model_validate_json(reply.content).data, key=lambda item: item.index)
            if [item.index for item in items] != list(range(len(texts))):
                raise ModelError(f"{self._model} returned {len(items)} vectors for {len(texts)} texts")
            return self._unit_rows([_decode(item.embedding) for item in items])

    def _unit_rows(self, rows: list[NDArray[np.floating]]) -> Vectors:
        sizes = {len(row) for row in rows}
        if sizes != {self.dimensions}:
            raise ModelError(
                f"{self._model} returned vectors of {sorted(sizes)} dimensions, but {self.dimensions} are configured"
            )
        vectors = np.stack(rows).astype(np.float64)  # squares of large float32 values overflow
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or (lengths == 0).any():
            raise ModelError(f"{self._model} returned a vector that is zero or not finite")
        return (vectors / lengths).astype(np.float32)


def _decode(embedding: str | list[float]) -> NDArray[np.floating]:
    """Return a vector from base64, or from the plain numbers of a server that knows no other form."""
    if isinstance(embedding, str):
        return np.frombuffer(b64decode(embedding, validate=True), "<f4")
    return np.asarray(embedding, np.float64)


def connect(api_key: str, base_url: str) -> AsyncOpenAI:
    """Return a client of the endpoint that neither retries nor times out by itself.

    Raises:
        InstallationError: The openai package is not installed.
    """
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise InstallationError(
            "models behind an endpoint need the openai package; install threefold-server[openai]"
        ) from error
    # Without a key, the library would read one from the environment or refuse, so a server without keys gets "none".
    # The worker retries, and the caller's deadline also covers a reply that arrives in small pieces.
    return AsyncOpenAI(api_key=api_key or "none", base_url=base_url, max_retries=0, timeout=None)


@contextmanager
def as_model_errors() -> Generator[None]:
    """Convert every error of a call into ModelError, or into ModelRefused if the same call would fail again.

    The cause is removed from the traceback, as its message may quote the request or the answer.
    """
    import openai

    try:
        yield
    except openai.APIStatusError as error:
        raise _status_error(error) from None
    except TimeoutError:
        raise ModelError("the model did not answer in time") from None
    except (openai.OpenAIError, ValueError) as error:
        raise ModelError(f"no usable answer: {type(error).__name__}") from None


def _status_error(error: APIStatusError) -> ModelError:
    status = error.status_code
    cause = _CAUSES.get(str(error.code)) or responses.get(status, "")
    message = f"the model's server answered {status} {cause}".rstrip()
    if status >= 500 or status in _RETRIED_4XX:
        return ModelError(message, _seconds(error.response.headers.get("retry-after")))
    return ModelRefused(message)


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as seconds or as a date; None if it is invalid."""
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
