"""Reports on isolation and identity: no request of one caller reads or changes the memory of another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fixtures.keys import make_key
from fixtures.talk import said
from threefold import MemoryClient
from threefold.errors import InvalidRequest, NotFound
from threefold_server.local import LocalService

VERBS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/write", {"session_id": "s1", "turns": [{"role": "user", "content": "planted"}]}),
    ("POST", "/v1/recall", {"query": "kumquat", "session_id": "s1"}),
    ("POST", "/v1/list", {}),
    ("POST", "/v1/forget", {"session_id": "s1"}),
    ("POST", "/v1/forget", {"level": "agent"}),
    ("POST", "/v1/facts", {"text": "planted"}),
    ("GET", "/v1/facts/{fact}", None),
    ("GET", "/v1/facts/{fact}/history", None),
    ("PATCH", "/v1/facts/{fact}", {"text": "planted"}),
    ("POST", "/v1/facts/{fact}/restore", None),
    ("DELETE", "/v1/facts/{fact}", None),
    ("GET", "/v1/sessions", None),
    ("GET", "/v1/sessions/s1/turns", None),
    ("GET", "/v1/sessions/s1/digests", None),
    ("GET", "/v1/sessions/s1/status", None),
    ("POST", "/v1/sessions/s1/end", None),
    ("GET", "/v1/whoami", None),
]


@pytest.fixture
def guarded(database_url: str) -> Iterator[LocalService]:
    with LocalService(database_url=database_url, embedder="hash", mode="keys") as running:
        yield running


def call_every_verb(service: LocalService, headers: dict[str, str], fact: str) -> list[httpx.Response]:
    with httpx.Client(base_url="http://threefold.local", transport=service.transport(), headers=headers) as client:
        return [client.request(method, path.format(fact=fact), json=body) for method, path, body in VERBS]


def test_key_of_one_user_reaches_no_other_user_by_any_verb(guarded: LocalService, database_url: str) -> None:
    """Reported: anyone could read and edit the memory of anyone by sending another user id.

    The caller names the victim in a header, or knows the session id and the fact id.
    """
    bob, mallory = make_key(database_url, user_value="bob"), make_key(database_url, user_value="mallory")
    with guarded.client(api_key=bob) as client:
        client.write("s1", [said("bob's kumquat")])
        fact = client.save("bob likes kumquats", session_id="s1").id
    named = {"Authorization": f"Bearer {mallory}", "X-Threefold-User": "bob"}
    assert {answer.status_code for answer in call_every_verb(guarded, named, fact)} == {403}
    answers = call_every_verb(guarded, {"Authorization": f"Bearer {mallory}"}, fact)
    assert "bob" not in "".join(answer.text for answer in answers)
    with guarded.client(api_key=bob) as client:
        assert [turn.content for turn in client.turns("s1").turns] == ["bob's kumquat"]
        assert client.get_fact(fact).text == "bob likes kumquats"
        assert len(client.list().items) == 2


def test_writing_under_another_users_session_id_gives_no_access(service: LocalService, memory: MemoryClient) -> None:
    """Reported: two users with the same session id shared its history."""
    memory.write("s1", [said("ana's kumquat")])
    with service.client(user="mallory", agent="support") as mallory:
        mallory.write("s1", [said("mine")])
        assert [turn.content for turn in mallory.recall("kumquat", session_id="s1").window] == ["mine"]
        assert mallory.forget(session_id="s1").counts["turns"] == 1
    assert [turn.content for turn in memory.turns("s1").turns] == ["ana's kumquat"]


def test_session_id_without_a_user_gives_no_access(guarded: LocalService, database_url: str) -> None:
    """Reported: knowing a session id was enough to read it. Calls without a key or without a user are refused."""
    with guarded.client(api_key=make_key(database_url)) as ana:
        ana.write("s1", [said("ana's kumquat")])
        fact = ana.save("ana likes kumquats").id
    assert {answer.status_code for answer in call_every_verb(guarded, {}, fact)} == {401}
    for grants, status in (({"user_grant": "named"}, 403), ({"user_grant": "self"}, None)):
        key = make_key(database_url, user_value=None, **grants)
        answers = call_every_verb(guarded, {"Authorization": f"Bearer {key}"}, fact)
        assert "kumquat" not in "".join(answer.text for answer in answers)
        assert status is None or {answer.status_code for answer in answers} == {status}


def test_wildcard_is_refused_as_a_user_or_agent(service: LocalService, memory: MemoryClient) -> None:
    """Reported: user "*" searched the memory of everyone and could erase it."""
    memory.write("s1", [said("ana's kumquat")])
    fact = memory.save("ana likes kumquats").id
    for headers in ({"X-Threefold-User": "*"}, {"X-Threefold-User": "%2A"}, {"X-Threefold-Agent": "*"}):
        assert {answer.status_code for answer in call_every_verb(service, headers, fact)} == {422}
    assert len(memory.list().items) == 2


def test_same_session_id_has_a_separate_digest_per_user(database_url: str) -> None:
    """Reported: two users with the same session id shared its history. A digest also reads no other session of its
    user."""
    marks: dict[str, Any] = {"token_budget": 120, "compaction_trigger": 100, "compaction_target": 40}
    with LocalService(database_url=database_url, embedder="hash", **marks) as service:
        places = [("ana", "s1"), ("bob", "s1"), ("ana", "s2")]
        clients = [(service.client(user=user, agent="support"), user, session) for user, session in places]
        for client, user, session in clients:
            for number in range(12):
                client.write(session, [said(f"Here {user} decided matter {number} in {session} for good.")])
        for client, user, session in clients:
            client.wait(session)
            [newest, *_] = client.digests(session).digests
            assert f"{user} decided" in newest.text
            for _, other, elsewhere in clients:
                assert other == user or f"{other} decided" not in newest.text
                assert elsewhere == session or f"in {elsewhere}" not in newest.text
            client.close()


def test_agents_that_differ_in_one_sign_are_separate(service: LocalService) -> None:
    """Reported: agents "my-agent" and "my_agent" were mixed up because only some calls normalised the name."""
    with service.client(user="ana", agent="my-agent") as dash, service.client(user="ana", agent="my_agent") as under:
        dash.write("s-1", [said("kumquat of dash")])
        fact = dash.save("kumquat fact of dash", visibility="agent").id
        assert under.recall("kumquat").memories == []
        assert under.sessions().sessions == []
        for verb in (under.get_fact, under.delete_fact):
            with pytest.raises(NotFound):
                verb(fact)
        assert {item.agent for item in dash.list().items} == {"my-agent"}
        assert dash.forget(level="agent").counts["turns"] == 1


@pytest.mark.parametrize("key", "user_id agent_id session_id tenant scope trust created_at owner".split())
def test_metadata_cannot_change_owner_or_trust(memory: MemoryClient, http: httpx.Client, key: str) -> None:
    """Reported: metadata with a user id planted a memory for that user. Refused on save and on update."""
    fact = memory.save("kumquat")
    for answer in (
        http.post("/v1/facts", json={"text": "planted", "metadata": {key: "bob"}}),
        http.patch(f"/v1/facts/{fact.id}", json={"metadata": {key: "bob"}}),
    ):
        assert answer.status_code == 422
        assert key in answer.json()["error"]["message"]
    assert memory.get_fact(fact.id).metadata == {}
    with pytest.raises(InvalidRequest, match=key):
        memory.update_fact(fact.id, metadata={key: "bob"})


def test_parallel_calls_on_one_client_never_mix_sessions(memory: MemoryClient) -> None:
    """Reported: the user id was used for writes and dropped on reads, so parallel requests mixed."""

    def talk(number: int) -> list[str]:
        session = f"s{number}"
        memory.write(session, [said(f"I am number{number}.")])
        recalled = memory.recall(f"number{number}", session_id=session, level="session")
        return [turn.content for turn in recalled.window] + [fact.text for fact in recalled.memories]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(talk, range(40))) == [[f"I am number{number}."] for number in range(40)]
