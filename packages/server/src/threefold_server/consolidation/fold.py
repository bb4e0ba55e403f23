"""Old turns into the next version of the digest. A fold that is due goes down to the target; who makes it due decides
when: a write that passes the trigger, or a forget that took a digest away."""

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
"""What one call of a summarizer reads at most, beside its instructions and the digest so far, which with the answer
take 3,500: within a context window of 8k."""


SLICE_TOKENS = 40_000
"""Tokens of turns that are read from the database at once."""


@dataclass(frozen=True)
class Step:
    """The turns of one new version, without content, and what the session looked like. Without turns there is nothing
    left to fold."""

    last_seq: int
    prior: AnyRow | None
    turns: list[Turn]


async def fold_session(service: Service, claim: Claim) -> None:
    """Fold the oldest turns until at most the target is left, one version at a time."""
    settings = service.settings
    target = settings.target if settings.rolling_summary else sys.maxsize  # a forget asks for a fold without knowing
    read = partial(_next_step, claim=claim, target=target)
    while (step := await service.database.read(claim.owner, read, background=True)).turns:
        text = await _digest(service, claim, step)
        author = {"model": service.summarizer.name, "prompt": service.summarizer.prompt}
        values = {"text": text, **author, "created_at": service.clock()}
        store = partial(_store, claim=claim, step=step, values=values)
        await service.database.write(claim.owner, store, background=True)
    finish = partial(_finish, claim=claim, seen=step.last_seq, trigger=service.settings.trigger, now=service.clock())
    await service.database.write(claim.owner, finish, background=True)


def oldest_groups(outline: Sequence[Turn], undigested: int, target: int) -> list[Turn]:
    """The oldest whole groups whose folding brings the undigested tokens down to the target, as far as one version
    takes. The newest group always stays."""
    chosen: list[Turn] = []
    folded = 0
    for group in group_turns(outline)[:-1]:
        if undigested - folded <= target or folded >= CALL_TOKENS:
            break
        chosen += group
        folded += sum(turn.tokens for turn in group)
    return chosen


def slices(outline: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Turns in lists whose contents are read together: of `SLICE_TOKENS` at most, but of one turn at least."""
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


def digest_turns(step_turns: Iterable[Turn], redact: Redact) -> Iterator[DigestTurn]:
    """Turns as a summarizer reads them; a turn too large for one call comes in pieces.

    System prompts are left out: the agent restates them in every session.
    """
    for turn in step_turns:
        if turn.role != "system":
            for piece in pack(own_words(turn.content, redact).strip(), CALL_TOKENS, count_tokens):
                yield DigestTurn(turn.seq, _speaker(turn, redact), role_of(turn), piece)


def _speaker(turn: Turn, redact: Redact) -> str:
    """Return the name of who spoke; words that were only reported do not stand under the name alone."""
    name = redact(turn.name or turn.role)
    return f"{name}, as noted" if turn.noted_by and turn.role == "user" else name


def portions(read: Iterable[DigestTurn]) -> Iterator[list[DigestTurn]]:
    """Turns in lists that one call can read."""
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


def _next_step(connection: Connection, claim: Claim, target: int) -> Step:
    backlog = folding.backlog(connection, claim.owner, claim.subject)
    chosen = oldest_groups(backlog.outline, backlog.undigested, target)
    return Step(backlog.last_seq, backlog.digest, chosen)


async def _digest(service: Service, claim: Claim, step: Step) -> str:
    """The next digest. A group of turns has no bound, so their contents are read in slices."""
    text: str | None = None if step.prior is None else step.prior.text
    for part in slices(step.turns):
        first, count = part[0].seq, part[-1].seq - part[0].seq + 1
        page = partial(turns.page, owner=claim.owner, session=claim.subject, from_seq=first, limit=count, payload=False)
        said = await service.database.read(claim.owner, page, background=True)
        for portion in await anyio.to_thread.run_sync(_portions, said, service.redact):
            text = service.redact(await service.summarizer.fold(text, portion))
    return text or ""


def _portions(said: Sequence[Turn], redact: Redact) -> list[list[DigestTurn]]:
    return list(portions(digest_turns(said, redact)))


def _store(connection: Connection, claim: Claim, step: Step, values: dict[str, Any]) -> None:
    session = tasks.hold(connection, claim)
    latest = digests.latest(connection, claim.owner, claim.subject)
    prior = step.prior
    if session is None or (latest and latest.version) != (prior and prior.version):
        raise LeaseLost("the digest moved on")
    folding.add_version(
        connection,
        session,
        {
            **values,
            "from_seq": prior.from_seq if prior else step.turns[0].seq,
            "upto_seq": step.turns[-1].seq,
            "trust": _trust(step),
            "covered_tokens": (prior.covered_tokens if prior else 0) + sum(turn.tokens for turn in step.turns),
            "parent": prior.version if prior else None,
            "tokens": count_tokens(values["text"]),
        },
    )
    tasks.advance(connection, claim, claim.upto)


def _trust(step: Step) -> float:
    """Return the trust of a digest: that of its least trusted turn, of the version before too."""
    read = [turn.trust or 0.0 for turn in step.turns if turn.role != "system" and not turn.erased]
    return min([*read, step.prior.trust if step.prior else 1.0])


def _finish(connection: Connection, claim: Claim, seen: int, trigger: int, now: int) -> None:
    """Done, unless turns that came meanwhile pass the trigger again."""
    session = tasks.hold(connection, claim)
    more = session is not None and session.last_seq > seen and session.tokens - session.digested_tokens > trigger
    tasks.finish(connection, claim, due_at=now if more else None)
