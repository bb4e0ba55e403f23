"""Models behind ports: which embedder and which summarizer a setting names. Heavy libraries load on first use only."""

from __future__ import annotations

from pathlib import Path

from threefold_server.models.ports import Embedder, Summarizer

_OPENAI = "openai:"
_OPENAI_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}


def build_embedder(
    spec: str,
    *,
    model_path: Path | None = None,
    dimensions: int | None = None,
    api_key: str = "",
    base_url: str | None = None,
    timeout: float = 30.0,
) -> Embedder:
    """Return the embedder `minilm`, `hash` or `openai:<model>`; `dimensions` is for a model we do not know."""
    if spec == "minilm":
        from threefold_server.models.minilm import MiniLMEmbedder

        return MiniLMEmbedder(model_path)
    if spec == "hash":
        from threefold_server.models.hashing import HashEmbedder

        return HashEmbedder()
    from threefold_server.models.openai import BASE_URL, OpenAIEmbedder

    model = _openai_model(spec, "embedder", "minilm, hash")
    size = dimensions or _OPENAI_DIMENSIONS.get(model)
    if size is None:
        raise ValueError(f"the embedder {spec!r} needs the number of its dimensions")
    return OpenAIEmbedder(model, size, api_key=api_key, base_url=base_url or BASE_URL, timeout=timeout)


def build_summarizer(
    spec: str,
    *,
    max_tokens: int = 1_200,
    api_key: str = "",
    base_url: str | None = None,
    timeout: float = 30.0,
) -> Summarizer:
    """Return the summarizer `extractive` or `openai:<model>`, whose digests are at most `max_tokens` long."""
    if spec == "extractive":
        from threefold_server.models.extractive import ExtractiveSummarizer

        return ExtractiveSummarizer(max_tokens)
    from threefold_server.models.openai import BASE_URL, OpenAISummarizer

    model = _openai_model(spec, "summarizer", "extractive")
    return OpenAISummarizer(
        model, api_key=api_key, base_url=base_url or BASE_URL, timeout=timeout, max_tokens=max_tokens
    )


def _openai_model(spec: str, kind: str, others: str) -> str:
    model = spec.removeprefix(_OPENAI)
    if not model or model == spec:
        raise ValueError(f"unknown {kind} {spec!r}: choose one of {others}, openai:<model>")
    return model
