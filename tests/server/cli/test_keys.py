"""API keys by command, on both databases, and what they allow in mode `keys`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from fixtures.command_line import Run
from threefold.errors import Forbidden, Unauthenticated
from threefold_server.cli.keys import KeyList, KeyView
from threefold_server.cli.output import out
from threefold_server.clock import DAY, now_micros
from threefold_server.local import LocalService
from threefold_server.rules.access import KeyPolicy
from threefold_server.storage.engine.database import Database
from threefold_server.storage.store import keys


@pytest.fixture
def store(run: Run, database_url: str) -> Run:
    """Run a command on a store."""
    return lambda *arguments: run(*arguments, "--database-url", database_url)


def test_key_is_created_shown_once_listed_and_revoked(store: Run) -> None:
    made = store("keys", "create", "--user", "u-1", "--agent", "support", "--label", "laptop")
    assert made.code == 0
    token = made.out.strip()
    assert token.startswith("tf_")
    listed = store("keys", "list")
    assert token not in listed.out + listed.err
    assert "laptop" in listed.out
    (key,) = KeyList.model_validate(store("keys", "list", "--json").json).keys
    assert (key.user, key.agent, key.level, key.alive, key.token) == ("u-1", "support", "agent", True, None)
    assert store("keys", "revoke", key.key_id).code == 0
    assert "revoked" in store("keys", "list").out
    again = store("keys", "revoke", key.key_id)
    assert (again.code, again.err) == (1, "error: no such live key; see `threefold keys list`\n")


def test_id_of_a_key_is_never_wrapped(store: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 60)
    store("keys", "create", "--named-users", "--agent", "support", "--label", "the backend of the whole team")
    (key,) = KeyList.model_validate(store("keys", "list", "--json").json).keys
    assert key.key_id in store("keys", "list").out


def test_key_allows_what_it_grants(store: Run, database_url: str) -> None:
    grants = ["--named-users", "--agent-prefix", "crew/", "--may-share", "--expires-in-days", "9"]
    made = KeyView.model_validate(store("keys", "create", *grants, "--level", "session", "--json").json)
    assert made.token is not None
    assert made.expires_at is not None
    assert (made.expires_at - made.created_at).days == 9
    with LocalService(database_url=database_url, embedder="hash", mode="keys") as service:
        with service.client("anyone", "crew/researcher", api_key=made.token) as memory:
            who = memory.whoami()
            assert (who.user, who.agent, who.ceiling, who.may_share) == ("anyone", "crew/researcher", "session", True)
        with service.client("anyone", "other", api_key=made.token) as memory, pytest.raises(Forbidden):
            memory.whoami()
        store("keys", "revoke", made.key_id)
        with service.client("anyone", "crew/x", api_key=made.token + "x") as memory, pytest.raises(Unauthenticated):
            memory.whoami()


def test_key_for_an_agent_without_a_user(store: Run) -> None:
    made = KeyView.model_validate(store("keys", "create", "--self", "--agent", "nightly", "--json").json)
    assert (made.user_grant, made.user, made.agent) == ("self", None, "nightly")
    assert "(self)" in store("keys", "list").out


def test_old_token_of_a_rotated_key_works_until_the_grace_ends(store: Run, database_url: str) -> None:
    old = KeyView.model_validate(store("keys", "create", "--user", "u", "--agent", "a", "--json").json)
    new = KeyView.model_validate(store("keys", "rotate", old.key_id, "--grace-days", "2", "--json").json)
    assert (new.key_id, new.token == old.token, new.user) == (old.key_id, False, "u")
    assert new.old_token_until is not None
    with LocalService(database_url=database_url, embedder="hash", mode="keys") as service:
        for token in (old.token, new.token):
            with service.client(api_key=token) as memory:
                assert memory.whoami().user == "u"
    with closing(Database(database_url)) as database:
        later = now_micros() + 3 * DAY
        assert database.read_sync("system", lambda c: keys.verify(c, str(old.token), later)) is None
        assert database.read_sync("system", lambda c: keys.verify(c, str(new.token), later)) is not None


def test_rotation_without_grace_ends_the_old_token_at_once(store: Run, database_url: str) -> None:
    old = KeyView.model_validate(store("keys", "create", "--user", "u", "--agent", "a", "--json").json)
    assert store("keys", "rotate", old.key_id, "--grace-days", "0").out.startswith("tf_")
    with (
        LocalService(database_url=database_url, embedder="hash", mode="keys") as service,
        service.client(api_key=old.token) as memory,
        pytest.raises(Unauthenticated),
    ):
        memory.whoami()


def test_rotation_during_a_grace_period_requires_grace_days_0(store: Run) -> None:
    made = KeyView.model_validate(store("keys", "create", "--user", "u", "--agent", "a", "--json").json)
    assert store("keys", "rotate", made.key_id).code == 0
    refused = store("keys", "rotate", made.key_id)
    assert refused.code == 1
    assert "works until" in refused.err
    assert "--grace-days 0" in refused.err
    assert store("keys", "rotate", made.key_id, "--grace-days", "0").code == 0
    assert store("keys", "rotate", made.key_id).code == 0


def test_only_a_live_key_is_rotated(store: Run) -> None:
    made = KeyView.model_validate(store("keys", "create", "--user", "u", "--agent", "a", "--json").json)
    assert store("keys", "revoke", made.key_id).code == 0
    for key_id in (made.key_id, "unknown"):
        refused = store("keys", "rotate", key_id)
        assert (refused.code, refused.err) == (1, "error: no such live key; see `threefold keys list`\n")


def test_last_use_of_a_key_is_shown(store: Run, database_url: str) -> None:
    used, unused = (
        KeyView.model_validate(store("keys", "create", "--user", "u", "--agent", "a", "--json").json) for _ in range(2)
    )
    with (
        LocalService(database_url=database_url, embedder="hash", mode="keys") as service,
        service.client(api_key=used.token) as memory,
    ):
        memory.whoami()
    last = {key.key_id: key.last_used_at for key in KeyList.model_validate(store("keys", "list", "--json").json).keys}
    assert last[unused.key_id] is None
    assert (last[used.key_id] or used.created_at) > used.created_at


def test_key_has_its_own_policy(store: Run) -> None:
    policy = ["--failure-mode", "strict", "--token-budget", "900", "--top-k", "0", "--requests-per-minute", "60"]
    made = KeyView.model_validate(store("keys", "create", "--user", "u", "--agent", "a", *policy, "--json").json)
    assert made.policy == KeyPolicy("strict", 900, 0, 60)
    assert KeyList.model_validate(store("keys", "list", "--json").json).keys[0].policy == made.policy


def test_key_of_an_administrator_needs_no_user(store: Run, database_url: str) -> None:
    made = KeyView.model_validate(store("keys", "create", "--admin", "--json").json)
    assert (made.admin, made.user_grant, made.agent) == (True, "self", "admin")
    named = KeyView.model_validate(store("keys", "create", "--admin", "--user", "u", "--agent", "a", "--json").json)
    assert (named.admin, named.user, named.agent) == (True, "u", "a")
    with (
        LocalService(database_url=database_url, embedder="hash", mode="keys") as service,
        service.client(api_key=made.token) as memory,
    ):
        assert memory.whoami().admin


@pytest.mark.parametrize(
    "grants",
    [
        [],
        ["--user", "u"],
        ["--agent", "a"],
        ["--user", "u", "--self", "--agent", "a"],
        ["--user", "u", "--agent", "a", "--agent-prefix", "a/"],
        ["--user", "*", "--agent", "a"],
        ["--user", "u", "--agent", " "],
        ["--user", "u", "--agent", "a", "--expires-in-days", "0"],
    ],
)
def test_key_requires_exactly_one_user_grant_and_one_agent_grant(run: Run, tmp_path: Path, grants: list[str]) -> None:
    assert run("keys", "create", *grants, "--data", tmp_path / "new").code == 2
    assert not (tmp_path / "new").exists()


def test_key_cannot_exceed_the_level_of_its_store(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grants = ["--user", "u", "--agent", "a", "--data", tmp_path]
    refused = run("keys", "create", *grants, "--level", "user")
    assert (refused.code, refused.out) == (1, "")
    assert "above the store's 'agent'" in refused.err
    monkeypatch.setenv("THREEFOLD_MAX_READ_LEVEL", "user")
    assert run("keys", "create", *grants, "--level", "user").code == 0
    monkeypatch.setenv("THREEFOLD_MAX_READ_LEVEL", "session")
    assert run("keys", "create", *grants, "--json").json["level"] == "session"


def test_listing_keys_of_a_missing_store_fails(run: Run, tmp_path: Path) -> None:
    refused = run("keys", "list", "--data", tmp_path / "none")
    assert refused.code == 2
    assert "no store at" in refused.err
    assert not (tmp_path / "none").exists()
