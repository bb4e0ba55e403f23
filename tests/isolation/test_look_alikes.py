"""Similar ids in every operation: names that look or fold alike, or read like SQL, paths or wildcards, are separate.

Users reported shared sessions, reserved ids, normalised ids, prefixes and signs that mixed data up.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.database import ENGINES
from threefold import MemoryClient
from threefold.contract import PutCheckpointRequest, QueryCheckpointsRequest
from threefold.errors import NotFound
from threefold_server.local import LocalService

ALIKE = [
    ("admin", "\u0430dmin"),  # the first letter is Cyrillic
    ("\u00e9", "e\u0301"),
    ("K", "\u212a"),  # the kelvin sign
    ("\ufb01ne", "fine"),
    ("I\u0307", "\u0130"),
    ("stra\u00dfe", "strasse"),
    ("Ana", "ana"),
    ("ana", "ana "),
    ("ana", "ana\u200b"),
    ("ana", "ana\u202e"),
    ("ana", "ana\ufeff"),
    ("ana", "ana\n"),
    ("\u0661", "1"),
    ("1", "01"),
    ("a-b", "a_b"),
    ("ab", "a%"),
    ("ab", "_b"),
    ("a/b", "a%2Fb"),
    ("a", "a/../a"),
    ("s", "s/turns"),
    ("s", "s/digests/1"),
    ("..", "."),
    ("x", "x' OR '1'='1"),
    ("x", 'x"; DROP TABLE turns; --'),
    ("x", "x\\"),
    ("a,b", "a|b"),
    ("a\x1fb", "a\x1eb"),
    ("null", "None"),
    ("a" * 512, "a" * 511 + "b"),
    ("\U0001f642" * 512, "\U0001f642" * 511),
]
DISTORTIONS: list[Callable[[str], str]] = [
    str.upper,
    str.casefold,
    str.strip,
    lambda name: unicodedata.normalize("NFKC", name),
    lambda name: unicodedata.normalize("NFD", name),
    lambda name: name + "\u200d",
    lambda name: f"{name}%",
    lambda name: name.replace("/", "%2F"),
]


def is_id(name: str) -> bool:
    """Return whether the contract accepts the name as an id."""
    return bool(name.strip()) and name != "*" and len(name) <= 512


STORABLE = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
ANY: st.SearchStrategy[str] = st.text(STORABLE, min_size=1, max_size=30)
DISTORTED = st.tuples(ANY, st.sampled_from(DISTORTIONS)).map(lambda made: (made[0], made[1](made[0])))
PAIRS = (st.sampled_from(ALIKE) | DISTORTED).filter(lambda pair: pair[0] != pair[1] and all(map(is_id, pair)))
SETTINGS: dict[str, Any] = {"embedder": "hash"}
PLACES = st.sampled_from(["user", "agent", "session"])


@pytest.fixture(scope="module", params=ENGINES)
def everywhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """One service for all examples."""
    databases: Any = request.getfixturevalue("databases") if request.param == "postgres" else None
    name = databases.create(request.getfixturevalue("postgres_template")) if databases else None
    store: dict[str, Any] = (
        {"database_url": databases.url(name)} if databases else {"data": tmp_path_factory.mktemp("s")}
    )
    with LocalService(**store, embedder="hash") as service:
        yield service
    if databases:
        databases.drop(name)


def refused(verb: Callable[[], object]) -> bool:
    """Return whether the call is answered as for an unknown id."""
    try:
        verb()
    except NotFound:
        return True
    return False


def session_verbs(client: MemoryClient, session: str) -> list[Callable[[], object]]:
    """Return every call that names an existing session."""
    return [
        lambda: client.state(session),
        lambda: client.turns(session),
        lambda: client.digests(session),
        lambda: client.digest(session, 1),
        lambda: client.status(session),
        lambda: client.end(session),
    ]


def fact_verbs(client: MemoryClient, fact: str) -> list[Callable[[], object]]:
    """Return every call that names a fact."""
    return [
        lambda: client.get_fact(fact),
        lambda: client.fact_history(fact),
        lambda: client.update_fact(fact, text="planted"),
        lambda: client.restore_fact(fact),
        lambda: client.delete_fact(fact),
    ]


def held_by_frameworks(client: MemoryClient, name: str) -> list[str]:
    """Return the items and checkpoints under a name: items by key and in a namespace, checkpoints by thread."""
    asked = [{"op": "get", "namespace": ["n"], "key": name}, {"op": "search", "prefix": ["n", name[:400]]}]
    by_key, in_namespace = client.items_batch(asked).results
    items = [found for found in [by_key.item, *in_namespace.items] if found is not None]
    checkpoints = client.threads.query(QueryCheckpointsRequest(thread_id=name)).checkpoints
    return [found.key for found in items] + [found.thread_id for found in checkpoints]


def keep_for_frameworks(client: MemoryClient, name: str) -> None:
    """Store an item with the name as its key, one in a namespace of that name, and a thread of that name."""
    puts = [{"namespace": ["n"], "key": name}, {"namespace": ["n", name[:400]], "key": "inner"}]
    client.items_batch([{"op": "put", **put, "value": {}, "index": False} for put in puts])
    client.threads.put_checkpoint(name, PutCheckpointRequest(type="json", data=b"{}", checkpoint_id="1"))


def check_finds_all(client: MemoryClient, agent: str, session: str, fact: str) -> None:
    """Check that each call returns exactly what was written under exactly these names."""
    assert [(s.agent, s.session_id) for s in client.sessions().sessions] == [(agent, session)]
    assert [turn.content for turn in client.turns(session).turns] == ["the kumquat"]
    assert client.status(session).last_seq == 1
    assert client.get_fact(fact).session_id == session
    recalled = client.recall("kumquat", session_id=session, level="session", include=["long_term"])
    assert {memory.text for memory in recalled.memories} == {"the kumquat", "a kumquat fact"}
    listed = client.list(session_id=session, level="session").items
    assert {(memory.agent, memory.session_id) for memory in listed} == {(agent, session)}
    assert held_by_frameworks(client, session) == [session, "inner", session]


def check_finds_nothing(client: MemoryClient, session: str, fact: str, elsewhere: bool) -> None:
    """Check that the names of another caller lead to nothing, except that sessions of one agent share facts by id."""
    assert all(map(refused, session_verbs(client, session)))
    recalled = client.recall("kumquat", session_id=session, level="session")
    assert (recalled.memories, recalled.window) == ([], [])
    assert client.list(session_id=session, level="session").items == []
    expected = (
        ["inner"] if not elsewhere and len(session) > 400 else []
    )  # the first 400 characters are the same namespace
    assert held_by_frameworks(client, session) == expected
    assert client.forget(session_id=session).counts["turns"] == 0
    if elsewhere:
        assert client.sessions().sessions == []
        assert client.list().items == []
        assert client.forget(level="agent").counts["turns"] == 0
        assert client.forget(memory_ids=[fact]).counts["facts"] == 0
        assert all(map(refused, fact_verbs(client, fact)))


@given(pair=PAIRS, place=PLACES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_operation_separates_similar_names(everywhere: LocalService, pair: tuple[str, str], place: str) -> None:
    names = {name: uuid4().hex for name in ("user", "agent", "session")}
    user, agent, session = (names | {place: pair[0]}).values()
    other_user, other_agent, other_session = (names | {place: pair[1]}).values()
    with (
        closing(everywhere.client(user, agent, timeout=60)) as own,
        closing(everywhere.client(other_user, other_agent, timeout=60)) as other,
    ):
        own.write(session, [{"role": "user", "content": "the kumquat"}], visibility="session")
        keep_for_frameworks(own, session)
        fact = own.save("a kumquat fact", session_id=session, visibility="session").id
        check_finds_nothing(other, other_session, fact, elsewhere=place != "session")
        check_finds_all(own, agent, session, fact)
        assert own.forget(session_id=session).counts["turns"] == 1
        assert own.sessions().sessions == []


@given(names=st.lists(ANY.filter(is_id), min_size=4, max_size=4, unique=True))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_within_a_session_are_returned_exactly(everywhere: LocalService, names: list[str]) -> None:
    session, turn_id, group, speaker = names
    turn = {"id": turn_id, "role": "user", "content": "kumquat", "group": group, "name": speaker}
    with closing(everywhere.client("ana", "exact", timeout=60)) as memory:
        assert memory.write(session, [turn]).appended == 1
        assert memory.write(session, [turn]).duplicates == 1
        (stored,) = memory.turns(session).turns
        assert (stored.id, stored.group, stored.name) == (turn_id, group, speaker)
        memory.forget(session_id=session)
        assert memory.sessions().sessions == []
