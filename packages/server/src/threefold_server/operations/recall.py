"""Recall: window, digest and long-term memory for a query, each within a deadline, and the rendered block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import anyio
import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from threefold.contract import DigestView, Dropped, RecalledMemory, RecallRequest, RecallResponse, Tier, Turn
from threefold.errors import Unavailable
from threefold.turn_groups import Cut, group_turns, newest_user_turn
from threefold_server.clock import to_micros
from threefold_server.models.ports import ModelError
from threefold_server.operations.whoami import store_policy
from threefold_server.rules.access import Principal, ScopeFilter, check_reads_shared, read_scope
from threefold_server.rules.assemble import assemble, find_gap, guaranteed_window
from threefold_server.rules.statements import plain
from threefold_server.service import Service
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.engine.types import AnyRow
from threefold_server.storage.memories import search_queries
from threefold_server.storage.memories.recall_search import Search
from threefold_server.storage.sessions import digests, turns
from threefold_server.telemetry import logger, span
from threefold_server.text.redaction import Redact
from threefold_server.text.remembered import hash_of
from threefold_server.text.tokens import head_and_tail

EMBED_SHARE = 0.6
"""Share of `tier_deadline` for embedding the query; the search gets the rest."""

ASSEMBLE_INLINE_TOKENS = 8_192  # about 3 ms of counting; more is done in a thread

FIRST_PAGE = 200
"""Turns of the first page that is read for a window: about twice as many as fit the default budget."""

LOOK_BACK = 2_000
"""Newest turns that are searched for a user turn if the page contains none."""

MIN_TURN_CHARS, CHARS_PER_TOKEN = 20_000, 8
"""Of one turn, at least 20,000 characters are read, or 8 per token of the budget. English has 4.2 characters per token,
so that always fills the budget."""

SPARE = 20
"""Memories that are ranked beyond `top_k`, to replace those that `_choose` drops."""

TurnRef = tuple[str, str | None, int]
"""A turn within one owner: (agent, session id, sequence number)."""


@dataclass
class _Progress:
    """The limits of one recall, and the results and failures of its reads, which run at the same time."""

    budget: int
    top_k: int
    turns: list[Turn] = field(default_factory=list[Turn])
    last_seq: int = 0
    """Sequence number of the newest turn that was read for the window, even if `min_trust` hides it."""
    digest: DigestView | None = None
    found: list[RecalledMemory] = field(default_factory=list[RecalledMemory])
    pending: int = 0
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    degraded: list[str] = field(default_factory=list[str])
    started: int = 0
    failed: int = 0


async def recall(service: Service, principal: Principal, request: RecallRequest) -> RecallResponse:
    """Return window, digest and the best memories for a query, and the block that shows them.

    A tier that fails or is late is named in `degraded`.

    Raises:
        InvalidRequest: The level is `session` and there is no `session_id`.
        Unavailable: No tier answered in time.
        Forbidden: The level is above the caller's ceiling, or the caller may not read shared facts.
    """
    scope = read_scope(principal, request.level, request.session_id)
    if "shared" in request.include:
        check_reads_shared(principal)
    policy = store_policy(service, principal)
    tiers = _Progress(
        budget=policy.token_budget if request.token_budget is None else request.token_budget,
        top_k=policy.top_k if request.top_k is None else request.top_k,
    )
    async with anyio.create_task_group() as group:
        reads_session = scope.session is not None and request.as_of is None
        if reads_session and (names := _included(request, "short_term", "medium_term")):
            group.start_soon(_guard, service, tiers, names, lambda: _session_tiers(service, scope, request, tiers))
        if names := _included(request, "long_term", "shared"):
            group.start_soon(_guard, service, tiers, names, lambda: _long_term(service, scope, request, tiers))
    if tiers.started and tiers.failed == tiers.started:
        raise Unavailable("no tier of memory answered in time; try again", {"retry_after": 1})
    answer = partial(_respond, service, principal, request, tiers)
    sizes = [tiers.budget, *(turn.tokens for turn in tiers.turns), sum(len(found.text) for found in tiers.found) // 8]
    long = max(sizes) > ASSEMBLE_INLINE_TOKENS
    response = await anyio.to_thread.run_sync(answer) if long else answer()
    for memory in response.memories:
        if memory.kind == "fact" and not memory.shared:
            service.reads[principal.owner, UUID(memory.id)] += 1
    return response


def _included(request: RecallRequest, *tiers: Tier) -> list[Tier]:
    return [tier for tier in tiers if tier in request.include]


async def _guard(
    service: Service, tiers: _Progress, names: Sequence[Tier], work: Callable[[], Awaitable[None]]
) -> None:
    """Await `work`, which reads the tiers `names`, for at most `tier_deadline` seconds.

    If it fails or is late, mark them as degraded.
    """
    tiers.started += 1
    reason = "deadline"
    with anyio.move_on_after(service.settings.tier_deadline):
        try:
            await work()
            return
        except Unavailable as error:
            reason = error.message
    tiers.failed += 1
    _degrade(service, tiers, names, reason)


def _degrade(service: Service, tiers: _Progress, names: Sequence[str], reason: str) -> None:
    tiers.degraded += names
    for name in names:
        service.metrics.degraded.labels(name).inc()
    logger.warning("recall degraded: %s", reason, extra={"fields": {"tiers": list(names), "reason": reason}})


async def _session_tiers(service: Service, scope: ScopeFilter, request: RecallRequest, tiers: _Progress) -> None:
    session = scope.session
    assert session is not None

    def read(connection: Connection) -> tuple[int, list[Turn], AnyRow | None]:
        newest: list[Turn] = []
        if "short_term" in request.include:
            newest = _newest_turns(connection, scope, tiers.budget, service.settings.event_cap, service.redact)
        last_seq = newest[-1].seq if newest else 0
        newest = _redacted_window(_trusted(newest, request.min_trust), tiers.budget, service.redact)
        row = digests.latest(connection, scope.owner, session) if "medium_term" in request.include else None
        return last_seq, newest, row

    tiers.last_seq, tiers.turns, row = await service.database.read(scope.owner, read, pipelined=True)
    if row is not None and row.trust < (request.min_trust or 0.0):
        tiers.dropped.append(Dropped(tier="medium_term", id=str(row.version), tokens=row.tokens, reason="trust"))
    elif row is not None:
        tiers.digest = _digest_view(row)


def _newest_turns(connection: Connection, scope: ScopeFilter, budget: int, cap: int, redact: Redact) -> list[Turn]:
    """Return the newest user turn and enough of the newest whole groups to fill the budget, at most `cap` turns.

    If the whole groups of the first page do not fill the budget, a second page is read, of at most `cap` turns. A group
    longer than `cap` is left out.
    """
    session = scope.session
    assert session is not None
    page = min(FIRST_PAGE, cap)
    reading = turns.Reading(max(MIN_TURN_CHARS, budget * CHARS_PER_TOKEN), redact)
    found = turns.newest(connection, scope.owner, session, page + 1, reading)
    whole = _whole_groups(found, page)
    if len(found) > page and page < cap and sum(turn.tokens for turn in whole) < budget:
        page = _reach_of_budget(_whole_groups(turns.outlines(connection, scope.owner, session, cap + 1), cap), budget)
        found = turns.newest(connection, scope.owner, session, page + 1, reading)
        whole = _whole_groups(found, page)
    # Nothing was left out, the newest user turn is there, or there is no room for it.
    if len(whole) == len(found) or newest_user_turn(whole) or len(whole) >= cap:
        return whole
    asked = newest_user_turn(found) or turns.newest_of_user(connection, scope.owner, session, LOOK_BACK, reading)
    return whole if asked is None else [asked, *whole]


def _reach_of_budget(newest: Sequence[Turn], budget: int) -> int:
    """Return how many of the newest turns may fit the budget, in whole groups: without it, a read would be as large as
    all turns together. The newest group counts in any case, as its head and tail are shown."""
    count = used = 0
    for group in reversed(group_turns(newest)):
        tokens = sum(turn.tokens for turn in group)
        if used > budget or (count and tokens > budget):
            break
        count, used = count + len(group), used + tokens
    return count


def _whole_groups(found: list[Turn], page: int) -> list[Turn]:
    """Return the turns of a page without its oldest group if the page is full: the group may begin before it."""
    return found if len(found) <= page else [turn for group in group_turns(found)[1:] for turn in group]


def _trusted(newest: Sequence[Turn], min_trust: float | None) -> Sequence[Turn]:
    """Return the groups whose least trusted turn has at least `min_trust`, so that no call loses its results."""
    if not min_trust:
        return newest
    groups = (group for group in group_turns(newest) if min(turn.trust or 0.0 for turn in group) >= min_trust)
    return [turn for group in groups for turn in group]


def _redacted_window(newest: Sequence[Turn], budget: int, redact: Redact) -> list[Turn]:
    """Return the newest whole groups that may fit the window, and the newest user turn, without secrets.

    Secrets are removed from this copy only; `/v1/sessions/{id}/turns` returns the turns unchanged.
    """
    readable: list[Turn] = []
    used = 0
    for group in reversed(group_turns(newest)):
        readable[:0] = group
        used += sum(turn.tokens for turn in group)
        if used > budget:
            break
    asked = newest_user_turn(newest)
    if asked is not None and all(turn is not asked for turn in readable):
        readable.insert(0, asked)
    return [_without_secrets(turn, redact) for turn in readable]


def _without_secrets(turn: Turn, redact: Redact) -> Turn:
    content, name = redact(turn.content), turn.name and redact(turn.name)
    if content == turn.content and name == turn.name:
        return turn
    return turn.model_copy(update={"content": content, "name": name})


async def _long_term(service: Service, scope: ScopeFilter, request: RecallRequest, tiers: _Progress) -> None:
    settings = service.settings
    query = service.redact(request.query)  # the embedder may be a service on another host
    vector = await _query_vector(service, scope, query, tiers)
    query_search = Search(
        query=query,
        vector=vector,
        embedder=service.embedder.name,
        scope=scope,
        own="long_term" in request.include,
        shared="shared" in request.include,
        min_score=settings.min_score if request.min_score is None else request.min_score,
        min_score_of=request.min_score_of,
        conditions=search_queries.Conditions(service.clock(), request.min_trust, _until(request)),
        limit=tiers.top_k + len(request.exclude_ids) + SPARE,
        redact=service.redact,
        index=service.index,
    )
    with span("search"):
        tiers.found, tiers.pending = await service.database.read(scope.owner, query_search.run, pipelined=True)
    if scope.owner in service.index.waiting:
        service.index.waiting.discard(scope.owner)
        service.start(_load_index(service, scope.owner))


async def _load_index(service: Service, owner: UUID) -> None:
    """Load the search index of an owner for later recalls. Until then they search in the database."""
    load = partial(service.index.load, owner=owner, embedder=service.embedder.name)
    with suppress(Unavailable):
        await service.database.read(owner, load, pipelined=True, background=True)


async def _query_vector(
    service: Service, scope: ScopeFilter, query: str, tiers: _Progress
) -> NDArray[np.float32] | None:
    """Return the query's vector. If the embedder fails or is late, mark it as degraded and return None."""
    if not query.strip():
        return None
    key = hash_of(scope.owner.hex, service.embedder.name, query)
    if (known := service.query_vectors.get(key)) is not None:
        return known
    reason = "deadline"
    with anyio.move_on_after(service.settings.tier_deadline * EMBED_SHARE):
        try:
            with span("embed", model=service.embedder.name):
                vector = (await service.embedder.embed([query]))[0]
            service.query_vectors.put(key, vector)
            return vector
        except ModelError as error:
            reason = type(error).__name__
    _degrade(service, tiers, ["embedder"], reason)
    return None


