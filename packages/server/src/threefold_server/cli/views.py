"""The answers of the service as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.text import Text

from threefold.contract import (
    DigestPage,
    FactHistory,
    ForgetReceipt,
    Health,
    Memory,
    MemoryPage,
    RecallResponse,
    SessionPage,
    SessionState,
    SessionStatus,
    Turn,
    TurnPage,
    WhoAmI,
    WriteResponse,
)
from threefold.contract.admin import (
    AuditCheck,
    AuditEntry,
    AuditPage,
    ImportReceipt,
    OwnerPage,
    RenameReceipt,
    StoreUsage,
)
from threefold_server.cli.output import plain, table


class Status(BaseModel):
    """The answer of `threefold status`: health of the service, identity of the caller, and the named session."""

    url: str
    health: Health
    identity: WhoAmI
    session: SessionStatus | None = None


class Exported(BaseModel):
    """The answer of `threefold admin export`: the file and its number of rows."""

    file: str
    rows: int


def when(moment: datetime | None) -> str:
    """Return a time to the minute, in its own time zone; an empty text for None."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def written(answer: WriteResponse) -> RenderableType:
    """Return the counts of a write."""
    parts = {"appended": answer.appended, "duplicates": answer.duplicates, "erased": answer.erased}
    counts = ", ".join(f"{count} {name}" for name, count in parts.items() if count or name == "appended")
    return plain(f"{counts}; the session is at turn {answer.last_seq}, revision {answer.revision}")


def recalled(answer: RecallResponse) -> RenderableType:
    """Return the tiers of a recall, one after the other."""
    parts: list[RenderableType] = []
    if answer.digest is not None:
        parts += [
            _title(f"Digest of turns {answer.digest.from_seq}-{answer.digest.upto_seq}"),
            plain(answer.digest.text),
        ]
    if answer.memories:
        rows = [(f"{memory.score:.2f}", *_memory_row(memory)) for memory in answer.memories]
        parts += [_title("Memories"), table("score", *MEMORY_COLUMNS, rows=rows)]
    if answer.window:
        parts += [_title("This session"), _turns(answer.window)]
    parts += [plain(note, "yellow") for note in _notes(answer)]
    return Group(*parts or ["No memories found."])


def _notes(answer: RecallResponse) -> Iterable[str]:
    if answer.gap is not None:
        yield f"Turns {answer.gap.from_seq}-{answer.gap.upto_seq} are in neither digest nor window."
    if answer.pending_turns:
        yield f"{answer.pending_turns} turns are found by words only; their vectors follow."
    if answer.degraded:
        yield f"Missing in this answer: {', '.join(answer.degraded)}."
    if answer.dropped:
        yield f"{len(answer.dropped)} items did not fit into {answer.tokens.budget} tokens."


MEMORY_COLUMNS = ("when", "who", "what")


def _memory_row(memory: Memory) -> tuple[object, ...]:
    who = memory.name or memory.role or memory.origin
    marks = [memory.kind, *(["pinned"] if memory.pinned else []), *(["shared"] if memory.shared else [])]
    if memory.valid_to is not None:
        marks.append(f"until {when(memory.valid_to)}")
    what = plain(memory.text) + plain(f"\n{', '.join(marks)} {memory.id}", "dim")
    return when(memory.event_at or memory.created_at), who, what


def memory(answer: Memory) -> RenderableType:
    """Return one memory as a table."""
    return table(*MEMORY_COLUMNS, rows=[_memory_row(answer)])


def memories(answer: MemoryPage) -> RenderableType:
    """Return a page of memories as a table."""
    rows = [_memory_row(item) for item in answer.items]
    return _page(table(*MEMORY_COLUMNS, rows=rows), len(rows), answer.next_cursor)


def history(answer: FactHistory) -> RenderableType:
    """Return the versions of a fact, oldest first."""
    rows = [
        (
            when(version.valid_from),
            when(version.valid_to) or "now",
            plain(version.text) + plain(f"\n{version.id}", "dim"),
        )
        for version in answer.versions
    ]
    return table("from", "until", "what", rows=rows)


def receipt(answer: ForgetReceipt) -> RenderableType:
    """Return the counts of a forget or of its dry run."""
    column = "would be erased" if answer.dry_run else "erased"
    rows = [(tier, count) for tier, count in answer.counts.items()]
    notes: list[RenderableType] = [plain(f"not covered: {tier}", "yellow") for tier in answer.not_covered]
    if not answer.dry_run:
        notes.append(plain(f"receipt {answer.receipt_id}, {_outcome(answer)}"))
    return Group(table("what", column, rows=rows), *notes)


def _outcome(answer: ForgetReceipt) -> str:
    done = "complete" if answer.complete else "NOT complete"
    return (
        f"{done}; erased from the files too"
        if answer.purge == "done"
        else f"{done}; run `threefold purge` to clear the files"
    )


def sessions(answer: SessionPage) -> RenderableType:
    """Return a page of sessions as a table."""
    rows = [(when(item.updated_at), item.turns, item.tokens, item.session_id) for item in answer.sessions]
    return _page(table("last written", "turns", "tokens", "session", rows=rows), len(rows), answer.next_cursor)


