"""The process of background work that `threefold serve` starts: killed, stopped, left alone and refused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fixtures.command_line import Run, lives
from fixtures.faults import Serving, expire_leases

SAID = {"role": "user", "content": "I deploy to staging on Fridays."}
WAIT_SECONDS = 60


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def child_of(pid: int) -> int | None:
    """Return the process that a service has started, if there is one."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return int(found[0]) if found else None


def metric(service: Serving, name: str) -> float:
    """Return the value of a metric without labels."""
    for line in httpx.get(f"{service.url}/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(name)


def working_child(service: Serving) -> int:
    """Wait until the process of background work works, and return it."""
    until(lambda: metric(service, "threefold_consolidation_up") == 1)
    child = child_of(service.pid)
    assert child is not None
    return child


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "log", "--database-url", database_url, "--tier-deadline", "30") as serving:
        yield serving


def test_killed_process_is_started_again_and_does_what_was_left(service: Serving, database_url: str) -> None:
    child = working_child(service)
    os.kill(child, signal.SIGKILL)
    with service.client() as memory:
        until(lambda: memory.ready().status == "degraded")
        assert "exit code -9" in (memory.ready().detail or "")
        memory.write("s1", [SAID])
        assert [found.text for found in memory.recall("when do I deploy?", session_id="s2").memories] == [
            SAID["content"]
        ]
        until(lambda: memory.ready().status == "ok")
        expire_leases(database_url)
        assert memory.wait("s1", timeout=WAIT_SECONDS).indexed_upto == 1
    assert working_child(service) != child
    assert metric(service, "threefold_consolidation_restarts_total") == 1


def test_metrics_are_those_of_both_processes_and_sigterm_ends_both(service: Serving) -> None:
    child = working_child(service)
    with service.client() as memory:
        memory.write("s1", [SAID])
    text = httpx.get(f"{service.url}/metrics").text
    assert text.count("# TYPE threefold_tasks gauge") == 1, "of the other process"
    assert text.count("# TYPE threefold_requests_total counter") == 1
    assert service.stop() == 0
    assert not lives(child)


def test_sigterm_to_the_process_of_background_work_alone_restarts_it(service: Serving) -> None:
    child = working_child(service)
    os.kill(child, signal.SIGTERM)
    until(lambda: metric(service, "threefold_consolidation_restarts_total") == 1)
    with service.client() as memory:
        until(lambda: memory.ready().status == "ok")
    assert working_child(service) != child


def test_process_of_background_work_ends_with_a_killed_service(service: Serving) -> None:
    child = working_child(service)
    service.kill()
    until(lambda: not lives(child))


@pytest.mark.parametrize(("mode", "up"), [("thread", 1), ("off", 0)])
def test_setting_keeps_background_work_in_this_process_or_off(tmp_path: Path, mode: str, up: int) -> None:
    with Serving(tmp_path / "log", "--data", str(tmp_path), "--consolidate", mode) as service:
        assert metric(service, "threefold_consolidation_up") == up
        assert child_of(service.pid) is None
        assert service.stop() == 0


def test_wrong_setting_is_refused_before_any_process_starts(run: Run) -> None:
    refused = run("serve", "--consolidate", "twice")
    assert (refused.code, "--consolidate" in refused.err) == (2, True)
