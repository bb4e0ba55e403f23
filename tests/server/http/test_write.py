"""Appending turns: idempotent, all or nothing, in order, and with clear refusals.

Users reported shared session ids, lost or interleaved writes, stores that stayed locked, and crashes by invalid
text.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest

from fixtures.talk import said
from threefold import MemoryClient
from threefold.contract import MAX_CONTENT_CHARS, MAX_ID_CHARS
from threefold.errors import Conflict, InvalidRequest, NotFound, RevisionConflict
from threefold_server.local import LocalService


def test_turns_are_returned_in_order_with_every_field(memory: MemoryClient) -> None:
    at = datetime(2026, 3, 1, 0, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=8)))
    payload = '{"parts": [1,  2], "text": "\\u0000"}'
    answer = memory.write(
        "s1",
        [
            said("hello", id="a", name="Ana", created_at=at, payload=payload),
            {"role": "tool", "content": "42", "kind": "tool_result", "group": "g", "name": "calc", "id": "b"},
        ],
    )
    assert (answer.appended, answer.last_seq, answer.revision) == (2, 2, 1)
    first, second = memory.turns("s1", payload=True).turns
    assert (first.id, first.seq, first.role, first.content, first.name) == ("a", 1, "user", "hello", "Ana")
    assert first.payload == payload
    assert first.created_at == at
    assert first.created_at.utcoffset() == timedelta(hours=8)
    assert (second.kind, second.group, second.name, second.seq) == ("tool_result", "g", "calc", 2)
    assert memory.turns("s1").turns[0].payload is None


def test_repeated_turn_is_counted_and_not_stored_again(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1")])
    again = memory.write("s1", [said("one", id="1"), said("two", id="2")])
    assert (again.appended, again.duplicates, again.last_seq) == (1, 1, 2)
    assert [turn.content for turn in memory.turns("s1").turns] == ["one", "two"]


def test_same_id_twice_in_one_call_is_one_turn(memory: MemoryClient) -> None:
    answer = memory.write("s1", [said("one", id="1"), said("one", id="1")])
    assert (answer.appended, answer.duplicates) == (1, 1)


def test_known_id_with_other_content_stores_nothing_of_the_call(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1")])
    with pytest.raises(Conflict) as refusal:
        memory.write("s1", [said("new", id="9"), said("other", id="1")])
    assert refusal.value.details["turn_id"] == "1"
    assert [turn.id for turn in memory.turns("s1").turns] == ["1"]


def test_on_conflict_keep_keeps_the_stored_turn(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1")])
    answer = memory.write("s1", [said("new", id="9"), said("other", id="1")], on_conflict="keep")
    assert (answer.appended, answer.duplicates) == (1, 1)
    assert [turn.content for turn in memory.turns("s1").turns] == ["one", "new"]


def test_outdated_revision_is_refused_unless_the_write_is_a_repetition(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1")], expected_revision=0)
    with pytest.raises(RevisionConflict) as refusal:
        memory.write("s1", [said("two", id="2")], expected_revision=0)
    assert refusal.value.details["revision"] == 1
    assert memory.write("s1", [said("one", id="1")], expected_revision=0).duplicates == 1


def kept(memory: MemoryClient) -> tuple[str | None, int, int]:
    found = memory.state("s1")
    return found.state, found.revision, found.last_seq


def test_state_is_written_with_turns_and_returned_byte_for_byte(memory: MemoryClient) -> None:
    assert memory.write("s1", [said("one", id="1")], state='{"n":  1}').revision == 1
    assert kept(memory) == ('{"n":  1}', 1, 1)
    assert memory.write("s1", [said("two", id="2")]).revision == 2
    assert memory.write("s1", [], state='{"n": 2}').revision == 3
    assert kept(memory) == ('{"n": 2}', 3, 2)
    assert memory.state("s1").updated_at == memory.sessions().sessions[0].updated_at
    listed = memory.sessions(state=True).sessions + memory.sessions().sessions
    assert [session.state for session in listed] == ['{"n": 2}', None]


def test_state_is_compared_and_swapped(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1")], state="1", expected_revision=0)
    assert memory.write("s1", [said("one", id="1")], state="1", expected_revision=0).revision == 1  # repeated
    with pytest.raises(RevisionConflict) as conflict:
        memory.write("s1", [], state="2", expected_revision=0)
    assert conflict.value.details == {"revision": 1}
    assert memory.state("s1").state == "1"


def test_state_is_forgotten_with_its_session(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1")], state="1")
    memory.forget(session_id="s1")
    with pytest.raises(NotFound):
        memory.state("s1")
    assert memory.write("s1", [said("one", id="1")], state="1").erased == 1  # a late writer
    with pytest.raises(NotFound):
        memory.state("s1")


def test_late_write_of_forgotten_turns_restores_no_state(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1"), said("two", id="2")])
    assert memory.forget(memory_ids=["1"]).not_covered == []
    memory.write("s1", [said("one", id="1")], state="one")
    assert memory.state("s1").state is None


def test_forget_reports_that_it_keeps_states(memory: MemoryClient) -> None:
    memory.write("s1", [said("one", id="1"), said("two", id="2")], state="one")
    assert memory.forget(memory_ids=["1"]).not_covered == ["session_state"]
    assert memory.forget(session_id="s1").not_covered == []


def test_sessions_of_users_and_agents_are_separate(service: LocalService) -> None:
    for user, agent in (("u1", "a1"), ("u2", "a1"), ("u1", "a2")):
        with service.client(user=user, agent=agent) as client:
            client.write("support-1", [said(f"I am {user} of {agent}", id="same")])
    for user, agent in (("u1", "a1"), ("u2", "a1"), ("u1", "a2")):
        with service.client(user=user, agent=agent) as client:
            assert [turn.content for turn in client.turns("support-1").turns] == [f"I am {user} of {agent}"]
            assert [session.turns for session in client.sessions().sessions] == [1]


def test_parallel_writers_of_one_session_lose_and_double_nothing(service: LocalService) -> None:
    def write(writer: int) -> None:
        with service.client(user="ana", agent="support") as client:
            for number in range(10):
                client.write("s1", [said(f"{writer}.{number}", id=f"{writer}.{number}")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with service.client(user="ana", agent="support") as client:
        turns = client.turns("s1").turns
    assert [turn.seq for turn in turns] == list(range(1, 41))
    for writer in range(4):
        own = [turn.id for turn in turns if turn.id.startswith(f"{writer}.")]
        assert own == [f"{writer}.{number}" for number in range(10)]


def test_future_timestamp_is_kept_and_ranked_by_arrival(memory: MemoryClient) -> None:
    future = datetime.now(UTC) + timedelta(days=400)
    memory.write("s1", [said("from the future", created_at=future)])
    memory.write("s2", [said("from now")])
    newest = memory.list(kinds=["turn"]).items
    assert [item.text for item in newest] == ["from now", "from the future"]
    assert newest[1].created_at == future


@pytest.mark.parametrize("text", ["a\x00b", "a\ud83db"])
def test_text_that_no_database_can_store_is_replaced_in_content_and_refused_in_ids(
    http: httpx.Client, text: str
) -> None:
    body = {"session_id": "s1", "turns": [said(text)]}
    assert post(http, "/v1/write", body).status_code == 200
    assert http.get("/v1/sessions/s1/turns").json()["turns"][0]["content"] == "a\ufffdb"
    for bad in (
        {"session_id": text, "turns": [said("x")]},
        {"session_id": "s2", "turns": [said("x", id=text)]},
        {"session_id": "s2", "turns": [said("x", payload=text)]},
        {"session_id": "s2", "turns": [said("x", name=text)]},
    ):
        assert post(http, "/v1/write", bad).status_code == 422
    assert http.get("/v1/sessions/s2/turns").status_code == 404


def post(http: httpx.Client, path: str, body: object) -> httpx.Response:
    """Send JSON with every non-ASCII character as an escape, as a careless client does."""
    return http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"session_id": " "}, "session_id"),
        ({"session_id": "*"}, "session_id"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "x" * (MAX_ID_CHARS + 1)}, "session_id"),
        ({"session_id": 7}, "session_id"),
        ({"user": "mallory"}, "user"),
        ({"user_id": "mallory"}, "user_id"),
        ({"agent": "mallory"}, "agent"),
        ({"level": "store"}, "level"),
        ({"turns": [said("x", role="boss")]}, "turns.0.role"),
        ({"turns": [said("x", kind="thought")]}, "turns.0.kind"),
        ({"turns": [said("x" * (MAX_CONTENT_CHARS + 1))]}, "turns.0.content"),
        ({"turns": [said("x"), said("y", trust=1.0)]}, "turns.1.trust"),
        ({"turns": [said("x", created_at="2026-01-01T00:00:00")]}, "turns.0.created_at"),
        ({"turns": [{"role": "user", "content": None}]}, "turns.0.content"),
        ({"turns": [{"role": "user", "content": ["a"]}]}, "turns.0.content"),
        ({"turns": [said("x")] * 1001}, "turns"),
        ({"visibility": "everyone"}, "visibility"),
        ({"expected_revision": -1}, "expected_revision"),
    ],
)
def test_invalid_input_names_the_field_and_stores_nothing(
    http: httpx.Client, change: dict[str, Any], field: str
) -> None:
    answer = post(http, "/v1/write", {"session_id": "s1", "turns": [said("x")], **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "invalid_request")
    assert field in [entry["field"] for entry in error["details"]["fields"]]
    assert http.get("/v1/sessions").json()["sessions"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"x"', b'{"session_id": NaN}'])
def test_body_that_is_no_object_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/write", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")


def test_oversized_body_is_refused_with_and_without_a_length(database_url: str) -> None:
    with LocalService(database_url=database_url, embedder="hash", max_body_bytes=2048) as service:
        client = httpx.Client(base_url="http://threefold.local", transport=service.transport())
        body = json.dumps({"session_id": "s", "turns": [said("x" * 4096)]}).encode()
        for content in (body, iter([body[:1000], body[1000:]])):  # without a content length
            answer = client.post("/v1/write", content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        client.close()


def test_ids_with_special_characters_are_exact_in_every_verb(memory: MemoryClient) -> None:
    """Users reported that signs such as hyphen, comma or slash in an id gave no result or a 500."""
    ids = ["redis-test", "redis_test", "a,b", "a|b", "a/b", "a%2Fb", "o'brien", '"q"', "a b", " a b", "x" * 512]
    ids += ["日本", "🙂", "..", ".", "a/turns", "a//b", "?x=1#y", "Ü", "U\u0308", "a\\b", "%", "a/digests/1"]
    for number, session_id in enumerate(ids):
        memory.write(session_id, [said(f"text {number}")])
    for number, session_id in enumerate(ids):
        assert [turn.content for turn in memory.turns(session_id).turns] == [f"text {number}"]
        assert memory.status(session_id).last_seq == 1
    listed = {session.session_id for session in memory.sessions(limit=100).sessions}
    assert listed == set(ids)
    for session_id in ids:
        assert memory.forget(session_id=session_id).counts["sessions"] == 1
        with pytest.raises(NotFound):
            memory.turns(session_id)


def test_empty_write_creates_no_turn(memory: MemoryClient) -> None:
    assert memory.write("s1", []).appended == 0
    assert memory.turns("s1").turns == []


def test_client_names_the_invalid_field(memory: MemoryClient) -> None:
    with pytest.raises(InvalidRequest, match="session_id"):
        memory.write("*", [said("x")])
