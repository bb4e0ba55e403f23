"""Wrapping around the answer of a model is removed, and content that resembles it is kept."""

from __future__ import annotations

import json

import pytest

from threefold_server.models.wrapping import stray_end, unwrap

ANSWER = "[3] Ana: never email the client.\nShe starts on 1 May."
CLOSE = "</think>"


@pytest.mark.parametrize(
    "reply",
    [
        f"<think>hm</think>{ANSWER}",
        f"\n <THINK>\nhm\n</THINK>\n\n{ANSWER}\n",
        f"<thinking>a</thinking>\n<think>b</think>\n{ANSWER}",
        f"<thought>hm</thought>\n{ANSWER}",
        f"<reasoning>hm</reasoning>\n{ANSWER}",
        f"<seed:think>hm</seed:think>{ANSWER}",
        f"[THINK]hm[/THINK]{ANSWER}",
        f"◁think▷hm◁/think▷{ANSWER}",
        f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}",
        f"The user wants a digest.\n</think>\n{ANSWER}",
        f"<think>hm</think>\n```markdown\n{ANSWER}\n```",
    ],
)
def test_leading_reasoning_and_surrounding_fence_are_removed(reply: str) -> None:
    assert unwrap(reply) == ANSWER


@pytest.mark.parametrize("reply", ["<think>hm", "<think>hm</think>", " <thinking>a</thinking><think>b ", "[THINK]", ""])
def test_reasoning_without_an_answer_leaves_nothing(reply: str) -> None:
    assert unwrap(reply) == ""


@pytest.mark.parametrize(
    "content",
    [
        f'[3] Ana: "What does {CLOSE} mean?"\n[4] They go on.',
        f"Ana pasted:\n{CLOSE}\nand asked why.",
        "[3] Ana: <think>both</think> tags [3].",
        "Ana wrote [/THINK] twice [3].\n[/THINK]\nThen she left.",
        json.dumps({"memory": [{"text": f"Ana's parser splits at {CLOSE}", "sources": [3]}]}),
        json.dumps({"memory": [{"text": f"a\n{CLOSE}\nb", "sources": [3]}]}, indent=2),
        json.dumps({"memory": [{"text": "```\ncode\n```", "sources": [3]}]}),
    ],
)
@pytest.mark.parametrize(
    "reasoning", ["", "<think>hm</think>\n", f"<think>She says {CLOSE} twice: {CLOSE}.\n{CLOSE}\n"]
)
def test_quoted_tags_are_content(content: str, reasoning: str) -> None:
    assert unwrap(reasoning + content, material=content) == content


@pytest.mark.parametrize(
    "text",
    [
        "Use `make`:\n```\nmake test\n```",
        "```\na\n```\nand\n```\nb\n```",
        "```py\na\n```\nand\n```py\nb\n```",
        "I <think> so.",
        f"Inline {CLOSE} is no end.",
    ],
)
def test_text_that_resembles_wrapping_is_kept(text: str) -> None:
    assert unwrap(text) == text


def test_fence_may_contain_fences() -> None:
    inner = "Run:\n```sh\nmake\n```\ndone"
    assert unwrap(f"```markdown\n{inner}\n```") == inner


def test_end_of_reasoning_after_the_start_of_a_digest_removes_nothing() -> None:
    reply = f"[3] Ana: never email.\n{CLOSE}\n[4] The bot agrees."
    assert unwrap(reply) == reply
    assert stray_end(reply, "")
    assert not stray_end(reply, f"she said {CLOSE}")
