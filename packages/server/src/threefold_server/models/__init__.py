"""Models behind ports: which ones the settings name. Heavy libraries load on first use only."""

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
    """Return the embedder `minilm`, `hash` or `openai:<model>`; `dimensions` is for a model we do not know."""
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
        raise ValueError(f"the embedder {spec!r} needs the number of its dimensions; set embedder_dimensions")
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
    """Return the chat model behind the endpoint; None where none is set."""
    if model is None:
        return None
    from threefold_server.models.chat import ChatModel
    from threefold_server.models.openai import BASE_URL

    url = base_url or BASE_URL
    return ChatModel(model, redact=redact, api_key=api_key, base_url=url, timeout=timeout, meter=meter)


def build_summarizer(chat: ChatModel | None, prompts: Path | None = None) -> Summarizer:
    """Return the summarizer that asks the chat model, or else the built-in one; `prompts` may hold a digest.md."""
    if chat is None:
        from threefold_server.models.extractive import ExtractiveSummarizer

        return ExtractiveSummarizer()
    from threefold_server.models.instructions import read_instructions
    from threefold_server.models.narrative import ModelSummarizer

    return ModelSummarizer(chat, read_instructions("digest", prompts))


def build_extractor(chat: ChatModel, prompts: Path | None = None) -> Extractor:
    """Return the extractor that asks the chat model with Mem0's prompts; `prompts` holds a store's own, too."""
    from threefold_server.models.mem0 import Mem0Extractor

    return Mem0Extractor(chat, prompts)
