"""Both clients have every operation and send what the contract says."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any, cast, get_type_hints

import pytest
from pydantic import BaseModel, ValidationError

from fixtures.fake_service import FakeService, refusing
from threefold import (
    AsyncMemoryClient,
    AsyncMemorySession,
    InternalError,
    InvalidRequest,
    MemoryClient,
    MemorySession,
    calls,
)
from threefold.admin import Admin, AsyncAdmin
from threefold.admin_calls import AdminForgetOptions, AdminListOptions
from threefold.contract import (
    ForgetRequest,
    ListRequest,
    RecallRequest,
    SaveFactRequest,
    TurnIn,
    UpdateFactRequest,
    WriteRequest,
)
from threefold.contract.admin import AdminForgetRequest, AdminListRequest

TURN = TurnIn(role="user", content="hello")

# Per operation: positional arguments, options, and the expected request line.
OPERATIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "write": (("s", [TURN]), {"run_end": True}, "POST /v1/write"),
    "recall": (("q",), {"session_id": "s"}, "POST /v1/recall"),
    "list": ((), {"limit": 3}, "POST /v1/list"),
    "forget": ((), {"session_id": "s"}, "POST /v1/forget"),
    "save": (("fact",), {"session_id": "s", "pinned": True}, "POST /v1/facts"),
    "get_fact": (("f",), {}, "GET /v1/facts/f"),
    "update_fact": (("f",), {"pinned": True}, "PATCH /v1/facts/f"),
    "delete_fact": (("f",), {"sources": True}, "DELETE /v1/facts/f?sources=1"),
    "fact_history": (("f",), {}, "GET /v1/facts/f/history"),
    "restore_fact": (("f",), {}, "POST /v1/facts/f/restore"),
    "sessions": ((), {"cursor": "c", "limit": 3}, "GET /v1/sessions?cursor=c&limit=3"),
    "state": (("s",), {}, "GET /v1/sessions/s/state"),
    "turns": (("s",), {"from_seq": 2, "payload": True}, "GET /v1/sessions/s/turns?from_seq=2&payload=1"),
    "digests": (("s",), {"cursor": "c", "limit": 5}, "GET /v1/sessions/s/digests?cursor=c&limit=5"),
    "digest": (("s", 4), {}, "GET /v1/sessions/s/digests/4"),
    "status": (("..",), {}, "GET /v1/sessions/%2E%2E/status"),
    "end": (("s",), {"wait": 1.5}, "POST /v1/sessions/s/end?wait=1.5"),
    "items_batch": (([{"op": "get", "namespace": ["a"], "key": "k"}],), {}, "POST /v1/items/batch"),
    "whoami": ((), {}, "GET /v1/whoami"),
    "health": ((), {}, "GET /healthz"),
    "ready": ((), {}, "GET /readyz"),
}
BUILDERS = {"list": "list_memories"}  # names that differ from the method, which would hide a built-in
COMPOSED = {"iter_memories", "wait", "check", "send", "stream", "acting_as", "from_env", "close"}
TWINS = [(MemoryClient, AsyncMemoryClient), (MemorySession, AsyncMemorySession), (Admin, AsyncAdmin)]
REQUESTS: list[tuple[type[BaseModel], type, set[str]]] = [
    (WriteRequest, calls.WriteOptions, {"session_id", "turns"}),
    (RecallRequest, calls.RecallOptions, {"query", "session_id"}),
    (ListRequest, calls.ListOptions, set()),
    (ForgetRequest, calls.ForgetOptions, set()),
    (SaveFactRequest, calls.SaveOptions, {"text", "session_id"}),
    (UpdateFactRequest, calls.UpdateOptions, set()),
    (AdminListRequest, AdminListOptions, set()),
    (AdminForgetRequest, AdminForgetOptions, set()),
]


def body(call: calls.Call[Any]) -> dict[str, Any]:
    assert call.body is not None
    return json.loads(call.body)


def methods(cls: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in inspect.getmembers(cls, callable) if not name.startswith("_")}


def arguments(method: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.name not in ("transport", "sleep")  # their types differ between the clients
    ]


def built(name: str) -> calls.Call[Any]:
    args, options, _ = OPERATIONS[name]
    return getattr(calls, BUILDERS.get(name, name))(*args, **options)


@pytest.mark.parametrize("name", OPERATIONS)
def test_both_clients_send_the_request_of_the_contract(fake: FakeService, name: str) -> None:
    args, options, line = OPERATIONS[name]
    fake.fault = refusing(InternalError("seen enough"))
    with pytest.raises(InternalError):
        getattr(fake.client(), name)(*args, **options)
    with pytest.raises(InternalError):
        asyncio.run(getattr(fake.async_client(), name)(*args, **options))
    assert [f"{request.method} {request.url.raw_path.decode()}" for request in fake.requests] == [line, line]
    if name != "write":  # its turn gets a new id each time
        assert {request.content for request in fake.requests} == {built(name).body or b""}


def test_clients_have_every_operation_and_nothing_else() -> None:
    assert methods(MemoryClient).keys() == OPERATIONS.keys() | COMPOSED


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_twins_have_equal_signatures(one: type, other: type) -> None:
    assert methods(one).keys() == methods(other).keys()
    for name, method in methods(one).items():
        assert arguments(method) == arguments(methods(other)[name]), name
        awaited = str(inspect.signature(methods(other)[name]).return_annotation).replace("AsyncIterator", "Iterator")
        assert inspect.signature(method).return_annotation == awaited, name
    named = [[parameter.name for parameter in inspect.signature(cls).parameters.values()] for cls in (one, other)]
    assert named[0] == named[1]


@pytest.mark.parametrize(("request_model", "options", "positional"), REQUESTS)
def test_options_are_the_fields_of_the_request(
    request_model: type[BaseModel], options: type, positional: set[str]
) -> None:
    assert get_type_hints(options).keys() | positional == request_model.model_fields.keys()


def test_only_given_options_are_sent() -> None:
    """A default of the client would override the default of the store."""
    assert body(calls.recall("q", top_k=3)) == {"query": "q", "session_id": None, "top_k": 3}


def test_every_turn_gets_its_own_id() -> None:
    sent = body(calls.write("s", [TURN, {"role": "user", "content": "hello"}, TurnIn(role="user", content="", id="x")]))
    ids = [turn["id"] for turn in sent["turns"]]
    assert len({*ids}) == 3
    assert ids[2] == "x"
    assert TURN.id is None


@pytest.mark.parametrize(
    ("fact_id", "segment"),
    [
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("a b?#", "a%20b%3F%23"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ("...", "..."),
    ],
)
def test_ids_in_paths_are_encoded_exactly(fact_id: str, segment: str) -> None:
    """Users reported that an id with a hyphen, comma, pipe or slash gave no result or a 500."""
    assert calls.get_fact(fact_id).path == f"/v1/facts/{segment}"


@pytest.mark.parametrize("bad", ["", "  ", "*", "a\x00b", "\ud800", "x" * 513])
def test_bad_ids_are_refused_before_anything_is_sent(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="id"):
        calls.get_fact(bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"role": "robot", "content": "SECRET"},
        {"role": "user", "content": "SECRET", "user_id": "SECRET"},
        {"role": "user", "content": ["SECRET"]},
        {"role": "user", "content": "SECRET", "model": "x", "payload": "SECRET\x00"},
    ],
)
def test_refused_request_names_the_field_and_quotes_no_content(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        calls.write("s", [bad])
    assert "SECRET" not in f"{caught.value}{caught.value.details}"
    assert caught.value.details["fields"]
    assert caught.value.__context__ is None  # the error of pydantic quotes its input


FLAGS: list[tuple[type[BaseModel], str]] = [
    (AdminForgetRequest, "everything"),
    (AdminForgetRequest, "dry_run"),
    (ForgetRequest, "dry_run"),
    (ForgetRequest, "sources"),
    (SaveFactRequest, "pinned"),
    (SaveFactRequest, "shared"),
    (UpdateFactRequest, "pinned"),
    (WriteRequest, "run_end"),
]


@pytest.mark.parametrize(("request_model", "flag"), FLAGS)
@pytest.mark.parametrize("value", [1, 0, "true", "no"])
def test_flag_must_be_a_boolean(request_model: type[BaseModel], flag: str, value: object) -> None:
    """Some flags erase or prevent an erasure, so other values are not converted."""
    with pytest.raises(ValidationError) as refusal:
        request_model.model_validate({flag: value})
    assert (flag,) in [error["loc"] for error in refusal.value.errors()]


def test_forget_requires_exactly_one_selector() -> None:
    with pytest.raises(InvalidRequest, match="exactly one"):
        calls.forget(session_id="s", level="user")


def test_deadlines_depend_on_the_operation_and_include_waiting() -> None:
    deadlines = calls.Deadlines(recall=1, write=2, long=3)
    seconds = {name: built(name).seconds(deadlines) for name in OPERATIONS}
    assert (seconds["recall"], seconds["write"], seconds["save"], seconds["whoami"]) == (1, 2, 2, 2)
    assert (seconds["forget"], seconds["list"], seconds["end"]) == (3, 3, 4.5)


def test_metadata_is_checked_as_on_the_service() -> None:
    with pytest.raises(InvalidRequest, match="reserved keys: user_id"):
        calls.save("fact", metadata=cast(Any, {"user_id": "mallory"}))
