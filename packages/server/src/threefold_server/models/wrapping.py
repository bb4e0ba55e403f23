"""What a chat model puts around its answer: its reasoning before it, a code fence around it. Pure.

Only what stands at the very start of a reply is reasoning. The same tags further on are content: somebody may have said
them in the conversation that the model reads.
"""

from __future__ import annotations

import re

_OPENINGS = {
    **{f"<{name}>": f"</{name}>" for name in ("think", "thinking", "thought", "reasoning", "seed:think")},
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
}
"""How models begin their reasoning, and how they end it."""

_ORPHAN = re.compile(r"^[ \t]*(</think(?:ing)?>|\[/THINK\]|◁/think▷)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
"""An end of reasoning alone on its line: some servers swallow the opening tag. After lines of a digest it ends none."""

_DIGEST_LINE = re.compile(r"^[ \t]*\[[1-9][0-9]{0,17}\] ", re.MULTILINE)
_FENCE = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)


def unwrap(reply: str, material: str = "") -> str:
    """Return a reply without the reasoning before it and the code fence around it; empty if it is reasoning only.

    Args:
        reply: The model's words.
        material: What the model was asked about. A tag that stands in it is content where the reply repeats it.
    """
    answer = _after_blocks(reply.strip(), material)
    orphan = stray_end(answer, material)
    if orphan and not _DIGEST_LINE.search(answer, 0, orphan.start()):
        answer = answer[orphan.end() :].strip()
    fenced = _FENCE.match(answer)
    return fenced[1].strip() if fenced and _is_one_fence(fenced[1]) else answer


def stray_end(answer: str, material: str) -> re.Match[str] | None:
    """Return an end of reasoning in an answer that nobody said and that no beginning belongs to."""
    found = _ORPHAN.search(answer)
    return None if found is None or _is_said(found[1], material) else found


def _after_blocks(reply: str, material: str) -> str:
    """The reply after all blocks of reasoning at its start; empty if one has no end."""
    while opening := next((tag for tag in _OPENINGS if reply[: len(tag)].lower() == tag.lower()), None):
        end = _end_of(_OPENINGS[opening], reply, material)
        reply = "" if end is None else reply[end:].strip()
    return reply


def _end_of(tag: str, reply: str, material: str) -> int | None:
    """Where a block ends: at the first closing tag. Of a tag that somebody said, at the first that ends its line, as
    the reasoning may quote it."""
    ends_line = (
        re.compile(re.escape(tag) + r"(?=[ \t\r]*(?:\n|\Z))", re.IGNORECASE) if _is_said(tag, material) else None
    )
    found = ends_line and ends_line.search(reply)
    found = found or re.search(re.escape(tag), reply, re.IGNORECASE)
    return None if found is None else found.end()


def _is_said(tag: str, material: str) -> bool:
    return tag.lower() in material.lower()


def _is_one_fence(inner: str) -> bool:
    """False if a fence inside ends the first one, as in a reply that begins and ends with a block of code."""
    depth = 1
    for line in inner.split("\n"):
        if line.startswith("```"):
            depth += 1 if line.strip("` \t\r") else -1
            if depth == 0:
                return False
    return True
