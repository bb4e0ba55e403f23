"""How the clients handle answers, failures and deadlines. Tests run for both clients, with a simulated clock."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fixtures.fake_service import NOON, URL, Clock, FakeService, Fault, Twin, answer, down, refusing
from threefold import AsyncMemoryClient, Deadlines, InvalidRequest, MemoryClient, calls
from threefold.contract import Memory, MemoryPage, SessionStatus
from threefold.errors import (
    ERRORS,
    Conflict,
    Forbidden,
    InternalError,
    RateLimited,
    ServiceError,
    Unauthenticated,
    Unavailable,
    Unreachable,
    WaitTimeout,
)
from threefold.retries import ATTEMPTS

TURNS = [{"role": "user", "content": "SECRET"}]
WRITE = calls.write("s", TURNS)
SAVE = calls.save("SECRET")


def lost(request: httpx.Request) -> httpx.Response:
    """Break the connection after the request was sent."""
    raise httpx.ReadError("SECRET", request=request)


def slow(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("", request=request)


TRANSIENT: list[Fault] = [down, lost, slow, *(answer(status, "<html>SECRET</html>") for status in (502, 503, 504))]
REPEATABLE = [WRITE, calls.recall("q"), calls.forget(session_id="s"), calls.whoami()]
UNREPEATABLE = [SAVE, calls.update_fact("f", pinned=True), calls.delete_fact("f"), calls.restore_fact("f")]


@pytest.mark.parametrize("fault", [*TRANSIENT, refusing(Unavailable("busy")), refusing(RateLimited("slow down"))])
@pytest.mark.parametrize("call", REPEATABLE)
def test_transient_fault_is_retried(twin: Twin, fault: Fault, call: calls.Call[Any]) -> None:
    """Users reported that the first call after idle time or a restart of the database failed."""
    twin.service.faults = [fault]
    assert isinstance(twin.send(call), call.reply)
    assert len(twin.service.requests) == 2


def test_retried_write_stores_each_turn_once(twin: Twin) -> None:
    def lost_after_commit(request: httpx.Request) -> httpx.Response:
        twin.service.write(request)
        raise httpx.ReadError("reset", request=request)

    twin.service.faults = [lost_after_commit]
    response = twin.send(WRITE)
    assert (response.appended, response.duplicates) == (0, 1)
    assert twin.service.contents() == ["SECRET"]


@pytest.mark.parametrize("fault", [lost, slow, answer(502), answer(503), answer(504), answer(429)])
@pytest.mark.parametrize("call", UNREPEATABLE)
def test_call_that_is_not_idempotent_is_sent_once(twin: Twin, fault: Fault, call: calls.Call[Any]) -> None:
    twin.service.faults = [fault]
    with pytest.raises(Unreachable):
        twin.send(call)
    assert len(twin.service.requests) == 1


def test_call_that_never_left_is_sent_again(twin: Twin) -> None:
    twin.service.fault = down
    with pytest.raises(Unreachable):
        twin.send(SAVE)
    assert len(twin.service.requests) == ATTEMPTS


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_permanent_error_is_not_retried(twin: Twin, status: int) -> None:
    twin.service.fault = answer(status, "{}")
    with pytest.raises(Unreachable, match=str(status)):
        twin.send(calls.recall("q"))
    assert len(twin.service.requests) == 1


def test_pauses_between_attempts_grow(twin: Twin) -> None:
    twin.service.fault, clock = down, Clock()
    with pytest.raises(Unreachable):
        twin.send(calls.recall("q"), clock)
    first, second = clock.naps
    assert 0.05 <= first <= 0.1 <= second <= 0.2


def test_retry_after_is_respected_within_the_deadline(twin: Twin) -> None:
    clock = Clock()
    twin.service.faults = [refusing(RateLimited("slow down"), {"Retry-After": "1.5"})]
    twin.send(calls.recall("q"), clock)
    assert clock.naps == [1.5]


def test_retry_after_beyond_the_deadline_ends_the_call(twin: Twin) -> None:
    clock = Clock()
    twin.service.faults = [refusing(RateLimited("slow down"), {"Retry-After": "3"})]
    with pytest.raises(RateLimited) as caught:
        twin.send(calls.recall("q"), clock)
    assert clock.naps == []
    assert caught.value.details["retry_after"] == 3


def test_no_attempt_starts_after_the_deadline(twin: Twin) -> None:
    clock = Clock()

    def slow_failure(request: httpx.Request) -> httpx.Response:
        clock.now += 1.95
        raise httpx.ReadError("reset", request=request)

    twin.service.fault = slow_failure
    with pytest.raises(Unreachable):
        twin.send(calls.recall("q"), clock)
    assert len(twin.service.requests) == 1


@pytest.mark.parametrize(("call", "seconds"), [(calls.recall("q"), 2), (WRITE, 5), (calls.forget(session_id="s"), 30)])
def test_each_attempt_gets_the_remaining_time(twin: Twin, call: calls.Call[Any], seconds: float) -> None:
    clock = Clock()

    def slow_failure(request: httpx.Request) -> httpx.Response:
        clock.now += 1
        raise httpx.ReadError("reset", request=request)

    twin.service.faults = [slow_failure]
    twin.send(call, clock)
    first, second = (request.extensions["timeout"]["read"] for request in twin.service.requests)
    assert first == seconds
    assert second == pytest.approx(seconds - 1 - clock.naps[0])


def test_deadlines_can_be_set(twin: Twin) -> None:
    twin.send(calls.recall("q"), timeout=7.0)
    twin.send(calls.recall("q"), timeout=Deadlines(recall=0.5))
    assert [request.extensions["timeout"]["read"] for request in twin.service.requests] == [7.0, 0.5]


def test_slow_trickling_answer_is_cut_at_the_deadline() -> None:
    clock = Clock()

    class Drip(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                clock.now += 0.5
                yield b" "

    client = MemoryClient(URL, transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Drip())), clock=clock)
    with pytest.raises(Unreachable, match="timed out"):
        client.recall("q")


def test_silent_service_is_given_up_at_the_deadline() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    client = AsyncMemoryClient(URL, timeout=0.01, transport=httpx.MockTransport(never))
    with pytest.raises(Unreachable, match="timed out"):
        asyncio.run(client.recall("q"))


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_code_is_raised_as_its_class(twin: Twin, code: str) -> None:
    twin.service.fault = refusing(ERRORS[code]("what was wrong", {"field": "x"}))
    with pytest.raises(ServiceError, match="what was wrong") as caught:
        twin.send(calls.recall("q"))
    assert type(caught.value) is ERRORS[code]
    assert caught.value.details == {"field": "x"}


@pytest.mark.parametrize(
    ("status", "nearest"),
    [(403, Forbidden), (409, Conflict), (418, InvalidRequest), (503, Unavailable), (507, InternalError)],
)
def test_unknown_error_code_is_mapped_by_its_status(twin: Twin, status: int, nearest: type[ServiceError]) -> None:
    twin.service.fault = answer(status, '{"error": {"code": "brand_new", "message": "m", "more": 1}}')
    with pytest.raises(ServiceError) as caught:
        twin.send(calls.recall("q"))
    assert type(caught.value) is nearest


@pytest.mark.parametrize(
    "fault",
    [
        *TRANSIENT,
        answer(200, "<html>SECRET login</html>"),
        answer(200, '["SECRET"]'),
        answer(200, '{"window": "SECRET"}'),
        answer(200, ""),
        answer(307, "", {"Location": "http://elsewhere.test/"}),
        answer(200, "SECRET", {"Content-Encoding": "gzip"}),
        answer(400, '{"detail": "SECRET"}'),
    ],
)
def test_foreign_answer_is_unreachable_and_never_quoted(twin: Twin, fault: Fault) -> None:
    twin.service.fault = fault
    with pytest.raises(Unreachable, match=URL) as caught:
        twin.send(calls.recall("SECRET"), api_key="SECRET-KEY")
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None


def test_memory_and_key_are_never_logged(twin: Twin, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    twin.service.faults = [down, answer(502, "SECRET")]
    twin.send(WRITE, api_key="SECRET-KEY")
    assert "SECRET" not in caplog.text


def test_identity_is_sent_in_headers(twin: Twin) -> None:
    twin.send(calls.whoami(), user="zoë/日本", agent="a b", api_key="key")
    headers = twin.service.requests[0].headers
    assert headers["authorization"] == "Bearer key"
    assert headers["x-threefold-user"] == "zo%C3%AB%2F%E6%97%A5%E6%9C%AC"
    assert headers["x-threefold-agent"] == "a%20b"


def test_identity_that_was_not_given_is_not_sent(twin: Twin) -> None:
    twin.send(calls.whoami(), user=None, agent=None)
    assert {"authorization", "x-threefold-user", "x-threefold-agent"}.isdisjoint(twin.service.requests[0].headers)


def test_one_client_acts_for_many_users_without_mixing_them(fake: FakeService) -> None:
    client = fake.client()
    clones = [client.acting_as(user=name, agent=None) for name in ("ann", "bob")]
    assert [clone.whoami().user for clone in clones] == ["ann", "bob"]
    assert (client.user, client.agent) == ("ann", "bot")
    assert "x-threefold-agent" not in fake.requests[0].headers


@pytest.mark.parametrize("name", ["", "*", "  "])
def test_blank_identity_is_refused(fake: FakeService, name: str) -> None:
    for make in (lambda: fake.client(user=name), lambda: fake.client().acting_as(user="ann", agent=name)):
        with pytest.raises(InvalidRequest):
            make()


@pytest.mark.parametrize(
    "url", ["", "localhost:8181", "ftp://h", "http://", "http://a:b@h", "http://h?x=1", "http://h:port"]
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url must"):
        MemoryClient(url)


@pytest.mark.parametrize("key", ["", "SECRET\n", " SECRET", "SECRÉT", "SEC\x00RET"])
def test_key_unfit_for_a_header_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(ValueError, match="api_key must") as caught:
        MemoryClient(URL, api_key=key)
    assert "SEC" not in str(caught.value)


def test_repr_of_a_client_shows_its_url_but_not_its_key(fake: FakeService) -> None:
    client = fake.client(api_key="SECRET")
    assert repr(client) == "MemoryClient('http://memory.test', user='ann', agent='bot')"


def test_url_may_have_a_path(fake: FakeService) -> None:
    client = MemoryClient("https://host.test/memory/", transport=httpx.MockTransport(answer(200, '{"status": "ok"}')))
    assert client.health().status == "ok"
    assert client.url == "https://host.test/memory"


def test_origin_differs_by_service_and_key(fake: FakeService) -> None:
    one, same, other = (fake.client(api_key=key) for key in ("SECRET", "SECRET", "SECRET2"))
    assert one.origin == same.origin != other.origin
    assert one.origin == one.acting_as(user="bob", agent=None).origin


@pytest.mark.parametrize("cls", [MemoryClient, AsyncMemoryClient])
def test_from_env_reads_the_environment(
    cls: type[MemoryClient | AsyncMemoryClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (cls.from_env().url, cls.from_env().user, cls.from_env().agent) == ("http://127.0.0.1:8181", None, None)
    for name, value in {"URL": "http://h:1", "USER": "ann", "AGENT": "bot", "API_KEY": "k"}.items():
        monkeypatch.setenv(f"THREEFOLD_{name}", value)
    assert cls.from_env("http://127.0.0.1:9").url == "http://127.0.0.1:9"
    client = cls.from_env(timeout=3)
    assert (client.url, client.user, client.agent, client.deadlines.recall) == ("http://h:1", "ann", "bot", 3)
    assert client.origin == MemoryClient("http://h:1", api_key="k").origin
    monkeypatch.setenv("THREEFOLD_USER", "")
    assert cls.from_env().user is None


def test_constructor_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_USER", "mallory")
    assert MemoryClient(URL).user is None


@pytest.mark.parametrize(
    ("fault", "kind", "step"),
    [
        (down, Unreachable, "threefold serve"),
        (answer(200, "<html>"), Unreachable, "THREEFOLD_URL"),
        (refusing(Unauthenticated("no key")), Unauthenticated, "THREEFOLD_API_KEY"),
        (refusing(Forbidden("not yours")), Forbidden, "granted"),
        (refusing(InvalidRequest("no user named")), InvalidRequest, "THREEFOLD_USER"),
        (refusing(InternalError("fault")), InternalError, "fault"),
    ],
)
def test_check_names_the_next_step(fake: FakeService, fault: Fault, kind: type[Exception], step: str) -> None:
    fake.fault = fault
    with pytest.raises(kind, match=step) as caught:
        fake.client().check()
    assert caught.value.__cause__ is None  # an error that is its own cause puts code that follows the chain into a loop
    with pytest.raises(kind, match=step):
        asyncio.run(fake.async_client().check())


def test_check_of_a_healthy_service(fake: FakeService) -> None:
    assert fake.client().check() == asyncio.run(fake.async_client().check())


@pytest.mark.parametrize(
    ("fault", "status"),
    [(answer(200, '{"status": "ok"}'), "ok"), (answer(503, '{"status": "unavailable"}'), "unavailable")],
)
def test_not_ready_is_returned_and_not_raised(twin: Twin, fault: Fault, status: str) -> None:
    twin.service.fault = fault
    assert twin.send(calls.ready()).status == status
    assert len(twin.service.requests) == 1


def test_error_instead_of_readiness_is_raised(twin: Twin) -> None:
    twin.service.fault = refusing(Unavailable("no database"))
    with pytest.raises(Unavailable):
        twin.send(calls.ready())


def memory(number: int) -> Memory:
    return Memory.model_validate(
        {
            "id": str(number),
            "kind": "fact",
            "text": "t",
            "agent": "bot",
            "visibility": "user",
            "origin": "user",
            "trust": 1,
            "created_at": NOON,
        }
    )


def test_iteration_follows_all_pages(fake: FakeService) -> None:
    def pages() -> list[Fault]:
        first = MemoryPage(items=[memory(1), memory(2)], next_cursor="more")
        return [answer(200, page.model_dump_json()) for page in (first, MemoryPage(items=[memory(3)]))]

    async def collect() -> list[str]:
        return [item.id async for item in fake.async_client().iter_memories(limit=2)]

    fake.faults = pages()
    assert [item.id for item in fake.client().iter_memories(limit=2)] == ["1", "2", "3"]
    fake.faults = pages()
    assert asyncio.run(collect()) == ["1", "2", "3"]
    sent = [json.loads(request.content) for request in fake.requests]
    assert sent == 2 * [{"limit": 2}, {"limit": 2, "cursor": "more"}]


def state(name: str, reason: str | None = None) -> Fault:
    status = SessionStatus.model_validate(
        {"last_seq": 3, "indexed_upto": 1, "digested_upto": 0, "extracted_upto": 0, "state": name, "reason": reason}
    )
    return answer(200, status.model_dump_json())


def wait(fake: FakeService, is_async: bool, clock: Clock, timeout: float) -> SessionStatus:
    if is_async:
        return asyncio.run(fake.async_client(clock).wait("s", timeout=timeout))
    return fake.client(clock).wait("s", timeout=timeout)


def test_wait_polls_until_nothing_is_pending(twin: Twin) -> None:
    twin.service.faults, clock = [state("pending"), state("running"), state("idle")], Clock()
    assert wait(twin.service, twin.is_async, clock, 30).state == "idle"
    assert clock.naps == [0.05, 0.1]


def test_wait_raises_its_own_timeout(twin: Twin) -> None:
    twin.service.fault = state("pending")
    with pytest.raises(WaitTimeout, match="still pending: of 3 turns, 1 are indexed") as caught:
        wait(twin.service, twin.is_async, Clock(), 3)
    assert isinstance(caught.value, TimeoutError)


def test_wait_does_not_wait_for_parked_work(twin: Twin) -> None:
    twin.service.fault, clock = state("parked", "no model"), Clock()
    with pytest.raises(WaitTimeout, match="parked: no model"):
        wait(twin.service, twin.is_async, clock, 30)
    assert clock.naps == []


def test_closed_client_can_be_used_again(fake: FakeService) -> None:
    async def twice() -> None:
        async with fake.async_client() as client:
            await client.whoami()
        await client.whoami()

    with fake.client() as client:
        client.whoami()
    client.whoami()
    asyncio.run(twice())
    assert len(fake.requests) == 4
