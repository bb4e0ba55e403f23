"""A service killed between the reply of the model and the commit stores its facts exactly once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fixtures.faults import PAUSE, Serving, expire_leases
from fixtures.openai_server import HANG, OpenAIServer, chat_reply

FACTS = ["Ana moved to Oslo in spring.", "Ana likes green tea."]
EXTRACTED = chat_reply(
    json.dumps({"memory": [{"text": text, "sources": [number]} for number, text in enumerate(FACTS, start=1)]})
)
NEW = chat_reply(
    json.dumps({"verdicts": [{"new": f"N{number}", "relation": "new", "known": None} for number in (1, 2)]})
)


@pytest.mark.slow
def test_killed_extraction_stores_its_facts_exactly_once(
    database_url: str, tmp_path: Path, openai_server: OpenAIServer
) -> None:
    """The service is killed while the second call, the comparison, waits for its reply."""
    model = ["--model", "scripted", "--model-base-url", openai_server.url]
    serving = Serving(tmp_path / "log", "--database-url", database_url, *model)
    with serving:
        with serving.client() as memory:
            memory.save("Ana likes black coffee and tea, and lived in Oslo.")
            memory.write("s1", [{"role": "user", "content": text} for text in FACTS])
            openai_server.script(EXTRACTED, HANG)
            memory.end("s1")
            while len(openai_server.asked) < 2:
                time.sleep(PAUSE)
        serving.kill()
        expire_leases(database_url)
        openai_server.script(EXTRACTED, NEW)
        serving.start()
        with serving.client() as memory:
            assert memory.wait("s1", timeout=60).extracted_upto == 2
            memory.end("s1", wait=10)
            facts = memory.list(kinds=["fact"]).items
    assert sorted(fact.text for fact in facts if fact.sources) == sorted(FACTS)
    assert all(len(fact.sources) == 1 for fact in facts if fact.sources)
    assert len(openai_server.asked) == 4
