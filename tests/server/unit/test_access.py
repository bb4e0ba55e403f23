"""The rules of who may read, write and forget what, as tables."""

from __future__ import annotations

import pytest

from threefold.contract import ForgetRequest, ForgetSource, Level
from threefold.errors import Forbidden, InvalidRequest
from threefold_server.rules.access import (
    SHARED_POOL,
    Principal,
    Reach,
    check_may_share,
    check_reads_shared,
    derive_key,
    erasure_scope,
    forget_scope,
    item_scope,
    items_holder,
    owner_key,
    read_scope,
    session_key,
    session_scope,
    thread_holder,
)


def principal(ceiling: Reach = Reach.agent, user: str | None = "u", agent: str = "a") -> Principal:
    return Principal(user=user, agent=agent, ceiling=ceiling)


@pytest.mark.parametrize(
    ("ceiling", "asked", "reach"),
    [
        (Reach.user, None, Reach.agent),
        (Reach.agent, None, Reach.agent),
        (Reach.session, None, Reach.session),
        (Reach.user, "user", Reach.user),
        (Reach.user, "session", Reach.session),
        (Reach.agent, "agent", Reach.agent),
    ],
)
def test_default_reach_is_agent_or_the_lower_ceiling(ceiling: Reach, asked: Level | None, reach: Reach) -> None:
    assert read_scope(principal(ceiling), asked, "s").reach is reach


@pytest.mark.parametrize(
    ("ceiling", "asked"),
    [(Reach.agent, "user"), (Reach.session, "agent"), (Reach.user, "store"), (Reach.agent, "store")],
)
def test_level_above_the_ceiling_is_refused(ceiling: Reach, asked: Level) -> None:
    with pytest.raises(Forbidden, match=r"ceiling .*--allow-user-level"):
        read_scope(principal(ceiling), asked, "s")


def test_level_session_requires_a_session() -> None:
    with pytest.raises(InvalidRequest, match="session_id"):
        read_scope(principal(), "session", None)


def test_agent_owner_is_never_a_user_of_the_same_name() -> None:
    assert principal(user=None, agent="x").owner != principal(user="x", agent="x").owner
    assert owner_key("self", "x") != owner_key("user", "x")


def test_sessions_of_users_and_agents_have_different_keys() -> None:
    keys = {
        session_scope(principal(user=user, agent=agent), "support-1").session
        for user in ("u1", "u2", None)
        for agent in ("a1", "a2")
    }
    assert len(keys) == 6


def test_keys_differ_wherever_their_parts_are_split() -> None:
    owner = owner_key("user", "u")
    assert session_key(owner, "a/b", "c") != session_key(owner, "a", "b/c")
    assert derive_key("k", b"ab", b"") != derive_key("k", b"a", b"b")
    assert SHARED_POOL not in (owner, session_key(owner, "a", "s"))


@pytest.mark.parametrize("name", ["U", "u ", "Ü", "ｕ", "u\u200b"])
def test_names_are_never_folded_or_trimmed(name: str) -> None:
    assert owner_key("user", name) != owner_key("user", "u")


def test_forget_by_level_ends_at_the_ceiling() -> None:
    assert forget_scope(principal(Reach.user), "user").reach is Reach.user
    with pytest.raises(Forbidden):
        forget_scope(principal(Reach.agent), "user")
    with pytest.raises(Forbidden):
        forget_scope(principal(Reach.user), "store")
    with pytest.raises(InvalidRequest, match="session_id"):
        forget_scope(principal(Reach.user), "session")


@pytest.mark.parametrize(
    ("kind", "name", "needed"),
    [
        ("session", "s", Reach.session),
        ("tool", "web", Reach.agent),
        ("agent", "a", Reach.agent),
        ("agent", "b", Reach.user),
    ],
)
def test_forget_by_source_requires_the_reach_of_its_selector(kind: str, name: str, needed: Reach) -> None:
    request = ForgetRequest(source=ForgetSource(kind=kind, name=name))  # pyright: ignore[reportArgumentType]
    for ceiling in (Reach.session, Reach.agent, Reach.user):
        if ceiling < needed:
            with pytest.raises(Forbidden, match=f"level '{needed.name}' is above"):
                erasure_scope(principal(ceiling), request)
        else:
            assert erasure_scope(principal(ceiling), request).reach <= ceiling


def test_forget_of_facts_with_sources_stays_within_the_ceiling() -> None:
    for ceiling in (Reach.session, Reach.agent):
        assert erasure_scope(principal(ceiling), ForgetRequest(memory_ids=["f"])).reach is ceiling
    erasure_scope(principal(Reach.session), ForgetRequest(memory_ids=["f"], sources=True, in_session="s"))
    erasure_scope(principal(Reach.agent), ForgetRequest(memory_ids=["f"], sources=True))
    with pytest.raises(Forbidden):
        erasure_scope(principal(Reach.session), ForgetRequest(memory_ids=["f"], sources=True))


def test_items_and_unnamed_threads_require_ceiling_agent() -> None:
    narrow = principal(Reach.session)
    assert not thread_holder(narrow, "user", names_threads=True).for_all
    for scope in ("user", "agent"):
        items_holder(principal(), scope)
        thread_holder(principal(), scope, names_threads=False)
        with pytest.raises(Forbidden):
            items_holder(narrow, scope)
        with pytest.raises(Forbidden):
            thread_holder(narrow, scope, names_threads=False)
    with pytest.raises(Forbidden):
        thread_holder(narrow, "agent", names_threads=True)


def test_item_operations_stay_within_the_user() -> None:
    assert item_scope(principal(Reach.store)).reach is Reach.user


def test_sharing_requires_its_own_permission() -> None:
    with pytest.raises(Forbidden):
        check_may_share(principal())
    with pytest.raises(Forbidden):
        check_reads_shared(principal())
    check_may_share(Principal("u", "a", Reach.agent, may_share=True))
    check_reads_shared(Principal("u", "a", Reach.agent, reads_shared=True))
