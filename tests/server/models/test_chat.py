"""Questions to a chat model: the answer without wrapping, or an error that says whether to retry."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from fixtures.consolidation import until
from fixtures.openai_server import (
    HANG,
    OpenAIServer,
    Reply,
    chat_reply,
    error_reply,
    late,
    unusable,
    wrapped,
)
from threefold_server.models.chat import ChatModel
from threefold_server.models.ports import ModelError, ModelRefused

ANSWER = "[3] Ana: never email the client.\nShe starts on 1 May."


def ask(server: OpenAIServer, *, timeout: float = 30.0, json: bool = False) -> str:
    async def call() -> str:
        model = ChatModel("chat", redact=str, api_key="key", base_url=server.url, timeout=timeout)
        try:
            return await model.ask("Keep the digest.", "a\ud800b", json=json)
        finally:
            await model.aclose()

    return asyncio.run(call())


def failure(server: OpenAIServer, reply: Reply) -> ModelError:
    server.script(reply)
    with pytest.raises(ModelError) as caught:
        ask(server)
    assert len(server.asked) == 1, "the worker retries, not the client"
    return caught.value


def test_question_is_one_request(openai_server: OpenAIServer) -> None:
    openai_server.script(chat_reply(f"  {ANSWER}\n"))
    assert ask(openai_server) == ANSWER
    [asked] = openai_server.asked
    assert (asked.path, asked.authorization) == ("/v1/chat/completions", "Bearer key")
    assert asked.body == {
        "model": "chat",
        "messages": [
            {"role": "system", "content": "Keep the digest."},
            {"role": "user", "content": "a\ufffdb"},
        ],
    }


def test_json_answer_can_be_requested(openai_server: OpenAIServer) -> None:
    openai_server.script(chat_reply("{}"))
    assert ask(openai_server, json=True) == "{}"
    assert openai_server.asked[0].body["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("how", wrapped(ANSWER))
def test_wrapping_of_an_answer_is_removed(openai_server: OpenAIServer, how: str) -> None:
    openai_server.script(wrapped(ANSWER)[how])
    assert ask(openai_server) == ANSWER


@pytest.mark.parametrize("text", ["Use `make`:\n```\nmake test\n```", "```\na\n```\nand\n```\nb", "I <think> so."])
def test_text_that_resembles_wrapping_is_kept(openai_server: OpenAIServer, text: str) -> None:
    openai_server.script(chat_reply(text))
    assert ask(openai_server) == text


@pytest.mark.parametrize("how", unusable(ANSWER))
def test_unusable_reply_is_a_temporary_error(openai_server: OpenAIServer, how: str) -> None:
    assert not isinstance(failure(openai_server, unusable(ANSWER)[how]), ModelRefused)


@pytest.mark.parametrize("reply", [chat_reply(None, refusal="no"), chat_reply("", "content_filter"), error_reply(401)])
def test_refusal_is_permanent(openai_server: OpenAIServer, reply: Reply) -> None:
    assert isinstance(failure(openai_server, reply), ModelRefused)


@pytest.mark.parametrize("status", [429, 500])
def test_busy_endpoint_says_how_long_to_wait(openai_server: OpenAIServer, status: int) -> None:
    error = failure(openai_server, error_reply(status, Retry_After="7"))
    assert not isinstance(error, ModelRefused)
    assert error.retry_after == 7.0


def test_hanging_model_is_given_up(openai_server: OpenAIServer) -> None:
    openai_server.script(HANG)
    with pytest.raises(ModelError, match="in time"):
        ask(openai_server, timeout=0.05)


def test_late_answer_is_not_used_for_the_next_question(openai_server: OpenAIServer) -> None:
    openai_server.script(late(chat_reply("the answer to the question before")), chat_reply(ANSWER))

    async def give_up_and_ask_again() -> str:
        model = ChatModel("chat", redact=str, api_key="key", base_url=openai_server.url)
        async with anyio.create_task_group() as group:
            group.start_soon(model.ask, "Keep the digest.", "a")
            await until(lambda: len(openai_server.asked) == 1)
            group.cancel_scope.cancel()
        openai_server.let_go()
        try:
            return await model.ask("Keep the digest.", "b")
        finally:
            await model.aclose()

    assert asyncio.run(give_up_and_ask_again()) == ANSWER
