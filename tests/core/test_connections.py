"""Connections across threads, event loops, forks and exits, against a server in another thread.

Users reported "Event loop is closed" after memory work in the background.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from threefold import AsyncMemoryClient, AsyncMemorySession, MemoryClient, MemorySession, Policy, Unreachable
from threefold.contract import WriteResponse

REPLY = WriteResponse(appended=1, duplicates=0, erased=0, last_seq=1, revision=1, scheduled=False).model_dump_json()
TURNS = [{"role": "user", "content": "hello"}]


class Server(ThreadingHTTPServer):
    """Answers every write, keeps connections open and counts them."""

    daemon_threads = True
    connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.server, Server)
        self.server.connections += 1

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(REPLY)))
        self.end_headers()
        self.wfile.write(REPLY.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    """Make a leaked socket or transport fail the test that leaked it, as warnings are errors."""
    yield
    gc.collect()


def test_nothing_connects_before_the_first_call(server: Server) -> None:
    MemoryClient(server.url).close()
    asyncio.run(AsyncMemoryClient(server.url).close())
    assert server.connections == 0


def test_connection_is_reused(server: Server) -> None:
    client = MemoryClient(server.url)
    for name in ("ann", "bob", "ann"):
        client.acting_as(user=name, agent=None).write("s", TURNS)
    assert server.connections == 1


def test_threads_share_one_client(server: Server) -> None:
    client = MemoryClient(server.url)

    def write(number: int) -> WriteResponse:
        return client.write(f"s{number}", TURNS)

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(write, range(40)))) == 40
    assert 1 <= server.connections <= 4


def test_sync_client_works_inside_a_running_loop(server: Server) -> None:
    async def notebook() -> bool:
        return MemorySession(MemoryClient(server.url), "s", policy=Policy(failure_mode="strict")).record(TURNS)

    assert asyncio.run(notebook())


def test_one_async_client_works_in_one_loop_after_another(server: Server) -> None:
    client, policy = AsyncMemoryClient(server.url), Policy(failure_mode="strict")

    async def run() -> list[bool]:
        session = AsyncMemorySession(client, "s", policy=policy)
        return [await session.record(TURNS) for _ in range(3)]

    assert asyncio.run(run()) == asyncio.run(run()) == [True] * 3
    assert server.connections == 2


def test_one_async_client_works_in_loops_of_four_threads(server: Server) -> None:
    client = AsyncMemoryClient(server.url)

    async def write_five(number: int) -> int:
        return len(await asyncio.gather(*(client.write(f"s{number}", TURNS) for _ in range(5))))

    def run(number: int) -> int:
        return asyncio.run(write_five(number))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == [5] * 8


def test_client_in_a_manual_loop_can_be_closed(server: Server) -> None:
    client = AsyncMemoryClient(server.url)

    async def write_and_close() -> None:
        await client.write("s", TURNS)
        await client.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(write_and_close())
    loop.close()
    asyncio.run(client.write("s", TURNS))
    assert server.connections == 2


def test_client_that_ends_with_its_loop_closes_every_connection(server: Server) -> None:
    async def write_three() -> None:
        client = AsyncMemoryClient(server.url)
        await asyncio.gather(*(client.write(f"s{number}", TURNS) for number in range(3)))

    asyncio.run(write_three())
    assert server.connections == 3


def test_client_in_a_reference_cycle_closes_its_connections(server: Server) -> None:
    """A replaced agent is often part of a cycle. Its idle sockets must not warn when they are collected."""
    loop = asyncio.new_event_loop()

    def ask() -> None:
        held: dict[str, object] = {}
        held["itself"] = held
        held["client"] = client = AsyncMemoryClient(server.url)
        loop.run_until_complete(client.write("s", TURNS))

    async def go_on() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    ask()
    gc.collect()
    loop.run_until_complete(go_on())
    loop.close()


def test_loop_that_just_stopped_does_not_affect_the_next_one() -> None:
    client = AsyncMemoryClient("http://h", transport=httpx.MockTransport(lambda _: httpx.Response(200, text=REPLY)))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.write("s", TURNS))
    loop.close()
    assert asyncio.run(client.write("s", TURNS)).appended == 1


def test_cancelled_calls_leave_the_client_usable(server: Server) -> None:
    client = AsyncMemoryClient(server.url)

    async def run() -> None:
        tasks = [asyncio.create_task(client.write("s", TURNS)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.write("s", TURNS)

    asyncio.run(run())


def test_closed_port_is_unreachable(server: Server) -> None:
    with Server(("127.0.0.1", 0), Handler) as gone:
        url = gone.url
    with pytest.raises(Unreachable, match="refused"):
        MemoryClient(url).write("s", TURNS)
    with pytest.raises(Unreachable):
        asyncio.run(AsyncMemoryClient(url).write("s", TURNS))


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore", ResourceWarning)  # the child inherits a socket that it must not close
from threefold import MemoryClient
client = MemoryClient(sys.argv[1])
turns = [{"role": "user", "content": "hello"}]
client.write("s", turns)
child = os.fork()
if child == 0:
    client.write("s", turns)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
client.write("s", turns)
"""

UNCLOSED = """
import asyncio, sys
from threefold import AsyncMemoryClient, MemoryClient
turns = [{"role": "user", "content": "hello"}]
client = MemoryClient(sys.argv[1])
for _ in range(3):
    client.write("s", turns)
asyncio.run(AsyncMemoryClient(sys.argv[1]).write("s", turns))
"""


def script(source: str, server: Server) -> str:
    """Run a script with every warning on and return its stderr."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", source, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_opens_its_own_connections(server: Server) -> None:
    assert script(FORKED, server) == ""
    assert server.connections == 2


def test_plain_script_needs_no_close(server: Server) -> None:
    assert script(UNCLOSED, server) == ""
    assert server.connections == 2
