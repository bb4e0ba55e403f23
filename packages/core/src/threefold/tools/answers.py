"""The text that a model reads as the answer of a tool call."""

from __future__ import annotations

import json
from typing import Any

from threefold.contract import ForgetReceipt, Memory, MemoryPage, RecallResponse, SessionStatus, WriteResponse
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.graphemes import middle_cut
from threefold.policy import is_refusal
from threefold.render import FENCE_CLOSE, FENCE_OPEN, PREFACE, join_block, memory_line, unfenced
from threefold.session import REFUSED, SERVICE_DOWN

SHOWN_CHARS = 2_000  # of one memory where no token budget applies; the default budget cuts a memory to about this

UNAVAILABLE = "Memory is not available right now. Go on without it."
NOT_ALLOWED = "Memory refused this request. Go on without it."
INCOMPLETE = "Memory answered only in part, so something may be missing."
NOTHING_FOUND = "No memory matches."
NOTHING_TO_SAVE = "Nothing was saved: the text has nothing new."
NOTHING_FORGOTTEN = "Nothing was forgotten: you have no memory with such an id."


def recalled_text(response: RecallResponse) -> str:
    """Return the block of a recall, or the reason why it is empty.

    The block is fenced, so that a recorded tool result does not become a memory again.
    """
    if REFUSED in response.degraded:
        return NOT_ALLOWED
    if response.degraded:
        reason = UNAVAILABLE if SERVICE_DOWN in response.degraded else INCOMPLETE
        return "\n".join(filter(None, [reason, response.block]))
    return response.block or NOTHING_FOUND


def loaded_text(response: RecallResponse) -> str:
    """Return the memories as the agents of kagent read them: compact JSON without nulls, in the fence.

    An outage is reported as plain text.
    """
    if not response.memories and response.degraded:
        return recalled_text(response)
    found: dict[str, Any] = {"memories": [memory_entry(memory) for memory in response.memories]}
    if response.degraded:
        found = {"warning": INCOMPLETE, **found}
    if response.memories:
        found = {"note": f"{FENCE_OPEN} {PREFACE}", **found, "end": FENCE_CLOSE}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def memory_entry(memory: Memory) -> dict[str, Any]:
    """Return a memory in the form of ADK's `MemoryEntry`."""
    author = memory.role or memory.origin
    text = unfenced(middle_cut(memory.text, SHOWN_CHARS))
    return {
        "content": {"parts": [{"text": text}], "role": "model" if author == "assistant" else "user"},
        "id": unfenced(memory.id),
        "author": unfenced(memory.name or author),
        "timestamp": (memory.event_at or memory.created_at).isoformat(),
    }


def listed_text(page: MemoryPage) -> str:
    """Return one line per memory, in the fence. Each text is cut, so that 100 long memories do not fill a context."""
    lines = [memory_line(_shown(memory), with_id=True) for memory in page.items]
    more = [f"- more follow: cursor {page.next_cursor}"] if page.next_cursor else []
    return join_block([], [*lines, *more], []) or NOTHING_FOUND


def found_text(memory: Memory) -> str:
    """Return one memory in its own fence, for frameworks that join the memories themselves."""
    return join_block([], [memory_line(_shown(memory))], [])


def _shown(memory: Memory) -> Memory:
    return memory.model_copy(update={"text": middle_cut(memory.text, SHOWN_CHARS)})


def saved_text(memory: Memory) -> str:
    """Return the answer to a save."""
    return f"Saved as {memory.id}."


def recorded_text(_: WriteResponse) -> str:
    """Return the answer to a record."""
    return "Recorded."


def forgotten_text(receipt: ForgetReceipt) -> str:
    """Return how many facts and turns were erased, or would be."""
    counts = [f"{name} {receipt.counts[name]}" for name in ("facts", "turns") if receipt.counts.get(name)]
    if not counts:
        return NOTHING_FORGOTTEN
    if receipt.dry_run:
        return f"This would be forgotten: {', '.join(counts)}."
    left = "" if receipt.complete else " Some of it is left: call this tool again."
    return f"Forgotten for good: {', '.join(counts)}.{left}"


def consolidated_text(status: SessionStatus) -> str:
    """Return how far consolidation has come."""
    return f"Consolidation is {status.state}: {status.indexed_upto} of {status.last_seq} turns are indexed."


def wrong_call(error: InvalidRequest) -> str:
    """Return what is wrong with a call, for a model."""
    return f"Wrong call: {error}"


def failure_text(error: ThreefoldError) -> str:
    """Return a failure as text for a model."""
    return f"{NOT_ALLOWED} ({error})" if is_refusal(error) else UNAVAILABLE
