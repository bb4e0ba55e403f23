"""Every verb against the reference model: user x agent x session x level x ceiling x visibility, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle, product
from typing import Any

import pytest

from fixtures.keys import make_key
from isolation.model import SELF, Item, Reader
from threefold import MemoryClient
from threefold.errors import Forbidden, InvalidRequest, NotFound
from threefold_server.access import Reach
from threefold_server.local import LocalService

USERS = ("ana", "bob", SELF)
AGENTS = ("crew/a", "crew/b")
SESSIONS = ("s1", "s2")
VISIBILITIES = ("session", "agent", "user")
CEILINGS = ("session", "agent", "user")

READERS = [Reader(*who) for who in product(USERS, AGENTS, CEILINGS, (None, *SESSIONS))]


class House:
    """A service in mode `keys`, with one memory of each kind from every place; ids by item and back."""

    def __init__(self, service: LocalService, database_url: str, stack: ExitStack) -> None:
        self._service = service
        self._url = database_url
        self._stack = stack
        self._clients: dict[tuple[str | None, str, str], MemoryClient] = {}
        self.ids: dict[str, Item] = {}
        for user, agent, session, visibility in product(USERS, AGENTS, (*SESSIONS, None), VISIBILITIES):
            self._fill(self.client(Reader(user, agent, "user")), user, agent, session, visibility)

    def client(self, reader: Reader) -> MemoryClient:
        """The client of a reader, with a key of its own kind."""
        who = (reader.user, reader.agent, reader.ceiling)
        if who not in self._clients:
            grants: dict[str, Any] = {"ceiling": Reach[reader.ceiling], "agent_value": reader.agent}
            grants |= {"user_grant": "self", "user_value": None} if reader.user is SELF else {"user_value": reader.user}
            client = self._service.client(api_key=make_key(self._url, **grants), timeout=60.0)
            self._clients[who] = self._stack.enter_context(client)
        return self._clients[who]

    def seen(self, reader: Reader, level: str | None) -> set[str]:
        return {key for key, item in self.ids.items() if reader.sees(item, level)}

    def _fill(self, client: MemoryClient, user: str | None, agent: str, session: str | None, visibility: Any) -> None:
        place = f"{user} {agent} {session} {visibility}"
        fact = client.save(f"kumquat fact of {place}", session_id=session, visibility=visibility)
        self.ids[fact.id] = Item("fact", user, agent, session, visibility)
        if session is not None:
            turn = {"role": "user", "content": f"kumquat turn of {place}", "id": f"turn {place}"}
            client.write(session, [turn], visibility=visibility)
            self.ids[turn["id"]] = Item("episode", user, agent, session, visibility)


@pytest.fixture
def house(database_url: str) -> Iterator[House]:
    settings: dict[str, Any] = {"mode": "keys", "max_read_level": "user", "tier_deadline": 30}
    with (
        LocalService(database_url=database_url, embedder="hash", **settings) as service,
        ExitStack() as stack,
    ):
        yield House(service, database_url, stack)


def test_every_verb_agrees_with_the_model(house: House) -> None:
    """One house for all verbs, as building it costs more than asking."""
    for reader, level in product(READERS, (None, "session", "agent", "user", "store")):
        check_recall_and_list(house, reader, level)
    for reader in [reader for reader in READERS if reader.session is None]:
        check_by_id(house, reader)
        check_forget(house, reader)


def check_recall_and_list(house: House, reader: Reader, level: Any) -> None:
    client = house.client(reader)
    if reader.refused(level):
        with pytest.raises(InvalidRequest if level in (None, "session") else Forbidden):
            client.recall("kumquat", level=level, session_id=reader.session)
        with pytest.raises(InvalidRequest if level in (None, "session") else Forbidden):
            client.list(level=level, session_id=reader.session)
        return
    expected = house.seen(reader, level)
    recalled = client.recall(
        "kumquat", level=level, session_id=reader.session, include=["long_term"], top_k=1_000, token_budget=100_000
    )
    assert {memory.id for memory in recalled.facts} == expected, (reader, level)
    listed = client.list(level=level, session_id=reader.session, limit=1_000).items
    assert {memory.id for memory in listed} == expected, (reader, level)
    shown = {house.ids[key] for key in expected}
    for item in house.ids.values():
        place = f"{item.user} {item.agent} {item.session} {item.visibility}"
        assert (f"{item.kind.replace('episode', 'turn')} of {place}" in recalled.block) == (item in shown)


def check_by_id(house: House, reader: Reader) -> None:
    client = house.client(reader)
    verbs: list[Callable[[str], object]] = [
        client.get_fact,
        client.fact_history,
        client.restore_fact,
        client.delete_fact,
        lambda key: client.update_fact(key, text="planted"),
    ]
    facts = [(key, item) for key, item in house.ids.items() if item.kind == "fact"]
    for (key, item), verb in zip(facts, cycle(verbs), strict=False):
        if reader.manages(item):
            assert client.update_fact(key, pinned=False).id == key
        else:
            with pytest.raises(NotFound, match="no such fact"):
                verb(key)


def check_forget(house: House, reader: Reader) -> None:
    client = house.client(reader)
    counts = client.forget(fact_ids=list(house.ids), dry_run=True).counts
    assert counts["facts"] == sum(reader.manages(item) for item in house.ids.values() if item.kind == "fact")
    mine = [item for item in house.ids.values() if item.kind == "episode" and reader.erases(item, reader.ceiling)]
    assert counts["turns"] == len(mine), reader
    for session in SESSIONS:
        counts = client.forget(session_id=session, dry_run=True).counts
        own = [item for item in house.ids.values() if reader.erases(item, "agent") and item.session == session]
        assert counts["turns"] + counts["facts"] == len(own)
    for level in ("agent", "user"):
        if reader.refused(level):
            with pytest.raises(Forbidden):
                client.forget(level=level, dry_run=True)
            continue
        counts = client.forget(level=level, dry_run=True).counts
        assert counts["turns"] + counts["facts"] == sum(reader.erases(item, level) for item in house.ids.values())
