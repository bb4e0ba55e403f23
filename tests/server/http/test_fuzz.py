"""Fuzzing of every operation of the OpenAPI document, in every identity mode, with valid and invalid requests.

No request may cause a 500, an undocumented status, an answer of another form, or return data of another user.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

import httpx
import hypothesis
import jwt
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

from fixtures.issuer import AUDIENCE, HS256_SECRET, ISSUER, claims
from fixtures.keys import make_key
from threefold_server.app import create_app
from threefold_server.local import LocalService
from threefold_server.settings import Settings

Case = Operation = Any
"""Untyped, because Schemathesis has no types for them."""

URL = "http://threefold.local"
CANARY = "kumquat"
GATEWAY_SECRET = "what only the proxy and the service know"

_general: Any = import_module("schemathesis.checks")
_openapi: Any = import_module("schemathesis.specs.openapi.checks")
CHECKS = [
    _general.not_a_server_error,
    _openapi.status_code_conformance,
    _openapi.content_type_conformance,
    _openapi.response_headers_conformance,
    _openapi.response_schema_conformance,
    _openapi.negative_data_rejection,
]
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "dev": ("sqlite", {}),
    "keys": ("postgres", {}),
    "jwt": ("sqlite", {"jwt_secret": HS256_SECRET, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}),
    "gateway": ("postgres", {"gateway_secret": GATEWAY_SECRET}),
}
SEARCH = hypothesis.settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def proof(mode: str, url: str, user: str) -> dict[str, str]:
    """Return the headers that authenticate a user in a mode."""
    names = {"X-Threefold-User": user, "X-Threefold-Agent": "support"}
    if mode == "keys":
        return {"Authorization": f"Bearer {make_key(url, user_value=user)}"}
    if mode == "jwt":
        return {"Authorization": f"Bearer {jwt.encode(claims(sub=user), HS256_SECRET, 'HS256')}"}
    return {**names, "X-Threefold-Gateway-Secret": GATEWAY_SECRET} if mode == "gateway" else names


@contextmanager
def calling(service: LocalService, headers: dict[str, str]) -> Generator[httpx.Client]:
    with httpx.Client(base_url=URL, transport=service.transport(), headers=headers, timeout=60) as client:
        yield client


def plant(client: httpx.Client, word: str) -> dict[str, str]:
    """Store a memory in every tier and return its ids."""
    said = [{"id": "t1", "role": "user", "content": f"the word is {word}"}]
    assert client.post("/v1/write", json={"session_id": f"s-{word}", "turns": said}).status_code in {200, 202}
    fact = client.post("/v1/facts", json={"text": f"The word is {word}."}).json()
    return {"session_id": f"s-{word}", "fact_id": fact["id"], "version": "1"}


def sent(client: httpx.Client, case: Case) -> httpx.Response:
    """Send a generated request. Requests that no client can send are no test cases."""
    prepared = requests.Request(**case.as_transport_kwargs(URL)).prepare()
    assert prepared.url is not None
    headers: Any = {name: value for name, value in prepared.headers.items() if name.lower() != "content-length"}
    body: Any = prepared.body
    answer = client.request(str(prepared.method), prepared.url, headers=headers, content=body)
    answer.elapsed = timedelta()
    return answer


def cases(operation: Operation, *planted: dict[str, str]) -> st.SearchStrategy[Case]:
    """Return valid requests, invalid ones, and requests for existing ids."""
    made = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]
    names = re.findall(r"{(\w+)}", operation.path)
    there = [{name: ids[name] for name in names if name in ids} for ids in planted] if names else []
    return st.one_of(made + [operation.as_strategy(path_parameters=ids) for ids in there])


def operations(prefix: str = "") -> list[Operation]:
    """Return the operations whose path has this prefix."""
    document = create_app(Settings(embedder="hash")).openapi()
    schema: Any = schemathesis.openapi.from_dict(document)
    paths = {path: methods for path, methods in document["paths"].items() if path.startswith(prefix)}
    return [schema[path][method.upper()] for path, methods in paths.items() for method in methods]


def fuzz(client: httpx.Client, operation: Operation, *planted: dict[str, str], secret: str | None = None) -> None:
    """Search for a request to this operation with a wrong answer, or with a secret in it."""

    @SEARCH
    @hypothesis.given(cases(operation, *planted))
    def search(case: Case) -> None:
        answer = sent(client, case)
        assert secret is None or secret not in answer.text
        case.validate_response(answer, checks=CHECKS)

    search()


@pytest.mark.parametrize("mode", MODES)
def test_no_request_causes_an_error_or_returns_data_of_others(mode: str, request: pytest.FixtureRequest) -> None:
    engine, settings = MODES[mode]
    url: str = request.getfixturevalue(f"{engine}_url")
    with (
        LocalService(database_url=url, mode=mode, embedder="hash", **settings) as service,
        calling(service, proof(mode, url, "victim")) as victim,
        calling(service, proof(mode, url, "ana")) as caller,
    ):
        planted = plant(victim, CANARY), plant(caller, "tangerine")
        for operation in operations():
            fuzz(caller, operation, *planted, secret=CANARY)
        assert CANARY in victim.post("/v1/recall", json={"query": CANARY}).text


def test_no_request_of_an_administrator_causes_an_error(database_url: str) -> None:
    headers = {"Authorization": f"Bearer {make_key(database_url, admin=True)}"}
    with (
        LocalService(database_url=database_url, mode="keys", embedder="hash") as service,
        calling(service, headers) as administrator,
    ):
        plant(administrator, CANARY)
        for operation in operations("/v1/admin"):
            fuzz(administrator, operation)
