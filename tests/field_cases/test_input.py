"""Reports on unusual input: the service accepts it or refuses it clearly, without a 500 and without storing a part."""

from __future__ import annotations

import base64
import json
import secrets
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.postgres import Databases
from fixtures.talk import said
from threefold import MemoryClient
from threefold.errors import Unavailable
from threefold_server.local import LocalService
from threefold_server.storage.engine.migrate import upgrade

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NASTY = [
    "",
    " ",
    "*",
    "a\x00b",
    "\ud83d",
    "\x00",
    "x" * 600,
    "%",
    "' OR 1=1 --",
    "a\nb",
    "\u202e",
    "NaN",
    "日本",
    "1e999",
]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 10**9, 2**31, 2**63, -(2**63) - 1, 10**40])
    | st.floats()
    | st.sampled_from(NASTY)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NASTY) | st.text(max_size=5), inner),
    max_leaves=6,
)

GOOD: dict[str, dict[str, Any]] = {
    "/v1/write": {
        "session_id": "s1",
        "turns": [{"role": "user", "content": "the heron", "id": "t9", "created_at": "2026-01-01T00:00:00Z"}],
        "visibility": "user",
        "run_end": False,
        "expected_revision": 1,
    },
    "/v1/recall": {
        "query": "heron",
        "session_id": "s1",
        "level": "agent",
        "include": ["long_term"],
        "top_k": 3,
        "min_score": 0.1,
        "min_score_of": "either",
        "token_budget": 100,
        "exclude_ids": ["a"],
        "min_trust": 0.5,
    },
    "/v1/list": {"level": "agent", "include": ["long_term"], "order": "access_count", "limit": 3, "cursor": "x"},
    "/v1/forget": {"source": {"kind": "tool", "name": "web"}, "since": "2026-01-01T00:00:00Z", "dry_run": True},
    "/v1/facts": {"text": "the heron", "session_id": "s1", "metadata": {"a": 1}, "expires_in_days": 1, "pinned": True},
}


def send(http: httpx.Client, method: str, path: str, body: object) -> httpx.Response:
    """Send JSON as a careless client writes it, with NaN and lone surrogates."""
    return http.request(method, path, content=json.dumps(body), headers={"content-type": "application/json"})


def check(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code < 500, answer.text
    if not answer.is_redirect:
        json.loads(answer.text, parse_constant=pytest.fail)
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error"}
        assert answer.json()["error"]["message"]
    return answer


def check_readable(http: httpx.Client) -> None:
    """Check that everything stored can be read again."""
    for session in check(http.get("/v1/sessions?limit=1000")).json()["sessions"]:
        path = f"/v1/sessions/{quote(session['session_id'], safe='').replace('.', '%2E')}/turns?limit=1000&payload=1"
        assert check(http.get(path)).status_code == 200
    assert check(send(http, "POST", "/v1/list", {"limit": 1000})).status_code == 200
    assert check(send(http, "POST", "/v1/recall", {"query": "heron", "session_id": "s1"})).status_code == 200


@given(path=st.sampled_from(sorted(GOOD)), data=st.data())
@FUZZ
def test_no_body_causes_a_server_error(http: httpx.Client, path: str, data: st.DataObject) -> None:
    """Reported: NUL bytes, lone surrogates, lists as content, odd filters and SQL in keys crashed or were ignored."""
    body = dict(GOOD[path])
    for name in data.draw(
        st.sets(st.sampled_from([*body, "user_id", "$where", "x') OR 1=1 --"]), min_size=1, max_size=3)
    ):
        body[name] = data.draw(JUNK, name)
    if path == "/v1/write" and data.draw(st.booleans(), "a field of a turn"):
        turn = {**GOOD[path]["turns"][0], "kind": "message", "name": "Ana", "group": "g", "payload": "{}"}
        turn[data.draw(st.sampled_from(sorted(turn)), "which")] = data.draw(JUNK, "turn")
        body["turns"] = [turn]
    answer = check(send(http, "POST", path, body))
    if "user_id" in body or "$where" in body:
        assert answer.status_code == 422
    check_readable(http)


@given(raw=st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
@FUZZ
def test_no_byte_sequence_causes_a_server_error(http: httpx.Client, raw: bytes) -> None:
    for path in GOOD:
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            assert check(http.post(path, content=raw, headers={"content-type": kind})).status_code in (400, 422)


NAMES = st.sampled_from([name for name in NASTY if name and "\ud83d" not in name]) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20
)


@given(name=NAMES, value=st.sampled_from(["", "-1", "0", "5", "1e3", "99999999999999999999", "x", "%00", "null"]))
@FUZZ
def test_no_path_and_no_query_causes_a_server_error(http: httpx.Client, name: str, value: str) -> None:
    """Reported: signs such as hyphen, comma or slash in an id, NUL bytes and odd limits gave a 500."""
    part = quote(name, safe="").replace(".", "%2E")
    for path in ("turns", "status", "digests", f"digests/{value}", f"turns?from_seq={value}", f"turns?limit={value}"):
        check(http.get(f"/v1/sessions/{part}/{path}"))
    check(http.post(f"/v1/sessions/{part}/end?wait={value}"))
    for method in ("GET", "DELETE"):
        check(http.request(method, f"/v1/facts/{part}"))
    check(http.get(f"/v1/facts/{part}/history"))
    check(send(http, "PATCH", f"/v1/facts/{part}", {"pinned": True}))
    check(http.get(f"/v1/sessions?limit={value}&cursor={part}"))
    check(http.get(f"/v1/sessions?{part}=1"))


POSITIONS = st.lists(st.integers() | st.sampled_from([2**63, 10**30, "00" * 16, "é", 0.5, None, True]), max_size=6)


@given(inner=POSITIONS.map(json.dumps) | st.just("[" * 1_500) | st.text(max_size=20))
@FUZZ
def test_no_cursor_causes_a_server_error(http: httpx.Client, inner: str) -> None:
    cursor = base64.urlsafe_b64encode(inner.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    check(http.get("/v1/sessions", params={"cursor": cursor}))
    for order in ("created_at", "access_count"):
        check(send(http, "POST", "/v1/list", {"cursor": cursor, "order": order}))


@given(name=st.binary(min_size=1, max_size=12))
@FUZZ
def test_no_header_causes_a_server_error(http: httpx.Client, name: bytes) -> None:
    for header in (b"x-threefold-user", b"x-threefold-agent", b"authorization"):
        for value in (name, quote(name).encode()):
            check(http.get("/v1/whoami", headers=[(header, value)]))


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("0001-01-01T00:00:00+14:00", 422),
        ("9999-12-31T23:59:59-12:00", 422),
        ("0001-01-01T00:00:00Z", 200),
        ("9999-12-31T23:59:59.999999Z", 200),
        ("2026-01-01T00:00:00", 422),
        (1_700_000_000_000, 200),
        ("yesterday", 422),
    ],
)
def test_every_accepted_timestamp_can_be_read_again(http: httpx.Client, moment: object, status: int) -> None:
    answer = check(send(http, "POST", "/v1/write", {"session_id": "s1", "turns": [said("heron", created_at=moment)]}))
    assert answer.status_code == status
    assert status == 200 or "turns.0.created_at" in answer.json()["error"]["message"]
    check_readable(http)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ('{"x": NaN}', "JSON"),
        ('{"x": 1e999}', "JSON"),
        ('{"x": ' + "[" * 40 + "]" * 40 + "}", "deep"),
        ('{"x": "\\ud83d"}', "surrogate"),
        ('{"\\u0000": 1}', "NUL"),
        ('{"x": "' + "y" * 17_000 + '"}', "bytes"),
        ("[]", "dictionary"),
    ],
)
def test_metadata_that_cannot_be_stored_exactly_is_refused(http: httpx.Client, metadata: str, problem: str) -> None:
    body = f'{{"text": "heron", "metadata": {metadata}}}'
    answer = check(http.post("/v1/facts", content=body, headers={"content-type": "application/json"}))
    assert answer.status_code == 422
    assert problem in answer.json()["error"]["message"]


