"""The hash embedder: the same vectors in every process, close for similar words, and never a zero vector."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold_server.models.hashing import HashEmbedder
from threefold_server.models.ports import Vectors


def embed(*texts: str) -> Vectors:
    return asyncio.run(HashEmbedder().embed(texts))


@given(st.lists(st.text(st.characters(), max_size=60), max_size=8))
@settings(deadline=None, max_examples=50)
def test_any_texts_give_unit_vectors(texts: list[str]) -> None:
    vectors = embed(*texts)
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(texts), 512))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("text", ["", " ", "…", "😀", "\ud800"])
def test_text_without_words_has_its_own_direction(text: str) -> None:
    vector, same, other = embed(text, text, "words")
    assert vector @ same == pytest.approx(1)
    assert vector @ other < 0.5


def test_cancelled_features_still_give_a_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter([7, 7 + (1 << 31), 9])

    def scripted(_: str) -> int:
        return next(hashes)

    monkeypatch.setattr("threefold_server.models.hashing._hash", scripted)
    assert embed("a")[0].argmax() == 9


def test_shared_words_pairs_and_letters_bring_texts_closer() -> None:
    question, same, order, inflected, other = embed(
        "Caroline paints sunsets",
        "caroline PAINTS sunsets!",
        "sunsets paints Caroline",
        "Caroline painted a sunset",
        "Quarterly revenue grew",
    )
    assert question @ same == pytest.approx(1)
    assert 1 > question @ order > question @ inflected > 0.3 > question @ other


def test_vector_does_not_depend_on_the_process() -> None:
    """Stored vectors are compared with vectors of another process, where the built-in `hash` would be salted."""
    [vector] = embed("stable")
    assert np.flatnonzero(vector).tolist() == [39, 83, 124, 151, 226, 268, 288]
