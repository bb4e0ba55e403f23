"""Recorded requests and replies of an OpenAI-compatible endpoint.

The requests must not change, and every kind of reply is parsed from its bytes. To record them again with the
scripted server, run `python tests/server/models/test_cassettes.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from fixtures.openai_server import (
    MISSHAPEN_FACTS,
    OpenAIServer,
    Reply,
    chat_reply,
    error_reply,
    unusable,
    vectors_reply,
    wrapped,
)
from threefold_server.models.chat import ChatModel
from threefold_server.models.instructions import read_instructions
from threefold_server.models.mem0 import Mem0Extractor, mem0_prompts
from threefold_server.models.narrative import ModelSummarizer
from threefold_server.models.openai import OpenAIEmbedder
from threefold_server.models.ports import (
    Comparison,
    DatedTurn,
    DigestTurn,
    ExtractionInput,
    ModelError,
    ModelRefused,
    Statement,
)

CASSETTES = Path(__file__).parent / "cassettes"
HOST = "http://model.test/v1"
TURNS = [DigestTurn(3, "Ana", "user", "Let us plan the release.")]
SAID = datetime(2023, 5, 24, 12, 0, tzinfo=UTC)
FACTS = '{"memory": [{"text": "Ana drinks tea.", "attributed_to": "user", "sources": [3]}]}'
VERDICTS = '{"verdicts": [{"new": "N1", "relation": "excludes", "known": "K1"}]}'
DIGEST = "[3] Ana plans the release with the bot."


async def ask(url: str) -> str:
    """Ask a plain question."""
    model = ChatModel("chat", redact=str, api_key="key", base_url=url)
    try:
        return await model.ask("Answer in JSON.", "What is known?", json=True)
    finally:
        await model.aclose()


async def fold(url: str) -> str:
    """Make a digest; the request contains turns."""
    model = ChatModel("chat", redact=str, api_key="key", base_url=url)
    try:
        return await ModelSummarizer(model, read_instructions("digest", None)).fold(
            "They met.", [DigestTurn(3, "Ana", "user", "Let us plan the release.")]
        )
    finally:
        await model.aclose()


async def draw(url: str) -> str:
    """Extract facts and return their texts with their source turns."""
    model = ChatModel("chat", redact=str, api_key="key", base_url=url)
    try:
        talk = ExtractionInput("They met.", [], [DatedTurn(3, "Ana", "user", "I drink tea.", SAID)])
        return "; ".join(f"{fact.text} {fact.source_seqs}" for fact in await Mem0Extractor(model).extract(talk))
    finally:
        await model.aclose()


async def compare(url: str) -> str:
    """Compare two statements and return the verdict."""
    model = ChatModel("chat", redact=str, api_key="key", base_url=url)
    new, known = Statement("N1", "Ana lives in Oslo.", SAID), Statement("K1", "Ana lives in Lisbon.", SAID)
    try:
        [verdict] = await Mem0Extractor(model).compare([Comparison(new, (known,))])
        return f"{verdict.relation} {verdict.known}"
    finally:
        await model.aclose()


async def embed(url: str) -> str:
    """Embed two texts and return where their vectors are largest."""
    embedder = OpenAIEmbedder("emb", 3, redact=str, api_key="key", base_url=url)
    try:
        return str((await embedder.embed(["a", "b"])).argmax(axis=1).tolist())
    finally:
        await embedder.aclose()


class Scene(NamedTuple):
    """A call, the reply of the endpoint, and the expected answer or error with its wait."""

    call: Callable[[str], Coroutine[Any, Any, str]]
    reply: Reply
    expected: str | type[ModelError]
    retry_after: float | None = None


SCENES = {
    "digest": Scene(fold, chat_reply(DIGEST), DIGEST),
    "facts": Scene(draw, chat_reply(FACTS), "Ana drinks tea. (3,)"),
    "comparison": Scene(compare, chat_reply(VERDICTS), "excludes K1"),
    "unknown verdict": Scene(compare, chat_reply(VERDICTS.replace("K1", "K9")), ModelError),
    "facts without sources": Scene(draw, chat_reply(MISSHAPEN_FACTS["no sources"]), ModelError),
    "vectors": Scene(embed, vectors_reply([[1, 0, 0], [0, 0, 1]]), "[0, 2]"),
    "vectors as numbers": Scene(embed, vectors_reply([[1, 0, 0], [0, 0, 1]], plain=True), "[0, 2]"),
    "fewer vectors": Scene(embed, vectors_reply([[1, 0, 0]]), ModelError),
    "rate limit": Scene(ask, error_reply(429, Retry_After="7"), ModelError, 7.0),
    "overloaded": Scene(embed, error_reply(503, Retry_After="3"), ModelError, 3.0),
    "server error": Scene(fold, error_reply(500), ModelError),
    "wrong key": Scene(ask, error_reply(401), ModelRefused),
    "bad request": Scene(embed, error_reply(400), ModelRefused),
    "refusal": Scene(ask, chat_reply(None, refusal="I can't help with that."), ModelRefused),
    "content filter": Scene(fold, chat_reply("", "content_filter"), ModelRefused),
    **{f"wrapped in {how}": Scene(ask, reply, '{"a": 1}') for how, reply in wrapped('{"a": 1}').items()},
    **{f"unusable, {how}": Scene(ask, reply, ModelError) for how, reply in unusable('{"a": 1}').items()},
}


def anywhere(request: Any) -> Any:
    """Remove the port, the key, the machine and the prompt of Mem0 from a request."""
    request.uri = HOST + request.path.removeprefix("/v1")
    body = json.loads(request.body)
    for message in body.get("messages", []):
        if message["content"] == mem0_prompts().ADDITIVE_EXTRACTION_PROMPT:
            message["content"] = "(Mem0's own instructions)"  # 40 kB of text of another project
    request.body = json.dumps(body, ensure_ascii=False)
    request.headers = {"content-type": request.headers["content-type"]}
    return request


def tape_of(name: str) -> Path:
    """Return the file of a scene."""
    return CASSETTES / f"{name.replace(', ', ' ').replace(' ', '_')}.yaml"


def cassette(name: str, mode: str) -> AbstractContextManager[Any]:
    """Use the cassette of a scene. Untyped, because vcrpy has no types."""
    vcr: Any = import_module("vcr")
    recorder = vcr.VCR(record_mode=mode, match_on=("method", "path", "body"), before_record_request=anywhere)
    return recorder.use_cassette(str(tape_of(name)))


def test_every_scene_has_one_cassette() -> None:
    assert set(CASSETTES.iterdir()) == {tape_of(name) for name in SCENES}


@pytest.mark.parametrize("name", SCENES)
def test_recorded_reply_is_parsed(name: str) -> None:
    scene = SCENES[name]
    with cassette(name, "none") as tape:
        if isinstance(scene.expected, str):
            assert asyncio.run(scene.call(HOST)) == scene.expected
        else:
            with pytest.raises(ModelError) as caught:
                asyncio.run(scene.call(HOST))
            assert (type(caught.value), caught.value.retry_after) == (scene.expected, scene.retry_after)
        assert tape.all_played


def record() -> None:
    """Run every scene against the scripted server and record it."""
    server = OpenAIServer()
    server.start()
    for name, scene in SCENES.items():
        server.script(scene.reply)
        with cassette(name, "all"):
            try:
                asyncio.run(scene.call(server.url))
            except ModelError:
                assert not isinstance(scene.expected, str)
    server.stop()


if __name__ == "__main__":
    for old in CASSETTES.glob("*.yaml"):
        old.unlink()
    record()
