"""Requests that cost the service more than their sender: unknown callers, half-sent requests, endless headers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from fixtures.faults import Serving
from fixtures.keys import make_key
from threefold_server.settings import sqlite_url

pytestmark = pytest.mark.timeout(180)

MEBIBYTE = 2**20
JSON = {"Content-Type": "application/json"}
MODES = {
    "dev": (),
    "keys": ("--mode", "keys"),
    "jwt": ("--mode", "jwt", "--jwt-issuer", "https://issuer.example", "--jwt-audience", "threefold"),
    "gateway": ("--mode", "gateway"),
}
PATHS = ["/v1/write", "/v1/recall", "/v1/threads/t/checkpoints", "/v1/items/batch", "/v1/admin/import", "/mcp"]


def shapes(size: int) -> dict[str, bytes]:
    """Return bodies of about this size whose values take much more memory than their bytes."""
    pieces = {"lists": b"[],", "objects": b'{"a":1},', "numbers": b"1,", "one level": b'{"b":[0]},'}
    return {name: b'{"turns":[' + piece * (size // len(piece)) + b"0]}" for name, piece in pieces.items()}


@pytest.fixture(scope="module", params=MODES)
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service in each mode that does not know the test's identity."""
    path = tmp_path_factory.mktemp("strict")
    serving = Serving(path / "log", "--data", str(path), *MODES[request.param])
    if request.param in ("jwt", "gateway"):
        serving.variables[f"THREEFOLD_{request.param.upper()}_SECRET"] = "x" * 32
    with serving:
        yield serving


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service that accepts the test, with short timeouts and few connections."""
    path = tmp_path_factory.mktemp("open")
    limits = ("--header-timeout", "1", "--body-timeout", "4", "--max-connections", "20")
    with Serving(path / "log", "--data", str(path), "--allow-admin", *limits) as serving:
        yield serving


def unknown_caller(serving: Serving) -> dict[str, str]:
    """Return the headers of an unknown caller; in mode `dev`, a host name of another machine."""
    return JSON | ({"Host": "evil.example"} if "--mode" not in serving.options else {})


@contextmanager
def connected(url: str) -> Generator[socket.socket]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=60) as wire:
        yield wire


def answer_of(wire: socket.socket) -> bytes:
    """Return everything that the service sends until it closes the connection."""
    received = b""
    try:
        while piece := wire.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def check_form(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode(), answer
    assert b"connection: close" in head.lower()
    assert set(json.loads(body)["error"]) == {"code", "message", "details"}


def memory_of(serving: Serving) -> int:
    """Return the peak memory of the service in bytes."""
    lines = Path(f"/proc/{serving.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def watched(url: str) -> Generator[list[float]]:
    """Call /healthz repeatedly in a thread, and collect the seconds of each call."""
    taken: list[float] = []
    over = threading.Event()

    def look() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not over.is_set():
                taken.append(client.get("/healthz").elapsed.total_seconds())
                time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield taken
        finally:
            over.set()
            looking.result()


@pytest.mark.parametrize("path", PATHS)
def test_unknown_caller_is_refused_before_the_body(strict: Serving, path: str) -> None:
    """The answer does not wait for the announced body."""
    headers = {"Host": "127.0.0.1", **unknown_caller(strict), "Content-Length": str(30 * MEBIBYTE)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with connected(strict.url) as wire:
        wire.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode())
        answer = answer_of(wire)
    assert answer.split()[1] in (b"401", b"403"), answer
    check_form(answer, int(answer.split()[1]))


def test_bodies_of_unknown_callers_take_no_memory(strict: Serving) -> None:
    before = memory_of(strict)
    bodies = list(shapes(30 * MEBIBYTE).values())

    def send(body: bytes) -> int:
        try:
            return httpx.post(
                f"{strict.url}/v1/write", content=body, headers=unknown_caller(strict), timeout=60
            ).status_code
        except httpx.TransportError:  # cut off while it was sending
            return 401

    with ThreadPoolExecutor(len(bodies)) as pool:
        assert set(pool.map(send, bodies * 2)) <= {401, 403}
    assert memory_of(strict) - before < 30 * MEBIBYTE


def test_small_body_of_an_unknown_caller_keeps_the_connection(strict: Serving) -> None:
    with httpx.Client(base_url=strict.url, headers=unknown_caller(strict)) as client:
        answer = client.post("/v1/write", json={"session_id": "s"})
    assert answer.status_code in (401, 403)
    assert "connection" not in answer.headers


def test_large_bodies_block_no_other_call_and_take_bounded_memory(open_to_all: Serving) -> None:
    """While ten bodies are parsed, /healthz answers sooner than the quickest of them takes alone."""
    bodies = list(shapes(30 * MEBIBYTE).values())

    def send(body: bytes) -> httpx.Response:
        return httpx.post(f"{open_to_all.url}/v1/write", content=body, headers=JSON, timeout=120)

    alone = [send(body) for body in bodies]
    assert {answer.status_code for answer in alone} == {422}
    before = memory_of(open_to_all)
    with watched(open_to_all.url) as taken, ThreadPoolExecutor(10) as pool:
        assert {answer.status_code for answer in pool.map(send, (bodies * 3)[:10])} <= {408, 422, 503}
    assert max(taken) < min(answer.elapsed.total_seconds() for answer in alone)
    assert memory_of(open_to_all) - before < 600 * MEBIBYTE


def test_large_write_and_large_import_work(open_to_all: Serving) -> None:
    text = "The heron lands. " * 2_000
    turns = [{"role": "user", "content": text, "id": f"t{number}"} for number in range(850)]
    with open_to_all.client(user="large", timeout=120) as client:
        assert client.write("s1", turns).appended == 850
    with httpx.Client(base_url=open_to_all.url, timeout=120) as http:
        lines = http.get("/v1/admin/export", params={"user": "large"}).text.splitlines()
        rows = [json.loads(line) for line in lines[1:-1]]
        answer = http.post("/v1/admin/import", json={"user": "large", "rows": rows[:800]})
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json() == {"added": 0, "present": 800}


@pytest.mark.parametrize("sent", [b"G", b"GET /healthz HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "])
def test_incomplete_headers_time_out(open_to_all: Serving, sent: bytes) -> None:
    with connected(open_to_all.url) as wire:
        wire.sendall(sent)
        check_form(answer_of(wire), 408)


def test_slow_headers_time_out(open_to_all: Serving) -> None:
    with connected(open_to_all.url) as wire:
        for letter in b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 1_000:
            try:
                wire.sendall(bytes([letter]))
            except OSError:
                break
            time.sleep(0.05)
        else:
            pytest.fail("the connection is still open")


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 1000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"],
    ids=["stated", "chunked"],
)
def test_incomplete_body_times_out(open_to_all: Serving, framing: bytes) -> None:
    with connected(open_to_all.url) as wire:
        wire.sendall(b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + framing)
        check_form(answer_of(wire), 408)


def test_slow_body_times_out(open_to_all: Serving) -> None:
    """Each piece comes in time, but the whole body does not."""
    with connected(open_to_all.url) as wire:
        wire.sendall(b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        wire.sendall(b"Content-Length: 100000\r\n\r\n")
        for _ in range(600):
            try:
                wire.sendall(b" ")
            except OSError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the connection is still open")


def endless_header() -> Iterator[bytes]:
    yield b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "
    yield from (b"a" * 65_536 for _ in range(1_000))


def many_headers() -> Iterator[bytes]:
    yield b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    yield from (b"X-A: b\r\n" * 1_000 for _ in range(1_000))


def endless_url() -> Iterator[bytes]:
    yield b"GET /"
    yield from (b"a" * 65_536 for _ in range(1_000))


def endless_trailer() -> Iterator[bytes]:
    yield b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    yield b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-A: "
    yield from (b"a" * 65_536 for _ in range(1_000))


def endless_chunk_extension() -> Iterator[bytes]:
    yield b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    yield b"Transfer-Encoding: chunked\r\n\r\n1;"
    yield from (b"a" * 65_536 for _ in range(1_000))


@pytest.mark.parametrize(
    "attack", [endless_header, many_headers, endless_url, endless_trailer, endless_chunk_extension]
)
def test_endless_headers_are_cut_off(open_to_all: Serving, attack: Callable[[], Iterator[bytes]]) -> None:
    sent = 0
    with connected(open_to_all.url) as wire:
        try:
            for piece in attack():
                wire.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    assert sent < 30 * MEBIBYTE  # the buffers of both ends hold a part
    assert httpx.get(f"{open_to_all.url}/healthz").status_code == 200


def test_long_url_is_refused_with_an_error_of_the_contract(open_to_all: Serving) -> None:
    with connected(open_to_all.url) as wire:
        wire.sendall(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        check_form(answer_of(wire), 414)


@pytest.mark.parametrize(
    "sent", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", b"\x16\x03\x01\x02\x00"]
)
def test_malformed_http_is_refused_with_an_error_of_the_contract(open_to_all: Serving, sent: bytes) -> None:
    with connected(open_to_all.url) as wire:
        wire.sendall(sent)
        check_form(answer_of(wire), 400)


@pytest.mark.parametrize("length", [b"33554433", b"99999999999999"])
def test_body_announced_too_large_is_refused(open_to_all: Serving, length: bytes) -> None:
    with connected(open_to_all.url) as wire:
        wire.sendall(b"POST /v1/recall HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        wire.sendall(b"Content-Length: " + length + b"\r\n\r\n")
        check_form(answer_of(wire), 413)


def test_chunked_body_ends_at_the_limit(open_to_all: Serving) -> None:
    def endless() -> Iterator[bytes]:
        yield from (b" " * MEBIBYTE for _ in range(200))

    before = memory_of(open_to_all)
    try:
        answer = httpx.post(f"{open_to_all.url}/v1/recall", content=endless(), headers=JSON, timeout=60)
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # cut off while it was sending
    assert memory_of(open_to_all) - before < 200 * MEBIBYTE


def test_idle_and_half_open_connections_make_room(open_to_all: Serving) -> None:
    """Other callers are served beside two hundred connections that send nothing or incomplete headers."""
    with ExitStack() as stack:
        for number in range(200):
            wire = stack.enter_context(connected(open_to_all.url))
            if number % 2:
                wire.sendall(b"GET /healthz HT")
            if number % 20 == 0:
                assert httpx.get(f"{open_to_all.url}/healthz", timeout=30).status_code == 200


def test_key_is_verified_before_the_body(tmp_path: Path) -> None:
    """With a key the same body is read, and refused for its content."""
    with Serving(tmp_path / "log", "--data", str(tmp_path), "--mode", "keys") as serving:
        key = make_key(sqlite_url(tmp_path))
        body = shapes(2 * MEBIBYTE)["lists"]
        for token, status in ((key, 422), ("wrong", 401)):
            headers = JSON | {"Authorization": f"Bearer {token}"}
            with closing(httpx.Client(base_url=serving.url, headers=headers, timeout=60)) as client:
                assert client.post("/v1/write", content=body).status_code == status
