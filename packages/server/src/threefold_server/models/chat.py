"""The client of a chat model on an OpenAI-compatible endpoint. Its answers come without reasoning and code fences."""

from __future__ import annotations

from contextlib import nullcontext

from anyio import fail_after, to_thread
from pydantic import BaseModel, Field

from threefold.contract.common import clean_text
from threefold_server.models.openai import BASE_URL, TIMEOUT, as_model_errors, connect
from threefold_server.models.ports import Bill, Meter, ModelError, ModelRefused
from threefold_server.models.wrapping import unwrap
from threefold_server.text.redaction import Redact
from threefold_server.text.tokens import count_tokens


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    finish_reason: str | None = None
    message: _Message


class _Usage(BaseModel):
    total_tokens: int = Field(ge=0)


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class ChatModel:
    """The chat model of the setting `THREEFOLD_MODEL`. A question is one request; the worker does the retries."""

    def __init__(
        self,
        name: str,
        *,
        redact: Redact,
        api_key: str,
        base_url: str = BASE_URL,
        timeout: float = TIMEOUT,
        meter: Meter | None = None,
    ) -> None:
        self.name = name
        self._redact, self._timeout, self._meter = redact, timeout, meter
        self._client = connect(api_key, base_url)

    async def ask(self, instructions: str, material: str, *, json: bool = False) -> str:
        """Ask one question.

        Args:
            instructions: The system prompt.
            material: The user message. It is redacted before it is sent.
            json: Ask the endpoint for a JSON object.

        Returns:
            The answer without reasoning and code fence, never empty.

        Raises:
            ModelError: No usable answer, for example an empty or truncated one; a retry may help.
            ModelRefused: The model or its server refused the request.
            BudgetSpent: The budget does not allow the call.
        """
        # The material can hold text that was stored under another redaction policy: the digest so far or a known fact.
        material = await to_thread.run_sync(self._redact, material)
        tokens = count_tokens(instructions) + count_tokens(material)
        async with self._meter.call(tokens) if self._meter else nullcontext(Bill(tokens)) as bill:
            completion = await self._request(instructions, material, json)
            answer = completion.choices[0].message.content or ""
            bill.tokens = completion.usage.total_tokens if completion.usage else tokens + count_tokens(answer)
            return self._answer(completion.choices[0], material)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _request(self, instructions: str, material: str, json: bool) -> _Completion:
        with as_model_errors(), fail_after(self._timeout):
            reply = await self._client.chat.completions.with_raw_response.create(
                model=self.name,
                messages=[
                    {"role": "system", "content": instructions},
                    {"role": "user", "content": str(clean_text(material))},
                ],
                extra_body={"response_format": {"type": "json_object"}} if json else None,
            )
            return _Completion.model_validate_json(reply.content)

    def _answer(self, choice: _Choice, material: str) -> str:
        if choice.message.refusal or choice.finish_reason == "content_filter":
            raise ModelRefused(f"{self.name} refused to answer")  # without its words, which may quote the material
        if choice.finish_reason == "length":
            raise ModelError(f"the answer of {self.name} was truncated at its length limit")
        reply = choice.message.content or ""
        answer = unwrap(reply, material)
        if not answer:
            raise ModelError(
                f"{self.name} returned {'reasoning without an answer' if reply.strip() else 'an empty answer'}"
            )
        return answer
