"""What a model reads when a tool has done its work, or could not."""

from __future__ import annotations

from threefold.contract import ForgetReceipt, Memory, MemoryPage, RecallResponse, SessionStatus, WriteResponse
from threefold.errors import InvalidRequest, ThreefoldError
from threefold.policy import is_refusal
from threefold.render import join_block, memory_line
from threefold.session import REFUSED, SERVICE_DOWN

UNAVAILABLE = "Memory is not available right now. Go on without it."
NOT_ALLOWED = "Memory refused this request. Go on without it."
INCOMPLETE = "Memory answered only in part, so something may be missing."
NOTHING_FOUND = "No memory matches."
NOTHING_TO_SAVE = "Nothing was saved: the text holds only what memory already has."
NOTHING_FORGOTTEN = "Nothing was forgotten: no memory of yours has such an id."


def recalled_text(response: RecallResponse) -> str:
    """The fenced block, so that a recorded tool result never becomes a memory again; or why there is none."""
    if REFUSED in response.degraded:
        return NOT_ALLOWED
    if response.degraded:
        reason = UNAVAILABLE if SERVICE_DOWN in response.degraded else INCOMPLETE
        return "\n".join(filter(None, [reason, response.block]))
    return response.block or NOTHING_FOUND


def listed_text(page: MemoryPage) -> str:
    """One line for each memory, fenced like any other recalled text."""
    lines = [memory_line(memory, with_id=True) for memory in page.items]
    more = [f"- more follow: cursor {page.next_cursor}"] if page.next_cursor else []
    return join_block([], [*lines, *more], []) or NOTHING_FOUND


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
