"""The service killed, stopped and run twice under load: acknowledged turns are stored and indexed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fixtures.faults import Serving, Writers, check_consolidated, check_turns, expire_leases

SESSIONS = ["own 0", "own 1", "shared", "shared"]
MARKS = ("--token-budget", "200", "--compaction-trigger", "150", "--compaction-target", "50")

pytestmark = pytest.mark.slow

Serve = Callable[[], Serving]


@pytest.fixture
def serve(database_url: str, tmp_path: Path) -> Iterator[Serve]:
    """Return a function that makes services on one database; a dozen turns of theirs are enough for a fold."""
    with ExitStack() as stack:
        options = ("--database-url", database_url, *MARKS)
        yield lambda: stack.enter_context(Serving(tmp_path / "log", *options))


def test_killed_service_keeps_acknowledged_turns(serve: Serve, database_url: str) -> None:
    service = serve()
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for _ in range(2):
            writers.wait_for(30)
            service.kill()
            service.start()
        writers.wait_for(10)
    expire_leases(database_url)
    with service.client() as client:
        check_turns(client, writers.turns)
        check_consolidated(database_url, client, list(writers.turns))


def test_stop_under_load_fails_no_call_in_flight(serve: Serve, database_url: str) -> None:
    service = serve()
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        writers.wait_for(30)
        assert service.stop() == 0
    assert set(writers.failures) <= {"Unreachable"}
    service.start()
    with service.client() as client:
        check_turns(client, writers.turns)
        check_consolidated(database_url, client, list(writers.turns))


def test_two_services_share_one_database(serve: Serve, database_url: str) -> None:
    """Users reported corrupt files and lost writes with two processes on one store. One of the processes is killed."""
    first, second = serve(), serve()
    with (
        Writers(first.client, ["shared", "first"]) as ones,
        Writers(second.client, ["shared", "second"], first_writer=2) as others,
    ):
        ones.wait_for(40)
        others.wait_for(40)
        second.kill()
        ones.wait_for(20)
    assert not ones.failures
    expire_leases(database_url)
    turns = {"first": ones.turns["first"], "second": others.turns["second"]}
    turns["shared"] = [*ones.turns["shared"], *others.turns["shared"]]
    with first.client() as client:
        check_turns(client, turns)
        check_consolidated(database_url, client, list(turns))
