"""Reports on digests: a digest says what was said, and which turns it covers."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.consolidation import World
from fixtures.openai_server import OpenAIServer, chat_reply
from fixtures.talk import said
from threefold.contract import Digest
from threefold_server.consolidation.rebuild import rebuild
from threefold_server.local import LocalService
from threefold_server.storage.engine.tables import facts

pytestmark = pytest.mark.anyio

MARKS: dict[str, Any] = {"token_budget": 240, "compaction_trigger": 200, "compaction_target": 80}


def test_figure_that_left_the_window_is_recalled_exactly(database_url: str) -> None:
    """Reported: after compaction the agent invented the numbers.

    The digest states its range, and the recall returns the figure with its source turn.
    """
    names = "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima".split()
    with LocalService(database_url=database_url, embedder="hash", **MARKS) as service, service.client() as memory:
        for number, name in enumerate(names):
            result = f"The meter called {name} shows {1_000 + 37 * number} litres."
            memory.write("s1", [{"role": "tool", "name": "meter", "content": result}])
        for number in range(30):
            memory.write("s1", [said(f"Let us talk about the weather of day {number} for a while.")])
        memory.wait("s1")
        recalled = memory.recall("how many litres does the meter golf show?", session_id="s1", include=["long_term"])
        assert recalled.memories[0].text == "The meter called golf shows 1222 litres."
        assert [(source.session_id, source.from_seq) for source in recalled.memories[0].sources] == [("s1", 7)]
        everything = memory.recall("litres", session_id="s1")
        assert everything.digest
        assert (everything.digest.from_seq, everything.digest.upto_seq >= 12) == (1, True)
        assert f"turns 1 to {everything.digest.upto_seq} " in everything.block


def test_rule_stays_verbatim_in_every_digest_version(database_url: str) -> None:
    """Reported: an early rule was gone after several compactions.

    Each version names its parent and its range, and older versions do not change.
    """
    rule = "Never email the client."
    seen: list[Digest] = []
    with LocalService(database_url=database_url, embedder="hash", **MARKS) as service, service.client() as memory:
        memory.write("s1", [said("Hello there."), said("Let us plan the release."), said(rule)])
        while len(seen) < 6:
            memory.write("s1", [said(f"A remark about the weather on day {number}.") for number in range(25)])
            memory.wait("s1")
            now = list(reversed(memory.digests("s1").digests))
            assert now[: len(seen)] == seen
            seen = now
        assert memory.digest("s1", 2) == seen[1]
    assert all(rule in digest.text for digest in seen)
    assert [digest.version for digest in seen] == list(range(1, len(seen) + 1))
    assert [digest.parent for digest in seen] == [None, *range(1, len(seen))]
    assert {digest.from_seq for digest in seen} == {1}
    covered = [digest.upto_seq for digest in seen]
    assert covered == sorted(set(covered))


def test_rule_survives_a_model_that_drops_it(openai_server: OpenAIServer, database_url: str) -> None:
    """Reported: an early rule was gone after several compactions. The digest quotes the rule and names model and
    prompt."""
    openai_server.otherwise = chat_reply("They talked about the weather [4].")
    model: dict[str, Any] = {"model": "chat", "extract_facts": False, "model_base_url": openai_server.url}
    with (
        LocalService(database_url=database_url, embedder="hash", **model, **MARKS) as service,
        service.client(timeout=60.0) as memory,
    ):
        memory.write("s1", [said("Let us plan the release."), said("Never email the client.", name="Ana")])
        for _ in range(3):
            memory.write("s1", [said(f"A remark about the weather on day {number}.") for number in range(25)])
            memory.wait("s1")
        found = memory.digests("s1").digests
        block = memory.recall("release", session_id="s1").block
    assert len(found) == 3
    assert {(digest.model, digest.prompt) for digest in found} == {("chat", "digest_v1")}
    assert {digest.text.split("\n")[0] for digest in found} == {'[2] Ana: "Never email the client."'}
    assert '[2] Ana: "Never email the client."' in block


async def test_consolidation_merges_no_separate_facts(world: World) -> None:
    """Reported: compaction merged similar memories into one giant memory."""
    said = [f"The project Falcon has a milestone {number} in room {number * 7}." for number in range(30)]
    for text in said:
        await world.save(text)
    for _ in range(5):
        await world.settle()
        await rebuild(world.service)
    assert sorted(row.text for row in world.rows(facts)) == sorted(said)