def test_metadata_is_returned_unchanged(memory: MemoryClient) -> None:
    metadata: dict[str, Any] = {"": [1, 2.5, None, True], "nested": {"日本": ["🙂", {"n": 10**30}]}, "text": 'a"b\\c'}
    assert memory.get_fact(memory.save("heron", metadata=metadata).id).metadata == metadata


def test_empty_update_changes_nothing(http: httpx.Client) -> None:
    fact = http.post("/v1/facts", json={"text": "the heron", "pinned": True}).json()
    for nothing in ({}, {"text": None}, {"text": "the heron"}):
        assert check(send(http, "PATCH", f"/v1/facts/{fact['id']}", nothing)).json() == fact


def test_oversized_session_id_affects_no_other_user(http: httpx.Client, service: LocalService) -> None:
    """Reported: after one write with a session id of 16 kB every later write of all tenants failed."""
    assert send(http, "POST", "/v1/write", {"session_id": "x" * 16_384, "turns": [said("heron")]}).status_code == 422
    for user in ("bob", "eve"):
        with service.client(user=user) as other:
            assert other.write("s1", [said("heron")]).appended == 1


@pytest.mark.parametrize("limit", [0, 1, 1_000])
def test_limits_of_results_are_checked_and_kept(http: httpx.Client, limit: int) -> None:
    """Reported: an odd limit gave a 500, and zero results a 400 from the backend."""
    send(http, "POST", "/v1/facts", {"text": "heron"})
    assert len(send(http, "POST", "/v1/list", {"limit": limit}).json()["items"]) == min(limit, 1)
    assert len(send(http, "POST", "/v1/recall", {"query": "heron", "top_k": limit}).json()["memories"]) == min(limit, 1)
    for wrong in (-1, 1_001, 10**9, "many", 0.5):
        for path, field in (("/v1/list", "limit"), ("/v1/recall", "top_k")):
            answer = send(http, "POST", path, {"query": "heron", field: wrong} if "recall" in path else {field: wrong})
            assert answer.status_code == 422
            assert field in answer.json()["error"]["message"]


def test_password_with_special_characters_works_and_is_never_shown(
    databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    """Reported: a password with %40 broke the migrations."""
    password = "p@ss%w:r/d#?&"
    odd = Databases(databases.admin_url, role=f"odd_{secrets.token_hex(4)}", password=password)
    with ExitStack() as stack:
        odd.create_role()
        stack.callback(odd.drop_role)
        name = odd.create()
        stack.callback(odd.drop, name)
        odd.create_extension(name)
        url = odd.url(name).replace(password, quote(password, safe=""))
        upgrade(url)
        with LocalService(database_url=url, embedder="hash") as service, service.client() as memory:
            memory.write("s1", [said("heron")])
            assert memory.ready().status == "ok"
        with pytest.raises(Unavailable) as refusal:
            upgrade(url.replace("%40", "%41", 1))
    assert "w:r" not in caplog.text + str(refusal.value)
