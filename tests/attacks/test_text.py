"""Texts that are hard to cut, and quoted tags of models, through a real service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import regex

from fixtures.openai_server import OpenAIServer, chat_reply
from threefold import MemoryClient
from threefold_server.local import LocalService
from threefold_server.text.sentences import pack
from threefold_server.text.tokens import count_tokens, head_and_tail

CLUSTERS = ["🇩🇪", "क्षि", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301\u0323", "\u1112\u1161\u11ab", "กำ", "নি", "1️⃣", "\r\n", "بِّ"]


def clusters(text: str) -> list[str]:
    return regex.findall(r"\X", text)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_cuts_and_parts_keep_clusters_complete(cluster: str) -> None:
    for text in (cluster * 400, f"a{cluster}" * 300, f"{cluster} " * 300):
        whole = clusters(text)
        for budget in range(20, 120, 7):
            beginning, _, end = head_and_tail(text, budget).partition("\n[… cut")
            end = end.partition("…]\n")[2]
            assert clusters(beginning) == whole[: len(clusters(beginning))]
            assert clusters(end) == whole[len(whole) - len(clusters(end)) :]
        parts = list(pack(text, 50, count_tokens))
        assert "".join(parts) == text
        assert [found for part in parts for found in clusters(part)] == whole


@pytest.mark.parametrize("cluster", CLUSTERS[:6])
def test_window_is_cut_between_clusters(memory: MemoryClient, cluster: str) -> None:
    text = cluster * 3_000
    memory.write("s", [{"role": "user", "content": text}])
    for budget in (200, 333, 1_001):
        [turn] = memory.recall("", session_id="s", include=["short_term"], token_budget=budget).window
        beginning, _, end = turn.content.partition("\n[… cut")
        assert turn.cut
        assert set(clusters(beginning)) | set(clusters(end.partition("…]\n")[2])) == {cluster}


@pytest.mark.parametrize("tag", ["</think>", "</thinking>", "<think>", "[/THINK]", "◁/think▷", "```"])
def test_quoted_tag_removes_nothing_from_a_digest(openai_server: OpenAIServer, tmp_path: Path, tag: str) -> None:
    answer = f"Ana starts on 1 May [1].\nShe says {tag} to everybody [1].\n{tag}\nThen she leaves [2]."
    openai_server.script(*[chat_reply(f"<think>She says {tag} a lot.</think>\n{answer}")] * 4)
    settings: dict[str, Any] = {
        "embedder": "hash",
        "model": "chat",
        "model_base_url": openai_server.url,
        "token_budget": 120,
        "compaction_trigger": 100,
        "compaction_target": 40,
        "model_api_key": "key",
        "extract_facts": False,
    }
    turns = [{"role": "user", "content": f"I say\n{tag}\nand {tag} " + "word " * 40} for _ in range(4)]
    with LocalService(data=tmp_path, **settings) as service, service.client(timeout=60) as memory:
        memory.write("s", turns)
        memory.wait("s")
        digest = memory.digests("s").digests[-1]
    assert digest.text.endswith(answer)
