"""Extraction of facts from the turns of a session, one batch at a time.

Each turn is read once: its facts are stored in one transaction with the watermark. A batch takes at most two calls of
the model, one to extract facts and one to compare them, and one more comparison each time that facts near them changed
in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import anyio.to_thread

from threefold_server.clock import MICROS, from_micros
from threefold_server.consolidation.candidates import Source, accept
from threefold_server.consolidation.compare import Decision, ExtractedFact, Verdicts, decide, find_near_facts
from threefold_server.consolidation.merge import FactsMoved, Merge
from threefold_server.models.ports import DatedTurn, DigestTurn, ExtractionInput, Extractor
from threefold_server.operations.facts import expiry
from threefold_server.rules.trust import role_of
from threefold_server.service import Service
from threefold_server.storage.engine import excerpts
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories.nearest import merge_group
from threefold_server.storage.sessions import extraction, tasks
from threefold_server.storage.sessions.tasks import Claim
from threefold_server.telemetry import logger
from threefold_server.text.indexed import own_words
from threefold_server.text.redaction import Redact
from threefold_server.text.tokens import head_and_tail

BATCH_TOKENS = 3_000
"""The most tokens of turns in one call; instructions take about 8,000 more. A larger turn is cut to head and tail."""

MAX_COMPARISONS = 10
"""Comparisons before the task fails. The first one usually suffices; ten mean that the facts change all the time."""


@dataclass(frozen=True)
class Batch:
    """The turns of one call of the extractor, with the digest and the turns before them as context.

    `upto` is the last turn that the batch covers, including turns without content for the extractor.
    """

    agent: str
    session_id: str
    digest: str | None
    before: list[Source]
    turns: list[Source]
    upto: int


async def extract_session(service: Service, claim: Claim) -> None:
    """Extract facts from every turn after the watermark of the task. Without an extractor, only finish the task."""
    extractor = service.extractor
    while extractor is not None:
        read = partial(_next_batch, claim=claim, redact=service.redact)
        batch = await service.database.read(claim.owner, read, background=True)
        if batch.upto == claim.upto:
            break
        extracted = await _extract(service, extractor, claim, batch) if batch.turns else []
        claim = await _store(service, extractor, claim, batch, extracted)
    idle_at = service.clock() + int(service.settings.idle_seconds * MICROS)
    complete = partial(_complete, claim=claim, idle_at=idle_at, extracting=extractor is not None)
    await service.database.write(claim.owner, complete, background=True)


def _next_batch(connection: Connection, claim: Claim, redact: Redact) -> Batch:
    unread = extraction.read_input(connection, claim.owner, claim.subject, claim.upto)
    upto, tokens_left, turns = claim.upto, BATCH_TOKENS, list[Source]()
    for row in unread.turns:
        sources = list(_sources([row], redact))
        tokens_left -= row.tokens if sources else 0
        if tokens_left < 0 and turns:
            break
        upto = row.seq
        turns += sources
    session = unread.session
    agent, session_id = (session.agent, session.session_id) if session is not None else ("", "")
    return Batch(agent, session_id, unread.digest, list(_sources(unread.before, redact)), turns, upto)


def _sources(rows: Sequence[AnyRow], redact: Redact) -> Iterator[Source]:
    """Yield the turns of people and agents, without recalled memory.

    System prompts are left out, and results of tools too: nobody said them, and a fetched page may plant false facts.
    """
    for row in rows:
        role = role_of(row)
        is_readable = not row.barred and role in ("user", "assistant")
        text = excerpts.shown(row, partial(own_words, redact=redact)).strip() if is_readable else ""
        if text:
            text = head_and_tail(text, BATCH_TOKENS, row.tokens) if row.tokens > BATCH_TOKENS else text
            said_at = from_micros(row.event_at, row.utc_offset)
            speaker = redact(row.name or row.role)
            yield Source(row.seq, role, speaker, text, said_at, row.event_at, row.visibility, row.imported)


async def _extract(service: Service, extractor: Extractor, claim: Claim, batch: Batch) -> list[ExtractedFact]:
    before = [DigestTurn(turn.seq, turn.speaker, turn.role, turn.text) for turn in batch.before]
    turns = [DatedTurn(turn.seq, turn.speaker, turn.role, turn.text, turn.said_at) for turn in batch.turns]
    answer = await extractor.extract(ExtractionInput(batch.digest, before, turns))
    candidates = [replace(candidate, text=service.redact(candidate.text)) for candidate in answer]
    ahead = batch.before[-1] if batch.before else None
    accepted, dropped = await anyio.to_thread.run_sync(accept, candidates, batch.turns, ahead)
    service.metrics.facts.labels("dropped").inc(dropped)
    if dropped:
        logger.info("candidates dropped", extra={"fields": {"dropped": dropped, "kept": len(accepted)}})
    group = partial(merge_group, claim.owner, batch.agent, session=claim.subject)
    return [ExtractedFact(uuid4(), group(fact.visibility), fact) for fact in accepted]


async def _store(
    service: Service, extractor: Extractor, claim: Claim, batch: Batch, extracted: Sequence[ExtractedFact]
) -> Claim:
    """Compare the facts with the known ones and store them.

    Repeat both if the owner's facts changed in between; raise FactsMoved after `MAX_COMPARISONS`.
    """
    vectors = await service.embedder.embed([new.fact.text for new in extracted])
    verdicts: Verdicts = {}
    compared = 0
    while True:
        now, decisions, revision = service.clock(), list[Decision](), None
        if extracted:
            find = partial(
                find_near_facts, extracted=extracted, vectors=vectors, embedder=service.embedder.name, now=now
            )
            found = await service.database.read(claim.owner, partial(find, session=claim.subject), background=True)
            decisions, revision = await decide(extractor, extracted, found.near, verdicts), found.revision
        merge = Merge(
            claim,
            batch.upto,
            session_id=batch.session_id,
            decisions=decisions,
            revision=revision,
            extracted_by=extractor.name,
            expires_at=expiry(service.settings.fact_expiry_days, now),
            quota=service.settings.max_facts_per_user,
            now=now,
        )
        try:
            claim = await service.database.write(claim.owner, merge.run, background=True)
        except FactsMoved:
            compared += 1
            if compared == MAX_COMPARISONS:
                raise
            continue
        for outcome, count in merge.outcomes.items():
            service.metrics.facts.labels(outcome).inc(count)
        if full := merge.outcomes["over quota"]:
            logger.warning("facts over quota", extra={"fields": {"not_stored": full}})
        return claim


def _complete(connection: Connection, claim: Claim, idle_at: int, extracting: bool) -> None:
    """Complete the task. If turns were added during the work, make it due again when the session is idle."""
    session = tasks.confirm_lease(connection, claim)
    has_new_turns = extracting and session is not None and session.last_seq > claim.upto
    tasks.complete(connection, claim, due_at=idle_at if has_new_turns else None)
