"""The OpenAI-compatible embedder, and error handling for all calls to an endpoint, with a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest

from fixtures.openai_server import (
    HANG,
    OpenAIServer,
    Reply,
    error_reply,
    json_reply,
    vectors_reply,
)
from threefold_server.models.openai import TEXTS_PER_REQUEST, OpenAIEmbedder
from threefold_server.models.ports import ModelError, ModelRefused, Vectors
from threefold_server.text.redaction import redact


def embed(server: OpenAIServer, texts: Sequence[str], timeout: float = 30.0, api_key: str = "key") -> Vectors:
    async def call() -> Vectors:
        embedder = OpenAIEmbedder("emb", 3, redact=redact, api_key=api_key, base_url=server.url, timeout=timeout)
        try:
            return await embedder.embed(texts)
        finally:
            await embedder.aclose()

    return asyncio.run(call())


def refusal(server: OpenAIServer, *replies: Reply) -> ModelError:
    """Return the error of an embedding with these replies, after exactly one request."""
    server.script(*replies)
    with pytest.raises(ModelError) as caught:
        embed(server, ["a"])
    assert len(server.asked) == 1, "the worker retries, not the client"
    return caught.value


@pytest.mark.parametrize("plain", [False, True], ids=["base64", "numbers"])
def test_vectors_are_unit_rows(openai_server: OpenAIServer, plain: bool) -> None:
    openai_server.script(vectors_reply([[3, 0, 4], [0, 2, 0]], plain))
    vectors = embed(openai_server, ["a", "b"])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[0.6, 0, 0.8], [0, 1, 0]], rtol=1e-6)
    [asked] = openai_server.asked
    assert (asked.path, asked.authorization) == ("/v1/embeddings", "Bearer key")
    assert asked.body == {"model": "emb", "input": ["a", "b"], "encoding_format": "base64"}


def test_secrets_are_not_sent(openai_server: OpenAIServer) -> None:
    """A fact may contain a secret if it was saved before redaction was turned on."""
    openai_server.script(vectors_reply([[1, 0, 0]]))
    embed(openai_server, ["Ana pays with 4111 1111 1111 1111."])
    assert openai_server.asked[0].body["input"] == ["Ana pays with [redacted: card number]."]


def test_vectors_are_ordered_by_index(openai_server: OpenAIServer) -> None:
    data = [{"index": 1, "embedding": [0, 1, 0]}, {"index": 0, "embedding": [1, 0, 0]}]
    openai_server.script(json_reply({"data": data}))
    np.testing.assert_array_equal(embed(openai_server, ["a", "b"]), [[1, 0, 0], [0, 1, 0]])


def test_key_is_not_read_from_the_environment(openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another key")
    openai_server.script(vectors_reply([[1, 0, 0]]))
    embed(openai_server, ["a"], api_key="")
    assert openai_server.asked[0].authorization == "Bearer none"


def test_no_texts_cause_no_request(openai_server: OpenAIServer) -> None:
    assert embed(openai_server, []).shape == (0, 3)
    assert openai_server.asked == []


def test_many_texts_are_sent_in_groups(openai_server: OpenAIServer) -> None:
    openai_server.script(vectors_reply([[1, 0, 0]] * TEXTS_PER_REQUEST), vectors_reply([[0, 1, 0]]))
    vectors = embed(openai_server, [str(i) for i in range(TEXTS_PER_REQUEST + 1)])
    assert vectors.shape == (TEXTS_PER_REQUEST + 1, 3)
    np.testing.assert_array_equal(vectors[-2:], [[1, 0, 0], [0, 1, 0]])
    assert openai_server.asked[1].body["input"] == [str(TEXTS_PER_REQUEST)]


def test_texts_that_the_endpoint_cannot_take_are_replaced(openai_server: OpenAIServer) -> None:
    openai_server.script(vectors_reply([[1, 0, 0]] * 2))
    embed(openai_server, ["", "a\ud800b"])
    assert openai_server.asked[0].body["input"] == [" ", "a\ufffdb"]


@pytest.mark.parametrize(
    "reply",
    [
        vectors_reply([[1, 0, 0], [0, 1, 0]]),
        vectors_reply([]),
        vectors_reply([[1, 0]]),
        vectors_reply([[0, 0, 0]]),
        vectors_reply([[float("nan"), 0, 1]]),
        vectors_reply([[float("inf"), 0, 1]], plain=True),
        json_reply({"data": [{"index": 5, "embedding": [1, 0, 0]}]}),
        json_reply({"data": [{"index": 0, "embedding": "not base64!"}]}),
        json_reply({"data": None}),
        json_reply([1, 2]),
        Reply(b"<html>gateway</html>", headers={"Content-Type": "text/html"}),
        Reply(b'{"data": ['),
        Reply(b""),
    ],
    ids=["count", "none", "size", "zero", "nan", "inf", "index", "base64", "null", "list", "html", "cut", "empty"],
)
def test_unusable_reply_is_temporary(openai_server: OpenAIServer, reply: Reply) -> None:
    error = refusal(openai_server, reply)
    assert not isinstance(error, ModelRefused)
    assert error.retry_after is None


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_temporary_error_says_how_long_to_wait(openai_server: OpenAIServer, status: int) -> None:
    error = refusal(openai_server, error_reply(status, Retry_After="7"))
    assert not isinstance(error, ModelRefused)
    assert error.retry_after == 7.0
    assert str(status) in str(error)


def test_retry_after_may_be_a_date(openai_server: OpenAIServer) -> None:
    until = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    wait = refusal(openai_server, error_reply(429, Retry_After=until)).retry_after
    assert wait is not None
    assert 0 < wait <= 3600


@pytest.mark.parametrize("value", ["soon", "-5", "inf", "nan"])
def test_invalid_retry_after_is_ignored(openai_server: OpenAIServer, value: str) -> None:
    assert not refusal(openai_server, error_reply(429, Retry_After=value)).retry_after


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_refusal_is_permanent(openai_server: OpenAIServer, status: int) -> None:
    assert isinstance(refusal(openai_server, error_reply(status)), ModelRefused)


def test_hanging_server_is_a_temporary_error(openai_server: OpenAIServer) -> None:
    openai_server.script(HANG)
    with pytest.raises(ModelError, match="in time"):
        embed(openai_server, ["a"], timeout=0.05)


def test_unreachable_server_is_a_temporary_error() -> None:
    server = OpenAIServer()  # bound, but refuses connections once closed
    server.start()
    server.stop()
    with pytest.raises(ModelError, match="APIConnectionError"):
        embed(server, ["a"])
