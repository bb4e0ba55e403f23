"""Turns into facts, a batch at a time: each turn is read once, its facts are stored with the watermark that says so.

Per batch two calls of the model at most, one to draw facts and one to compare them; a third only where facts near them
changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import anyio.to_thread

from threefold_server.clock import MICROS, from_micros
from threefold_server.consolidation.candidates import Source, accept
from threefold_server.consolidation.compare import Drawn, Step, Verdicts, decide, look_around
from threefold_server.consolidation.merge import FactsMoved, Merge
from threefold_server.models.ports import DigestTurn, Extractor, SaidTurn, Talk
from threefold_server.operations.facts import expiry
from threefold_server.rules.trust import role_of
from threefold_server.service import Service
from threefold_server.storage.engine import excerpts
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories.nearest import kind_of
from threefold_server.storage.sessions import extraction, tasks
from threefold_server.storage.sessions.tasks import Claim
from threefold_server.telemetry import logger
from threefold_server.text.indexed import own_words
from threefold_server.text.redaction import Redact
from threefold_server.text.tokens import head_and_tail

BATCH_TOKENS = 3_000
"""What one call reads at most, beside instructions of some 8,000 tokens. Of a larger turn it reads head and tail."""

COMPARISONS = 10
"""As a rule the first one holds. Where ten do not, something changes this owner's facts without a rest."""


@dataclass(frozen=True)
class Batch:
    """The turns of one call: what people and agents said in them, and what helps to understand it."""

    agent: str
    session_id: str
    digest: str | None
    before: list[Source]
    said: list[Source]
    upto: int


async def extract_session(service: Service, claim: Claim) -> None:
    """Draw facts from every turn after the watermark."""
    extractor = service.extractor
    while extractor is not None:
        read = partial(_next_batch, claim=claim, redact=service.redact)
        batch = await service.database.read(claim.owner, read, background=True)
        if batch.upto == claim.upto:
            break
        drawn = await _draw(service, extractor, claim, batch) if batch.said else []
        claim = await _store(service, extractor, claim, batch, drawn)
    wait = int(service.settings.idle_seconds * MICROS)
    finish = partial(_finish, claim=claim, later=service.clock() + wait, reading=extractor is not None)
    await service.database.write(claim.owner, finish, background=True)


def _next_batch(connection: Connection, claim: Claim, redact: Redact) -> Batch:
    backlog = extraction.backlog(connection, claim.owner, claim.subject, claim.upto)
    upto, left, said = claim.upto, BATCH_TOKENS, list[Source]()
    for row in backlog.turns:
        found = list(_sources([row], redact))
        left -= row.tokens if found else 0
        if left < 0 and said:
            break
        upto = row.seq
        said += found
    session = backlog.session
    agent, session_id = (session.agent, session.session_id) if session is not None else ("", "")
    return Batch(agent, session_id, backlog.digest, list(_sources(backlog.before, redact)), said, upto)


def _sources(rows: Sequence[AnyRow], redact: Redact) -> Iterator[Source]:
    """What people and agents said. Not system prompts, nor what a tool fetched: that is nobody's word, and may be
    anybody's trap."""
    for row in rows:
        role = role_of(row)
        heard = not row.barred and role in ("user", "assistant")
        text = excerpts.shown(row, partial(own_words, redact=redact)).strip() if heard else ""
        if text:
            text = head_and_tail(text, BATCH_TOKENS, row.tokens) if row.tokens > BATCH_TOKENS else text
            said = from_micros(row.event_at, row.utc_offset)
            speaker = redact(row.name or row.role)
            yield Source(row.seq, role, speaker, text, said, row.event_at, row.visibility, row.imported)


async def _draw(service: Service, extractor: Extractor, claim: Claim, batch: Batch) -> list[Drawn]:
    before = [DigestTurn(turn.seq, turn.speaker, turn.role, turn.text) for turn in batch.before]
    turns = [SaidTurn(turn.seq, turn.speaker, turn.role, turn.text, turn.said) for turn in batch.said]
    answer = await extractor.extract(Talk(batch.digest, before, turns))
    proposed = [replace(candidate, text=service.redact(candidate.text)) for candidate in answer]
    ahead = batch.before[-1] if batch.before else None
    found, dropped = await anyio.to_thread.run_sync(accept, proposed, batch.said, ahead)
    service.metrics.facts.labels("dropped").inc(dropped)
    if dropped:
        logger.info("candidates dropped", extra={"fields": {"dropped": dropped, "kept": len(found)}})
    kind = partial(kind_of, claim.owner, batch.agent, session=claim.subject)
    return [Drawn(uuid4(), kind(fact.visibility), fact) for fact in found]


async def _store(service: Service, extractor: Extractor, claim: Claim, batch: Batch, drawn: Sequence[Drawn]) -> Claim:
    """Compare and commit; anew if the owner's facts moved meanwhile, for a bounded number of times."""
    vectors = await service.embedder.embed([item.fact.text for item in drawn])
    verdicts: Verdicts = {}
    compared = 0
    while True:
        now, steps, revision = service.clock(), list[Step](), None
        if drawn:
            look = partial(look_around, drawn=drawn, vectors=vectors, embedder=service.embedder.name, now=now)
            seen = await service.database.read(claim.owner, partial(look, session=claim.subject), background=True)
            steps, revision = await decide(extractor, drawn, seen.near, verdicts), seen.revision
        merge = Merge(
            claim,
            batch.upto,
            session_id=batch.session_id,
            steps=steps,
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
            if compared == COMPARISONS:
                raise
            continue
        for outcome, count in merge.outcomes.items():
            service.metrics.facts.labels(outcome).inc(count)
        if full := merge.outcomes["over quota"]:
            logger.warning("facts over quota", extra={"fields": {"not_stored": full}})
        return claim


def _finish(connection: Connection, claim: Claim, later: int, reading: bool) -> None:
    """Done, until the session is idle again if it went on meanwhile."""
    session = tasks.hold(connection, claim)
    more = reading and session is not None and session.last_seq > claim.upto
    tasks.finish(connection, claim, due_at=later if more else None)
