"""A service supervises its process of background work: scripts stand in for the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from fixtures.command_line import lives
from fixtures.consolidation import World
from threefold_server.consolidation import process
from threefold_server.consolidation.process import Supervisor
from threefold_server.service import Background

pytestmark = pytest.mark.anyio
WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let restarts follow at once, and a process that hangs be killed soon."""
    monkeypatch.setattr(process, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(process, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


async def supervised(world: World, command: Sequence[str], done: Callable[[Supervisor], bool]) -> Background:
    """Supervise a command until a condition holds."""
    supervisor = Supervisor(world.service, command)
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(WAIT_SECONDS):
            while not done(supervisor):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    return supervisor.background


def restarts(world: World) -> float:
    return world.service.metrics.registry.get_sample_value("threefold_consolidation_restarts_total") or 0.0


async def test_process_that_fails_is_tried_again(world: World) -> None:
    found = await supervised(world, python("raise SystemExit(1)"), lambda _: restarts(world) >= 3)
    assert found.problem == "background work does not run: exit code 1; it starts again"


async def test_process_that_refuses_its_settings_is_tried_once(world: World) -> None:
    supervisor = Supervisor(world.service, python("raise SystemExit(2)"))
    with anyio.fail_after(WAIT_SECONDS):
        await supervisor.run()
    assert restarts(world) == 0
    assert "correct the settings" in (supervisor.background.problem or "")


async def test_process_that_hangs_is_killed_and_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENCE_SECONDS", 0.5)
    found = await supervised(world, python("import time; time.sleep(600)"), lambda _: restarts(world) >= 1)
    assert "it sent nothing for 0.5 s" in (found.problem or "")


async def test_process_that_does_not_stop_is_killed(world: World, tmp_path: Path) -> None:
    script = f"import os, time; print('\"\"', flush=True); open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    script += "\ntime.sleep(600)"

    def written(_: Supervisor) -> bool:
        with suppress(FileNotFoundError):
            return (tmp_path / "pid").read_text() != ""
        return False

    await supervised(world, python(script), written)
    assert not lives(int((tmp_path / "pid").read_text()))


async def test_missing_program_is_a_reason(world: World) -> None:
    found = await supervised(world, ["/nonexistent/program"], lambda _: restarts(world) >= 1)
    assert "cannot be started (No such file or directory)" in (found.problem or "")
