"""Removal of what a chat model puts around its answer: reasoning before it and a code fence around it. Pure.

Only reasoning at the very start of a reply is removed. The same tags further on are content: they may come from the
conversation that the model reads.
"""

from __future__ import annotations

import re

_OPENINGS = {
    **{f"<{name}>": f"</{name}>" for name in ("think", "thinking", "thought", "reasoning", "seed:think")},
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
}
"""The tags with which models start their reasoning, and those with which they end it."""

_ORPHAN = re.compile(r"^[ \t]*(</think(?:ing)?>|\[/THINK\]|◁/think▷)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
"""An end tag alone on its line, as some servers remove the opening tag. After lines of a digest it is no end."""

_DIGEST_LINE = re.compile(r"^[ \t]*\[[1-9][0-9]{0,17}\] ", re.MULTILINE)
_FENCE = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)


def unwrap(reply: str, material: str = "") -> str:
    """Return a reply without reasoning and code fence. It is empty if the reply is reasoning only.

    Args:
        reply: The text that the model returned.
        material: The text that the model was asked about. A tag that it contains may be content in the reply, too.
    """
    answer = _after_blocks(reply.strip(), material)
    orphan = stray_end(answer, material)
    if orphan and not _DIGEST_LINE.search(answer, 0, orphan.start()):
        answer = answer[orphan.end() :].strip()
    fenced = _FENCE.match(answer)
    return fenced[1].strip() if fenced and _is_one_fence(fenced[1]) else answer


def stray_end(answer: str, material: str) -> re.Match[str] | None:
    """Return the first end tag alone on its line; None if the answer has none, or if the material contains the tag."""
    found = _ORPHAN.search(answer)
    return None if found is None or _is_in_material(found[1], material) else found


def _after_blocks(reply: str, material: str) -> str:
    """Return the reply after all blocks of reasoning at its start. It is empty if a block has no end."""
    while opening := next((tag for tag in _OPENINGS if reply[: len(tag)].lower() == tag.lower()), None):
        end = _end_of(_OPENINGS[opening], reply, material)
        reply = "" if end is None else reply[end:].strip()
    return reply


def _end_of(tag: str, reply: str, material: str) -> int | None:
    """Return the index after a block: after the first end tag, or None without one.

    If the material contains the tag, the reasoning may quote it. Then the first tag at the end of a line counts.
    """
    ends_line = (
        re.compile(re.escape(tag) + r"(?=[ \t\r]*(?:\n|\Z))", re.IGNORECASE) if _is_in_material(tag, material) else None
    )
    found = ends_line and ends_line.search(reply)
    found = found or re.search(re.escape(tag), reply, re.IGNORECASE)
    return None if found is None else found.end()


def _is_in_material(tag: str, material: str) -> bool:
    return tag.lower() in material.lower()


def _is_one_fence(inner: str) -> bool:
    """Return False if the outer fence ends inside, as in a reply that starts and ends with a block of code."""
    depth = 1
    for line in inner.split("\n"):
        if line.startswith("```"):
            depth += 1 if line.strip("` \t\r") else -1
            if depth == 0:
                return False
    return True
