"""Error texts of a model or its server are stored nowhere, because they may quote turns."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from fixtures.openai_server import OpenAIServer, Reply, chat_reply, json_reply
from threefold_server.models.chat import ChatModel
from threefold_server.models.instructions import read_instructions
from threefold_server.models.mem0 import Mem0Extractor
from threefold_server.models.narrative import ModelSummarizer
from threefold_server.models.openai import OpenAIEmbedder
from threefold_server.models.ports import Comparison, DatedTurn, DigestTurn, ExtractionInput, ModelError, Statement

SAID = "my passport is ZX-99"
SECRET = "ZX-99"
AT = datetime(2026, 5, 1, tzinfo=UTC)


def quoting(status: int, **fields: str) -> Reply:
    """Return an error in which every text quotes the request."""
    error = {"message": f"cannot process {SAID!r}", "type": SAID, "param": SAID, "code": SAID}
    return json_reply({"error": error | fields}, status)


REPLIES: dict[str, Reply] = {
    **{f"status {status}": quoting(status) for status in (400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 529)},
    "an error in another form": json_reply({"detail": [{"input": SAID, "loc": ["body", SAID]}]}, 422),
    "a page": Reply(f"<html>{SAID}</html>".encode(), 502, {"Content-Type": "text/html"}),
    "a page that is a success": Reply(f"<html>{SAID}</html>".encode(), 200, {"Content-Type": "text/html"}),
    "a refusal": chat_reply(None, refusal=f"I must not talk about {SAID}."),
    "a filter": chat_reply(SAID, "content_filter"),
    "a cut answer": chat_reply(SAID, "length"),
    "another form": json_reply({"choices": [{"message": {"content": {SAID: SAID}}}], "data": [{SAID: SAID}]}),
    "texts for numbers": json_reply({"data": [{"index": SAID, "embedding": [SAID]}], "choices": SAID}),
    "prose": chat_reply(f"{SAID} " * 3 + "blue whales sing to distant submarines under polar ice every winter night"),
    "JSON of another form": chat_reply(json.dumps({"memory": [{"text": {SAID: SAID}, "sources": [SAID]}]})),
    "verdicts of another form": chat_reply(json.dumps({"verdicts": [{"new": SAID, "relation": SAID}]})),
    "cut JSON": chat_reply(f'{{"memory": [{{"text": "{SAID}'),
}


async def embed(url: str) -> None:
    model = OpenAIEmbedder("small", 3, redact=str, api_key="key", base_url=url)
    try:
        await model.embed([SAID])
    finally:
        await model.aclose()


async def with_chat(url: str, work: Callable[[ChatModel], Awaitable[object]]) -> None:
    chat = ChatModel("chat", redact=str, api_key="key", base_url=url)
    try:
        await work(chat)
    finally:
        await chat.aclose()


async def fold(url: str) -> None:
    turns = [DigestTurn(1, "ana", "user", "The tea is green.")]
    await with_chat(url, lambda chat: ModelSummarizer(chat, read_instructions("digest", None)).fold(None, turns))


async def extract(url: str) -> None:
    talk = ExtractionInput(None, [], [DatedTurn(1, "ana", "user", SAID, AT)])
    await with_chat(url, lambda chat: Mem0Extractor(chat).extract(talk))


async def compare(url: str) -> None:
    comparison = Comparison(Statement("N1", SAID, AT), (Statement("K1", SAID, AT),))
    await with_chat(url, lambda chat: Mem0Extractor(chat).compare([comparison]))


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("ask", [embed, fold, extract, compare])
def test_error_of_a_model_contains_no_quotes(
    openai_server: OpenAIServer, ask: Callable[[str], Awaitable[None]], reply: str
) -> None:
    openai_server.script(REPLIES[reply])

    async def call() -> None:
        await ask(openai_server.url)

    with pytest.raises(ModelError) as caught:
        asyncio.run(call())
    shown = [str(caught.value), repr(caught.value), "".join(traceback.format_exception(caught.value))]
    assert str(caught.value)
    assert SECRET not in "".join(shown)


@pytest.mark.parametrize(
    ("code", "cause"),
    [("context_length_exceeded", "longer than the model"), ("model_not_found", "no such model")],
)
def test_known_error_code_names_the_cause(openai_server: OpenAIServer, code: str, cause: str) -> None:
    openai_server.script(quoting(400, code=code))
    with pytest.raises(ModelError, match=f"answered 400.*{cause}"):
        asyncio.run(embed(openai_server.url))
