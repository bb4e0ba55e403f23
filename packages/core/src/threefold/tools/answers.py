"""What a model reads when a tool has done its work, or could not."""

from __future__ import annotations

import json
from typing import Any

from threefold.contract import ForgetReceipt, Memory, MemoryPage, RecallResponse, SessionStatus, WriteResponse
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.graphemes import middle_cut
from threefold.policy import is_refusal
from threefold.render import FENCE_CLOSE, FENCE_OPEN, PREFACE, join_block, memory_line, unfenced
from threefold.session import REFUSED, SERVICE_DOWN

SHOWN_CHARS = 2_000  # of one memory, where no token budget has cut it: about what the default budget leaves of it

UNAVAILABLE = "Memory is not available right now. Go on without it."
NOT_ALLOWED = "Memory refused this request. Go on without it."
INCOMPLETE = "Memory answered only in part, so something may be missing."
NOTHING_FOUND = "No memory matches."
NOTHING_TO_SAVE = "Nothing was saved: there is nothing new in it."
NOTHING_FORGOTTEN = "Nothing was forgotten: no memory of yours has such an id."


def recalled_text(response: RecallResponse) -> str:
    """The fenced block, so that a recorded tool result never becomes a memory again; or why there is none."""
    if REFUSED in response.degraded:
        return NOT_ALLOWED
    if response.degraded:
        reason = UNAVAILABLE if SERVICE_DOWN in response.degraded else INCOMPLETE
        return "\n".join(filter(None, [reason, response.block]))
    return response.block or NOTHING_FOUND


def loaded_text(response: RecallResponse) -> str:
    """The memories as kagent's agents read them: compact JSON without nulls, in the fence. An outage is plain text."""
    if not response.memories and response.degraded:
        return recalled_text(response)
    found: dict[str, Any] = {"memories": [memory_entry(memory) for memory in response.memories]}
    if response.degraded:
        found = {"warning": INCOMPLETE, **found}
    if response.memories:
        found = {"note": f"{FENCE_OPEN} {PREFACE}", **found, "end": FENCE_CLOSE}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def memory_entry(memory: Memory) -> dict[str, Any]:
    """A memory in the form of ADK's `MemoryEntry`."""
    said_by = memory.role or memory.origin
    text = unfenced(middle_cut(memory.text, SHOWN_CHARS))
    return {
        "content": {"parts": [{"text": text}], "role": "model" if said_by == "assistant" else "user"},
        "id": unfenced(memory.id),
        "author": unfenced(memory.name or said_by),
        "timestamp": (memory.event_at or memory.created_at).isoformat(),
    }


def listed_text(page: MemoryPage) -> str:
    """One entry for each memory, fenced like any other recalled text. A hundred long ones must not flood a model."""
    lines = [memory_line(_shown(memory), with_id=True) for memory in page.items]
    more = [f"- more follow: cursor {page.next_cursor}"] if page.next_cursor else []
    return join_block([], [*lines, *more], []) or NOTHING_FOUND


def found_text(memory: Memory) -> str:
    """One memory in a fence of its own, for frameworks that put what they show together themselves."""
    return join_block([], [memory_line(_shown(memory))], [])


def _shown(memory: Memory) -> Memory:
    return memory.model_copy(update={"text": middle_cut(memory.text, SHOWN_CHARS)})


def saved_text(memory: Memory) -> str:
    """The answer to a save."""
    return f"Saved as {memory.id}."


def recorded_text(_: WriteResponse) -> str:
    """The answer to a record."""
    return "Recorded."


def forgotten_text(receipt: ForgetReceipt) -> str:
    """What went, in numbers."""
    counts = [f"{name} {receipt.counts[name]}" for name in ("facts", "turns") if receipt.counts.get(name)]
    if not counts:
        return NOTHING_FORGOTTEN
    if receipt.dry_run:
        return f"This would be forgotten: {', '.join(counts)}."
    left = "" if receipt.complete else " Something is left: call it again."
    return f"Forgotten for good: {', '.join(counts)}.{left}"


def consolidated_text(status: SessionStatus) -> str:
    """How far the work has come."""
    return f"Consolidation is {status.state}: {status.indexed_upto} of {status.last_seq} turns are indexed."


def wrong_call(error: InvalidRequest) -> str:
    """What is wrong with a call, for a model."""
    return f"Wrong call: {error}"


def failure_text(error: ThreefoldError) -> str:
    """A failure, for a model."""
    return f"{NOT_ALLOWED} ({error})" if is_refusal(error) else UNAVAILABLE
