"""Every rule of DESIGN section 4, as a table."""

from __future__ import annotations

import pytest

from threefold.contract import ForgetRequest, ForgetSource, Level
from threefold.errors import Forbidden, InvalidRequest
from threefold_server.access import (
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
def test_reach_is_the_lower_of_agent_and_the_ceiling_unless_named(
    ceiling: Reach, asked: Level | None, reach: Reach
) -> None:
    assert read_scope(principal(ceiling), asked, "s").reach is reach


@pytest.mark.parametrize(
    ("ceiling", "asked"),
    [(Reach.agent, "user"), (Reach.session, "agent"), (Reach.user, "store"), (Reach.agent, "store")],
)
def test_a_level_above_the_ceiling_is_refused(ceiling: Reach, asked: Level) -> None:
    with pytest.raises(Forbidden, match=r"ceiling .*--allow-user-level"):
        read_scope(principal(ceiling), asked, "s")


def test_level_session_needs_a_session() -> None:
    with pytest.raises(InvalidRequest, match="session_id"):
        read_scope(principal(), "session", None)


def test_a_self_owner_is_never_a_user_of_the_same_name() -> None:
    assert principal(user=None, agent="x").owner != principal(user="x", agent="x").owner
    assert owner_key("self", "x") != owner_key("user", "x")


def test_sessions_of_two_users_or_two_agents_never_meet() -> None:
    keys = {
        session_scope(principal(user=user, agent=agent), "support-1").session
        for user in ("u1", "u2", None)
        for agent in ("a1", "a2")
    }
    assert len(keys) == 6


def test_no_two_tuples_share_a_key_however_their_parts_are_cut() -> None:
    owner = owner_key("user", "u")
    assert session_key(owner, "a/b", "c") != session_key(owner, "a", "b/c")
    assert derive_key("k", b"ab", b"") != derive_key("k", b"a", b"b")
    assert SHARED_POOL not in (owner, session_key(owner, "a", "s"))


@pytest.mark.parametrize("name", ["U", "u ", "Ü", "ｕ", "u\u200b"])
def test_names_are_never_folded_or_trimmed(name: str) -> None:
    assert owner_key("user", name) != owner_key("user", "u")


def test_forget_by_level_reaches_no_further_than_the_ceiling() -> None:
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
def test_forget_by_source_needs_the_reach_that_its_selector_has(kind: str, name: str, needed: Reach) -> None:
    request = ForgetRequest(source=ForgetSource(kind=kind, name=name))  # pyright: ignore[reportArgumentType]
    for ceiling in (Reach.session, Reach.agent, Reach.user):
        if ceiling < needed:
            with pytest.raises(Forbidden, match=f"level '{needed.name}' is above"):
                erasure_scope(principal(ceiling), request)
        else:
            assert erasure_scope(principal(ceiling), request).reach <= ceiling


def test_a_fact_with_its_sources_is_erased_within_the_ceiling() -> None:
    for ceiling in (Reach.session, Reach.agent):
        assert erasure_scope(principal(ceiling), ForgetRequest(fact_ids=["f"])).reach is ceiling
    erasure_scope(principal(Reach.session), ForgetRequest(fact_ids=["f"], sources=True, in_session="s"))
    erasure_scope(principal(Reach.agent), ForgetRequest(fact_ids=["f"], sources=True))
    with pytest.raises(Forbidden):
        erasure_scope(principal(Reach.session), ForgetRequest(fact_ids=["f"], sources=True))


def test_items_and_unnamed_threads_need_ceiling_agent() -> None:
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


def test_by_id_verbs_stay_within_the_user() -> None:
    assert item_scope(principal(Reach.store)).reach is Reach.user


def test_sharing_needs_its_own_right() -> None:
    with pytest.raises(Forbidden):
        check_may_share(principal())
    with pytest.raises(Forbidden):
        check_reads_shared(principal())
    check_may_share(Principal("u", "a", Reach.agent, may_share=True))
    check_reads_shared(Principal("u", "a", Reach.agent, reads_shared=True))
