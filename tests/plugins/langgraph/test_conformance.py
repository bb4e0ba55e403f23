"""The official conformance suite of LangGraph, with the async methods and with the sync ones, on a served process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.conformance import (  # pyright: ignore[reportMissingTypeStubs]
    checkpointer_test,
    validate,
)
from langgraph.checkpoint.conformance.capabilities import Capability  # pyright: ignore[reportMissingTypeStubs]
from langgraph.checkpoint.conformance.report import CapabilityReport  # pyright: ignore[reportMissingTypeStubs]

from fixtures.served import served
from threefold_langgraph import ThreefoldConnection, ThreefoldSaver


class Blocking(ThreefoldSaver):
    """Implements each async method by its sync twin."""

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)


def report_on(kind: type[ThreefoldSaver], url: str) -> CapabilityReport:
    """Run the suite with a saver of one user and return its report."""

    @checkpointer_test(name=kind.__name__)
    async def made() -> AsyncGenerator[ThreefoldSaver]:
        connection = ThreefoldConnection.connect(url, user="ana")
        yield kind(connection)
        await connection.aclose()

    return asyncio.run(validate(made))


def test_saver_has_and_passes_every_capability(database_url: str) -> None:
    with served("--database-url", database_url, "--embedder", "hash") as url:
        for kind in (ThreefoldSaver, Blocking):
            results = report_on(kind, url).results
            assert {name: result.failures for name, result in results.items() if not result.passed} == {}, kind
            assert {name for name, result in results.items() if result.detected} == {item.value for item in Capability}
