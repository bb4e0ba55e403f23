"""Names are opaque: different names are never the same, whatever characters they contain.

Users reported shared sessions, names read as patterns, normalised ids, prefixes, and signs that gave no result.
"""

from __future__ import annotations

from contextlib import ExitStack
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from threefold.errors import NotFound
from threefold_server.local import LocalService

_WORDS = (
    r"""a A % _ a.b a/b a%2Fb a_b a-b a|b a,b a\ ' " .. 0 é 日本 🙂 null self local kaos:shared Jane%20Doe""".split()
)
TRICKY = [*_WORDS, "a ", " a", "0\n", "e\u0301", "Jane Doe", "jane doe"]
NAMES = st.sampled_from(TRICKY) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20
).filter(lambda name: bool(name.strip()) and name != "*")


@given(places=st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=2, max_size=4, unique=True))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_different_names_are_always_separate(service: LocalService, places: list[tuple[str, str, str]]) -> None:
    """One turn and one fact per place: every operation returns and erases its own only."""
    word = f"kumquat{uuid4().hex}"
    with ExitStack() as stack:
        clients = [stack.enter_context(service.client(user=user, agent=agent)) for user, agent, _ in places]
        for number, (client, (_, _, session)) in enumerate(zip(clients, places, strict=True)):
            client.write(session, [{"role": "user", "content": f"{word} turn {number}"}], visibility="session")
            client.save(f"{word} fact {number}", session_id=session, visibility="session")
        for number, (client, (_, _, session)) in enumerate(zip(clients, places, strict=True)):
            own = {f"{word} turn {number}", f"{word} fact {number}"}
            recalled = client.recall(word, session_id=session, level="session", include=["long_term"], top_k=100)
            assert {memory.text for memory in recalled.memories if word in memory.text} == own
            listed = client.list(session_id=session, level="session", limit=1_000).items
            assert {memory.text for memory in listed if word in memory.text} == own
            assert [turn.content for turn in client.turns(session).turns] == [f"{word} turn {number}"]
            assert client.forget(session_id=session).counts["turns"] == 1
        for client, (_, _, session) in zip(clients, places, strict=True):
            with pytest.raises(NotFound):
                client.turns(session)