def turns(answer: TurnPage) -> RenderableType:
    """Return a page of turns as a table."""
    more = None if answer.next_cursor is None else f"--from {answer.turns[-1].seq + 1}"
    return _page(_turns(answer.turns), len(answer.turns), more, option="")


def _turns(found: Iterable[Turn]) -> RenderableType:
    rows = [(turn.seq, when(turn.created_at), turn.name or turn.role, _content(turn)) for turn in found]
    return table("turn", *MEMORY_COLUMNS, rows=rows)


def _content(turn: Turn) -> Text:
    return plain("erased", "dim") if turn.erased else plain(turn.content)


def digests(answer: DigestPage) -> RenderableType:
    """Return the versions of a digest, newest first."""
    rows = [
        (item.version, f"{item.from_seq}-{item.upto_seq}", " ".join(filter(None, [item.model, item.prompt])), item.text)
        for item in answer.digests
    ]
    return _page(table("version", "turns", "by", "text", rows=rows), len(rows), answer.next_cursor)


def session_state(answer: SessionState) -> RenderableType:
    """Return the state that a framework stores with a session."""
    return table("revision", "turns", "state", rows=[(answer.revision, answer.last_seq, answer.state or "")])


def session_status(answer: SessionStatus) -> RenderableType:
    """Return the progress of background work on a session."""
    progress = (
        ("indexed", answer.indexed_upto),
        ("digested", answer.digested_upto),
        ("extracted", answer.extracted_upto),
    )
    state = answer.state if answer.reason is None else f"{answer.state}: {answer.reason}"
    return table(
        "state",
        "turns",
        *(name for name, _ in progress),
        rows=[(state, answer.last_seq, *(upto for _, upto in progress))],
    )


def _health(health: Health) -> str:
    return health.status if health.detail is None else f"{health.status}: {health.detail}"


def status(answer: Status) -> RenderableType:
    """Return health, identity and settings of the service, and the progress on the session."""
    identity, policy = answer.identity, answer.identity.store
    rows = [
        ("service", f"{answer.url}, version {identity.version}, {_health(answer.health)}"),
        ("caller", f"user {identity.user or '(self)'}, agent {identity.agent}, mode {identity.mode}"),
        (
            "reads",
            f"level {identity.default_level}, at most {identity.ceiling}"
            + (", and what is shared" if identity.reads_shared else ""),
        ),
        (
            "store",
            f"{policy.token_budget} tokens, {policy.top_k} memories, failure mode {policy.failure_mode}",
        ),
    ]
    session = [] if answer.session is None else [Text(), session_status(answer.session)]
    return Group(table("", "", rows=rows), *session)


def _title(text: str) -> Text:
    return Text(text, "bold cyan")


def owners(answer: OwnerPage) -> RenderableType:
    """Return a page of owners as a table."""
    counts = ("sessions", "turns", "tokens", "facts", "items", "threads")
    rows = [(owner.kind, *(getattr(owner, name) for name in counts), owner.name) for owner in answer.owners]
    shown = table("kind", *counts, "name", rows=rows)
    return _page(shown, len(rows), answer.next_cursor)


def renamed(answer: RenameReceipt) -> RenderableType:
    """Return the counts of renamed rows."""
    rows = [(name, count) for name, count in answer.counts.items() if count]
    return table("what", "renamed", rows=rows)


def exported(answer: Exported) -> RenderableType:
    """Return the file of an archive and its number of rows."""
    return plain(f"{answer.rows} rows in {answer.file}")


def imported(answer: ImportReceipt) -> RenderableType:
    """Return the counts of an import."""
    return plain(f"{answer.added} rows added, {answer.present} there already")


def usage(answer: StoreUsage) -> RenderableType:
    """Return the counts of rows and tasks of the store."""
    rows = [(name, count) for name, count in answer.model_dump(exclude={"tasks"}).items()]
    rows += [(f"tasks {state}", count) for state, count in answer.tasks.items()]
    return table("what", "count", rows=rows)


def audit(answer: AuditPage) -> RenderableType:
    """Return a page of the audit as a table."""
    rows = [(when(entry.at), _actor(entry), entry.action, entry.outcome, _subject(entry)) for entry in answer.entries]
    return _page(table("when", "who", "did", "outcome", "to whom", rows=rows), len(rows), answer.next_cursor)


def _actor(entry: AuditEntry) -> str:
    who = entry.actor_name or entry.actor or ("operator" if entry.admin else "unknown")
    return f"{who} (admin)" if entry.admin and entry.actor else who


def _subject(entry: AuditEntry) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in entry.counts.items() if count)
    return "; ".join(part for part in (entry.owner_name or entry.owner or "the store", entry.target, counts) if part)


def audit_check(answer: AuditCheck) -> RenderableType:
    """Return the result of verifying the audit."""
    found = plain("whole") if answer.ok else plain(f"BROKEN: {answer.problem}", "red")
    rows = [("chain", found), ("entries", answer.entries), ("not chained yet", answer.waiting)]
    return Group(
        table("what", "found", rows=rows), plain(f"head {answer.head}")
    )  # outside the table, which would wrap it: it is copied


def _page(rows: RenderableType, count: int, more: str | None, option: str = "--cursor ") -> RenderableType:
    if not count:
        return Text("No results.", "dim")
    return rows if more is None else Group(rows, plain(f"More: {option}{more}", "dim"))
