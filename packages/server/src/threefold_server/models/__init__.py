"""Embedders, summarizers, extractors and the chat model, built from the settings.

A heavy library is imported only when its model is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from threefold_server.models.ports import Embedder, Extractor, Meter, Summarizer
from threefold_server.text.redaction import Redact

if TYPE_CHECKING:
    from threefold_server.models.chat import ChatModel

_OPENAI = "openai:"
_OPENAI_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}


def build_embedder(
    spec: str,
    *,
    redact: Redact,
    model_path: Path | None = None,
    dimensions: int | None = None,
    api_key: str = "",
    base_url: str | None = None,
    timeout: float = 30.0,
    meter: Meter | None = None,
) -> Embedder:
    """Build an embedder.

    Args:
        spec: `minilm`, `hash` or `openai:<model>`.
        redact: Applied to every text that is sent to another machine.
        model_path: The model file of `minilm`; None for the installed one.
        dimensions: The length of the vectors of an OpenAI-compatible model; needed unless it is one of OpenAI's own.
        api_key: The key of the OpenAI-compatible endpoint.
        base_url: The URL of that endpoint; None for OpenAI's.
        timeout: Seconds until a request fails.
        meter: Charges the tokens of each request; None to charge nobody.

    Raises:
        ValueError: `spec` is unknown, or `dimensions` is missing.
        InstallationError: The model or its library is not installed.
    """
    if spec == "minilm":
        from threefold_server.models.minilm import MiniLMEmbedder

        return MiniLMEmbedder(model_path)
    if spec == "hash":
        from threefold_server.models.hashing import HashEmbedder

        return HashEmbedder()
    from threefold_server.models.openai import BASE_URL, OpenAIEmbedder

    model = spec.removeprefix(_OPENAI)
    if not model or model == spec:
        raise ValueError(f"unknown embedder {spec!r}: choose one of minilm, hash, openai:<model>")
    size = dimensions or _OPENAI_DIMENSIONS.get(model)
    if size is None:
        raise ValueError(f"the dimensions of the embedder {spec!r} are unknown; set embedder_dimensions")
    url = base_url or BASE_URL
    return OpenAIEmbedder(model, size, redact=redact, api_key=api_key, base_url=url, timeout=timeout, meter=meter)


def build_chat(
    model: str | None,
    *,
    redact: Redact,
    api_key: str = "",
    base_url: str | None = None,
    timeout: float = 30.0,
    meter: Meter | None = None,
) -> ChatModel | None:
    """Build the client of a chat model on an OpenAI-compatible endpoint; return None if `model` is None."""
    if model is None:
        return None
    from threefold_server.models.chat import ChatModel
    from threefold_server.models.openai import BASE_URL

    url = base_url or BASE_URL
    return ChatModel(model, redact=redact, api_key=api_key, base_url=url, timeout=timeout, meter=meter)


def build_summarizer(chat: ChatModel | None, prompts: Path | None = None) -> Summarizer:
    """Build the summarizer that calls the chat model, or without one the built-in one, which calls no model.

    `prompts` is a directory with the store's own `digest.md`; without that file the packaged instructions are used.
    """
    if chat is None:
        from threefold_server.models.extractive import ExtractiveSummarizer

        return ExtractiveSummarizer()
    from threefold_server.models.instructions import read_instructions
    from threefold_server.models.narrative import ModelSummarizer

    return ModelSummarizer(chat, read_instructions("digest", prompts))


def build_extractor(chat: ChatModel, prompts: Path | None = None) -> Extractor:
    """Build the extractor that calls the chat model with Mem0's prompts.

    `prompts` is a directory with the store's own `facts.md` (added to the packaged one) and `compare.md` (replaces it).
    """
    from threefold_server.models.mem0 import Mem0Extractor

    return Mem0Extractor(chat, prompts)
