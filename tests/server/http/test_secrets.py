"""The redaction policy of the store, in every tier and in every request to a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fixtures.consolidation import World
from fixtures.openai_server import OpenAIServer, chat_reply
from fixtures.talk import said
from threefold.contract import TurnIn
from threefold_server.consolidation.rebuild import rebuild
from threefold_server.local import LocalService
from threefold_server.storage.engine.tables import digests, postings, turns
from threefold_server.text import redaction

pytestmark = pytest.mark.anyio

SECRET = "ghp_" + "abcdefghijklmnopqrstuvwxyzABCDEF0123"
CARD = "4111 1111 1111 1111"
PAYLOAD = json.dumps({"parts": [f"token {SECRET}"]})
MARKS: dict[str, Any] = {"token_budget": 240, "compaction_trigger": 200, "compaction_target": 80}


@pytest.fixture(params=["derived", "all"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def service(database_url: str, openai_server: OpenAIServer, policy: str) -> Iterator[LocalService]:
    openai_server.otherwise = chat_reply(f"[1] Ana gave a token and the card {CARD}.")
    model: dict[str, Any] = {
        "model": "chat",
        "extract_facts": False,
        "model_base_url": openai_server.url,
        "redact": policy,
    }
    with LocalService(database_url=database_url, embedder="hash", **model, **MARKS) as running:
        yield running


def test_secret_is_never_recalled_listed_or_sent_to_a_model(
    service: LocalService, openai_server: OpenAIServer, policy: str
) -> None:
    with service.client(timeout=60.0) as memory:
        first = said(f"Never share the token {SECRET} nor {CARD}.", id="t1", name=f"Ana {SECRET}", payload=PAYLOAD)
        memory.write("s1", [first, *(said(f"A remark about day {number}.") for number in range(40))])
        memory.write("s1", [said(f"And again {SECRET}.", id="t2")])
        memory.wait("s1")
        memory.save(f"The token is {SECRET}", metadata={"card": [CARD]})
        recalled = memory.recall(f"token {SECRET}", session_id="s1", min_score=0)
        elsewhere = memory.recall("token", session_id="s2", min_score=0)
        answers = [recalled, elsewhere, memory.list(), memory.digests("s1")]
        replayed = memory.turns("s1", payload=True).turns[0]
    sent = [str(asked.body) for asked in openai_server.asked]
    seen = "".join([*sent, *(answer.model_dump_json() for answer in answers)])
    assert openai_server.asked
    assert "redacted: GitHub Token" in seen
    assert SECRET not in seen
    assert CARD not in seen
    assert {"t1", "t2"} & {found.id for found in elsewhere.memories}, "a turn must be found by its other words"
    assert (replayed.payload == PAYLOAD) == (SECRET in replayed.content) == (policy == "derived")


@pytest.mark.parametrize("policy", ["derived", "off"])
async def test_index_words_and_vectors_contain_no_secrets(make_world: Callable[..., World], policy: str) -> None:
    world = make_world(redact=policy)
    await world.write("s1", TurnIn(role="tool", name=f"vault {SECRET}", content=f"Here: {SECRET} and {CARD}"))
    await world.save(f"The token is {SECRET}")
    await world.settle()
    terms = {row.term for row in world.rows(postings)}
    embedded = "".join(text for call in world.embedder.calls for text in call)
    found = [SECRET.lower() in terms, "1111" in terms, SECRET in embedded, CARD in embedded]
    assert found == [policy == "off"] * 4


async def test_rebuild_applies_the_current_policy(make_world: Callable[..., World]) -> None:
    before = make_world(redact="off")
    await before.write("s1", f"Here: {SECRET}", *(f"Remark {number} on walls." for number in range(20)))
    await before.settle()
    world = make_world(redact="derived")
    assert SECRET in world.rows(digests)[0].text
    await rebuild(world.service)
    assert SECRET not in world.rows(digests)[0].text
    assert SECRET.lower() not in {row.term for row in world.rows(postings)}


def test_digest_made_under_another_policy_is_redacted_before_it_is_sent(
    database_url: str, openai_server: OpenAIServer
) -> None:
    """A digest made without redaction may contain a secret."""
    model: dict[str, Any] = {"model": "chat", "extract_facts": False, "model_base_url": openai_server.url}
    settings: dict[str, Any] = {"database_url": database_url, "embedder": "hash", **model, **MARKS}
    openai_server.otherwise = chat_reply(f"[1] Ana gave the card {CARD}.")
    for policy in ("off", "derived"):
        asked = len(openai_server.asked)
        with LocalService(**settings, redact=policy) as service, service.client() as memory:
            memory.write("s1", [said(f"A remark about day {number}.") for number in range(40)])
            memory.wait("s1")
    sent = str([question.body for question in openai_server.asked[asked:]])
    assert "Ana gave the card [redacted: card number]" in sent
    assert CARD not in sent


async def test_repeated_write_is_recognised_without_its_secret(make_world: Callable[..., World]) -> None:
    world = make_world(redact="all")
    for _ in range(2):
        await world.write("s1", TurnIn(role="user", id="t1", content=f"Here: {SECRET}", payload=PAYLOAD))
    [row] = world.rows(turns)
    assert row.content == "Here: [redacted: GitHub Token]"
    assert json.loads(row.payload) == {"parts": ["token [redacted: GitHub Token]"]}


def test_service_does_not_start_with_a_missing_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    redaction._library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    redaction.redactor_for.cache_clear()
    monkeypatch.setitem(sys.modules, "detect_secrets.plugins.aws", None)
    with pytest.raises(ImportError), LocalService(embedder="hash"):
        pass
