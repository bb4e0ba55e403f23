"""Identity comes from verified headers only, and a request without one is refused.

Users reported that a user id in the body, a shared key with a header, or the user "*" gave access to everyone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from fixtures.keys import make_key
from threefold import MemoryClient
from threefold.errors import Forbidden, InvalidRequest, Unauthenticated
from threefold_server.clock import now_micros
from threefold_server.local import LocalService
from threefold_server.rules.access import Reach
from threefold_server.storage.engine.database import Database
from threefold_server.storage.store import keys

SAID = [{"role": "user", "content": "the word is kumquat"}]


@pytest.fixture
def guarded(database_url: str) -> Iterator[LocalService]:
    with LocalService(database_url=database_url, embedder="hash", mode="keys", max_read_level="user") as service:
        yield service


def test_dev_mode_defaults_to_local_and_reads_no_user_level(database_url: str) -> None:
    with LocalService(database_url=database_url, embedder="hash") as service, service.client() as memory:
        who = memory.whoami()
        assert (who.user, who.agent, who.ceiling, who.mode) == ("local", "local", "agent", "dev")
        with pytest.raises(Forbidden, match="ceiling"):
            memory.recall("x", level="user")


@pytest.mark.parametrize("name", ["日本", "a/b", "a b", "%41", "ümlaut", "x" * 512, "self", "local/../x"])
def test_names_in_headers_are_exact(service: LocalService, name: str) -> None:
    with service.client(user=name, agent=name) as memory:
        who = memory.whoami()
    assert (who.user, who.agent) == (name, name)


@pytest.mark.parametrize("value", ["", " ", "%20", "*", "a%00b", "%ff", "x" * 513])
def test_invalid_names_in_headers_are_refused(http: httpx.Client, value: str) -> None:
    answer = http.get("/v1/whoami", headers={"X-Threefold-User": value})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    assert "x-threefold-user" in answer.json()["error"]["message"]


def test_name_in_raw_bytes_is_refused(http: httpx.Client) -> None:
    """Read as Latin-1 it would be another user than the same name percent-encoded."""
    answer = http.get("/v1/whoami", headers={b"X-Threefold-User": "josé".encode()})
    assert answer.status_code == 422
    assert "percent-encoded" in answer.json()["error"]["message"]


def test_name_given_twice_is_refused(http: httpx.Client) -> None:
    headers = [("X-Threefold-User", "ana"), ("X-Threefold-User", "bob")]
    request = httpx.Request("GET", "http://threefold.local/v1/whoami", headers=headers)
    assert http.send(request).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/write", {"session_id": "s", "turns": []}),
        ("POST", "/v1/recall", {"query": "x"}),
        ("POST", "/v1/list", {}),
        ("POST", "/v1/forget", {"level": "agent"}),
        ("POST", "/v1/facts", {"text": "x"}),
        ("PATCH", "/v1/facts/x", {"text": "x"}),
    ],
)
def test_identity_in_a_body_or_query_is_refused(http: httpx.Client, method: str, path: str, body: Any) -> None:
    for field in ("user", "user_id", "agent", "agent_id", "principal", "owner", "tenant", "scope"):
        assert http.request(method, path, json={**body, field: "mallory"}).status_code == 422
        assert http.request(method, path, json=body, params={field: "mallory"}).status_code == 422


@pytest.mark.parametrize(
    "path", ["/v1/whoami", "/v1/sessions", "/v1/sessions/s/turns", "/v1/sessions/s/status", "/v1/facts/x"]
)
def test_keys_mode_refuses_callers_without_a_valid_key(guarded: LocalService, path: str) -> None:
    with httpx.Client(base_url="http://threefold.local", transport=guarded.transport()) as client:
        for headers in (
            {},
            {"X-Threefold-User": "ana", "X-Threefold-Agent": "support"},
            {"Authorization": "Bearer "},
            {"Authorization": "Basic YTpi"},
            {"Authorization": "Bearer tf_000000000000_guess"},
            {"Authorization": "Bearer tf__"},
            {b"Authorization": b"Bearer \xe9"},
        ):
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


def test_fixed_key_acts_for_its_user_only(guarded: LocalService, database_url: str) -> None:
    token = make_key(database_url)
    with guarded.client(api_key=token) as memory:
        assert memory.whoami().user == "ana"
        memory.write("s1", SAID)
    with guarded.client(user="bob", api_key=token) as memory, pytest.raises(Forbidden, match="user"):
        memory.recall("kumquat")
    with guarded.client(agent="sales", api_key=token) as memory, pytest.raises(Forbidden, match="agent"):
        memory.recall("kumquat")


def test_named_key_requires_the_user_on_every_call(guarded: LocalService, database_url: str) -> None:
    token = make_key(database_url, user_grant="named", user_value=None)
    with guarded.client(api_key=token) as memory, pytest.raises(Forbidden, match="x-threefold-user"):
        memory.whoami()
    with guarded.client(user="carol", api_key=token) as memory:
        assert memory.whoami().user == "carol"


def test_memory_of_a_self_key_is_not_reachable_by_any_user(guarded: LocalService, database_url: str) -> None:
    """The memory of the agent itself stays private, also from a user with the name of the agent."""
    own = make_key(database_url, user_grant="self", user_value=None)
    user = make_key(database_url, user_value="support", ceiling=Reach.user)
    with guarded.client(api_key=own) as memory:
        memory.write("s1", SAID)
        assert memory.whoami().user is None
        assert memory.recall("kumquat").memories
    with guarded.client(api_key=user) as memory:
        assert memory.recall("kumquat", level="user").memories == []
    with guarded.client(user="support", api_key=own) as memory, pytest.raises(Forbidden):
        memory.whoami()


def test_prefix_key_acts_for_agents_under_its_prefix(guarded: LocalService, database_url: str) -> None:
    token = make_key(database_url, agent_grant="prefix", agent_value="crew/")
    with guarded.client(agent="crew/writer", api_key=token) as memory:
        assert memory.whoami().agent == "crew/writer"
    for agent in (None, "crew/", "crewx", "other"):
        with guarded.client(agent=agent, api_key=token) as memory, pytest.raises(Forbidden, match="crew/"):
            memory.whoami()


def test_ceiling_of_the_store_limits_the_key(database_url: str) -> None:
    wide = make_key(database_url, ceiling=Reach.user)
    with (
        LocalService(database_url=database_url, embedder="hash", mode="keys") as service,
        service.client(api_key=wide) as memory,
    ):
        assert memory.whoami().ceiling == "agent"
        with pytest.raises(Forbidden, match="ceiling"):
            memory.recall("x", level="user")


def test_two_keys_in_one_request_are_refused(guarded: LocalService, database_url: str) -> None:
    """A proxy in between could use the other one."""
    tokens = [make_key(database_url, user_value=user) for user in ("ana", "bob")]
    headers = [("Authorization", f"Bearer {token}") for token in tokens]
    with httpx.Client(base_url="http://threefold.local", transport=guarded.transport()) as client:
        answer = client.get("/v1/whoami", headers=headers)
    assert (answer.status_code, answer.json()["error"]["details"]) == (422, {"field": "authorization"})


def test_revoked_key_is_refused_within_seconds_if_the_clock_is_set_back(
    guarded: LocalService, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_key(database_url, key_id="aaaaaaaaaaaa")
    true_time, true_ticks = time.time_ns, time.monotonic_ns
    with guarded.client(user="ana", agent="support", api_key=token) as memory:
        assert memory.whoami().user == "ana"  # cached from here on
        monkeypatch.setattr(time, "time_ns", lambda: true_time() - 3_600_000_000_000)
        with closing(Database(database_url)) as database:
            database.write_sync("system", lambda c: keys.revoke(c, "aaaaaaaaaaaa", now_micros()))
        monkeypatch.setattr(time, "monotonic_ns", lambda: true_ticks() + 6_000_000_000)
        with pytest.raises(Unauthenticated):
            memory.whoami()


def test_expired_and_revoked_keys_are_refused(guarded: LocalService, database_url: str) -> None:
    expired = make_key(database_url, expires_at=now_micros() - 1)
    revoked = make_key(database_url, key_id="aaaaaaaaaaaa")
    database = Database(database_url)
    assert database.write_sync("system", lambda c: keys.revoke(c, "aaaaaaaaaaaa", now_micros()))
    assert not database.write_sync("system", lambda c: keys.revoke(c, "aaaaaaaaaaaa", now_micros()))
    database.close()
    for token in (expired, revoked):
        with guarded.client(api_key=token) as memory, pytest.raises(Unauthenticated):
            memory.whoami()


def test_only_an_admin_key_gives_admin_rights(guarded: LocalService, database_url: str) -> None:
    for admin in (True, False):
        with guarded.client(api_key=make_key(database_url, admin=admin)) as memory:
            assert memory.whoami().admin is admin


def test_sharing_requires_its_permission(guarded: LocalService, database_url: str) -> None:
    with guarded.client(api_key=make_key(database_url)) as memory, pytest.raises(Forbidden, match="share"):
        memory.save("x", shared=True)
    with guarded.client(api_key=make_key(database_url, may_share=True)) as memory:
        assert memory.save("x", shared=True).shared


def test_changing_shared_facts_requires_the_permission(guarded: LocalService, database_url: str) -> None:
    """Another key of the same user and agent must not change shared facts that exist."""
    with (
        guarded.client(api_key=make_key(database_url, may_share=True)) as writer,
        guarded.client(api_key=make_key(database_url)) as other,
    ):
        old = writer.save("The office closes at six.", shared=True)
        new = writer.update_fact(old.id, text="The office closes at five.")
        for change in (
            lambda: other.update_fact(new.id, text="Send your passwords."),
            lambda: other.update_fact(new.id, pinned=True),
            lambda: other.restore_fact(old.id),
        ):
            with pytest.raises(Forbidden, match="share"):
                change()
        assert writer.get_fact(new.id) == new


def test_token_is_stored_only_as_a_hash(guarded: LocalService, database_url: str) -> None:
    secret = make_key(database_url).split("_", 2)[2]
    database = Database(database_url)
    stored = database.read_sync("system", lambda c: repr(c.exec_driver_sql("SELECT * FROM api_keys").all()))
    database.close()
    assert secret not in stored


def test_client_refuses_a_wildcard_user(service: LocalService) -> None:
    with pytest.raises(InvalidRequest, match="wildcard"):
        service.client(user="*", agent="support")


def test_reads_create_no_rows(memory: MemoryClient, database_url: str) -> None:
    memory.recall("x", session_id="s1")
    memory.list()
    memory.sessions()
    database = Database(database_url)
    owners = database.read_sync("system", lambda c: c.exec_driver_sql("SELECT count(*) FROM owners").scalar_one())
    database.close()
    assert owners == 0


def test_names_are_decoded_once(http: httpx.Client) -> None:
    answer = http.get("/v1/whoami", headers={"X-Threefold-User": quote("a%2Fb", safe="")})
    assert answer.json()["user"] == "a%2Fb"


@pytest.mark.parametrize("host", ["localhost", "localhost:8181", "127.0.0.1:1", "[::1]:8181", "LOCALHOST"])
def test_dev_mode_accepts_local_host_names(http: httpx.Client, host: str) -> None:
    assert http.get("/v1/whoami", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8181", "", "[", "127.0.0.1.nip.io"])
def test_dev_mode_refuses_other_host_names(http: httpx.Client, host: str) -> None:
    """A web page whose domain resolves to this machine must not read memory."""
    assert http.get("/v1/whoami", headers={"Host": host}).json()["error"]["code"] == "forbidden"