def _respond(service: Service, principal: Principal, request: RecallRequest, tiers: _Progress) -> RecallResponse:
    cut = _cutter(tiers.turns)
    window = guaranteed_window(tiers.turns, tiers.budget, service.count_tokens, cut)
    shown = {(principal.agent, request.session_id, turn.seq) for turn in window}
    found = _choose(tiers.found, set(request.exclude_ids), shown, tiers.top_k)
    assembled = assemble(tiers.digest, found, tiers.turns, tiers.budget, service.count_tokens, cut)
    return RecallResponse(
        window=assembled.window,
        digest=tiers.digest,
        gap=find_gap(tiers.digest, assembled.window, tiers.last_seq),
        memories=found,
        block=assembled.block,
        tokens=assembled.tokens,
        dropped=tiers.dropped + assembled.dropped,
        pending_turns=tiers.pending,
        degraded=tiers.degraded,
    )


def _cutter(newest: Sequence[Turn]) -> Cut:
    """Return a function that shortens a text to a number of tokens.

    Its mark names the full length of a turn, even if only an excerpt of the turn was read.
    """
    full = {turn.content: turn.tokens for turn in newest if turn.cut}
    return (lambda text, budget: head_and_tail(text, budget, full.get(text))) if full else head_and_tail


def _choose(
    found: Iterable[RecalledMemory], excluded: set[str], shown: set[TurnRef], limit: int
) -> list[RecalledMemory]:
    """Return at most `limit` distinct memories, facts first.

    Excluded ids, turns in the window and turns that a chosen fact cites are left out.
    """
    candidates = [memory for memory in found if memory.id not in excluded and not _is_shown(memory, shown)]
    chosen: dict[str, RecalledMemory] = {}
    for memory in candidates:  # of memories with the same words the most trusted is kept, a fact before a turn
        words = plain(memory.text)
        chosen[words] = max(chosen.get(words, memory), memory, key=lambda each: (each.trust, each.kind == "fact"))
    best = list(chosen.values())
    cited = {turn for memory in best[:limit] if memory.kind == "fact" for turn in _source_turns(memory)}
    uncited = [memory for memory in best if memory.kind == "fact" or cited.isdisjoint(_source_turns(memory))]
    return sorted(uncited[:limit], key=lambda memory: memory.kind != "fact")


def _is_shown(memory: RecalledMemory, shown: set[TurnRef]) -> bool:
    return memory.kind == "turn" and not shown.isdisjoint(_source_turns(memory))


def _source_turns(memory: RecalledMemory) -> list[TurnRef]:
    """Return the turns of a memory: its sources, or itself if it is a turn."""
    return [
        (memory.agent, source.session_id, seq)
        for source in memory.sources
        for seq in range(source.from_seq, source.upto_seq + 1)
    ]


def _digest_view(row: object) -> DigestView:
    return DigestView.model_validate(row, from_attributes=True)


def _until(request: RecallRequest) -> int | None:
    return None if request.as_of is None else to_micros(request.as_of)
