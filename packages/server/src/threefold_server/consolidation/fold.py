"""Folding of the oldest turns of a session into the next version of its digest.

A fold continues until at most the target of undigested tokens is left. It is made due by a write that passes the
trigger, by the end of a run or session, by the sweep of idle sessions, and by a forget that erased a digest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread

from threefold.contract import Turn
from threefold.turn_groups import group_turns
from threefold_server.models.ports import DigestTurn
from threefold_server.rules.trust import role_of
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.sessions import digests, folding, tasks, turns
from threefold_server.storage.sessions.tasks import Claim, LeaseLost
from threefold_server.text.indexed import own_words
from threefold_server.text.redaction import Redact
from threefold_server.text.sentences import pack
from threefold_server.text.tokens import count_tokens

CALL_TOKENS = 4_000
"""The most tokens of turns in one call of a summarizer. Instructions, the digest so far and the answer take 3,500 more,
so that a call fits into a context window of 8k."""

SLICE_TOKENS = 40_000
"""The most tokens of turns that one read fetches from the database."""


@dataclass(frozen=True)
class FoldPlan:
    """The turns of the next digest version, without content, and the state of the session they were chosen from.

    Without turns, nothing is left to fold.
    """

    last_seq: int
    prior: AnyRow | None
    turns: list[Turn]


async def fold_session(service: Service, claim: Claim) -> None:
    """Fold the oldest turns, one digest version at a time, until at most the target of undigested tokens is left."""
    settings = service.settings
    # Without rolling summaries a fold has nothing to do, but a forget makes one due without reading the settings.
    target = settings.target if settings.rolling_summary else sys.maxsize
    read = partial(_plan, claim=claim, target=target)
    while (plan := await service.database.read(claim.owner, read, background=True)).turns:
        text = await _digest(service, claim, plan)
        author = {"model": service.summarizer.name, "prompt": service.summarizer.prompt}
        values = {"text": text, **author, "created_at": service.clock()}
        store = partial(_store, claim=claim, plan=plan, values=values)
        await service.database.write(claim.owner, store, background=True)
    complete = partial(
        _complete, claim=claim, planned_upto=plan.last_seq, trigger=service.settings.trigger, now=service.clock()
    )
    await service.database.write(claim.owner, complete, background=True)


def oldest_groups(outline: Sequence[Turn], undigested: int, target: int) -> list[Turn]:
    """Return the oldest whole groups of turns to fold into one version.

    Args:
        outline: The undigested turns, oldest first; their content is not needed.
        undigested: The tokens of all undigested turns.
        target: The tokens that may stay undigested.

    Returns:
        As many groups as bring the rest down to the target, but no more once they have `CALL_TOKENS`. The newest group
        is never among them.
    """
    chosen: list[Turn] = []
    folded = 0
    for group in group_turns(outline)[:-1]:
        if undigested - folded <= target or folded >= CALL_TOKENS:
            break
        chosen += group
        folded += sum(turn.tokens for turn in group)
    return chosen


def slices(outline: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Split turns into lists of at most `SLICE_TOKENS`, but at least one turn. Contents are read one list at a time."""
    part: list[Turn] = []
    used = 0
    for turn in outline:
        if part and used + turn.tokens > SLICE_TOKENS:
            yield part
            part, used = [], 0
        part.append(turn)
        used += turn.tokens
    if part:
        yield part


def digest_turns(read: Iterable[Turn], redact: Redact) -> Iterator[DigestTurn]:
    """Yield turns as a summarizer reads them. A turn too large for one call is split into pieces.

    System prompts are left out: the agent restates them in every session.
    """
    for turn in read:
        if turn.role != "system":
            for piece in pack(own_words(turn.content, redact).strip(), CALL_TOKENS, count_tokens):
                yield DigestTurn(turn.seq, _speaker(turn, redact), role_of(turn), piece)


def _speaker(turn: Turn, redact: Redact) -> str:
    """Return the speaker's name, with ", as noted" for words of a user that somebody else reported."""
    name = redact(turn.name or turn.role)
    return f"{name}, as noted" if turn.noted_by and turn.role == "user" else name


def portions(read: Iterable[DigestTurn]) -> Iterator[list[DigestTurn]]:
    """Split turns into lists of at most `CALL_TOKENS`, each for one call."""
    portion: list[DigestTurn] = []
    used = 0
    for turn in read:
        size = count_tokens(turn.text)
        if portion and used + size > CALL_TOKENS:
            yield portion
            portion, used = [], 0
        portion.append(turn)
        used += size
    if portion:
        yield portion


def _plan(connection: Connection, claim: Claim, target: int) -> FoldPlan:
    session = folding.read_input(connection, claim.owner, claim.subject)
    chosen = oldest_groups(session.outline, session.undigested, target)
    return FoldPlan(session.last_seq, session.digest, chosen)


async def _digest(service: Service, claim: Claim, plan: FoldPlan) -> str:
    """Return the text of the next digest. Contents are read in slices, as the size of a group is not limited."""
    text: str | None = None if plan.prior is None else plan.prior.text
    for part in slices(plan.turns):
        first, count = part[0].seq, part[-1].seq - part[0].seq + 1
        page = partial(turns.page, owner=claim.owner, session=claim.subject, from_seq=first, limit=count, payload=False)
        read = await service.database.read(claim.owner, page, background=True)
        for portion in await anyio.to_thread.run_sync(_portions, read, service.redact):
            text = service.redact(await service.summarizer.fold(text, portion))
    return text or ""


def _portions(read: Sequence[Turn], redact: Redact) -> list[list[DigestTurn]]:
    return list(portions(digest_turns(read, redact)))


def _store(connection: Connection, claim: Claim, plan: FoldPlan, values: dict[str, Any]) -> None:
    session = tasks.confirm_lease(connection, claim)
    latest = digests.latest(connection, claim.owner, claim.subject)
    prior = plan.prior
    if session is None or (latest and latest.version) != (prior and prior.version):
        raise LeaseLost("the session has a newer digest")
    folding.add_version(
        connection,
        session,
        {
            **values,
            "from_seq": prior.from_seq if prior else plan.turns[0].seq,
            "upto_seq": plan.turns[-1].seq,
            "trust": _trust(plan),
            "covered_tokens": (prior.covered_tokens if prior else 0) + sum(turn.tokens for turn in plan.turns),
            "parent": prior.version if prior else None,
            "tokens": count_tokens(values["text"]),
        },
    )
    tasks.advance(connection, claim, claim.upto)


def _trust(plan: FoldPlan) -> float:
    """Return the lowest trust among the turns of the plan and the digest before."""
    read = [turn.trust or 0.0 for turn in plan.turns if turn.role != "system" and not turn.erased]
    return min([*read, plan.prior.trust if plan.prior else 1.0])


def _complete(connection: Connection, claim: Claim, planned_upto: int, trigger: int, now: int) -> None:
    """Complete the task. If turns that were added during the work pass the trigger again, make it due at once."""
    session = tasks.confirm_lease(connection, claim)
    is_due = (
        session is not None and session.last_seq > planned_upto and session.tokens - session.digested_tokens > trigger
    )
    tasks.complete(connection, claim, due_at=now if is_due else None)
