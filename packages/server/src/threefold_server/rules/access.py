"""Who sees what: every rule of identity and scope, as pure functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal
from uuid import UUID

from threefold.contract import ForgetRequest, ForgetSource, Level
from threefold.contract.common import DataScope
from threefold.errors import Forbidden, InvalidRequest, QuotaExceeded

OwnerKind = Literal["user", "self"]


class Reach(IntEnum):
    """How far apart a reader and an item may be; each reach contains the smaller ones."""

    session = 0
    agent = 1
    user = 2
    store = 3


@dataclass(frozen=True)
class KeyPolicy:
    """What a key has otherwise than its store; None: as the store has it."""

    failure_mode: Literal["soft", "strict"] | None = None
    token_budget: int | None = None
    top_k: int | None = None
    requests_per_minute: int | None = None


NO_POLICY = KeyPolicy()


@dataclass(frozen=True)
class Principal:
    """The verified caller of one request. `user` is None for an agent that acts on its own."""

    user: str | None
    agent: str
    ceiling: Reach
    may_share: bool = False
    reads_shared: bool = False
    admin: bool = False
    key: str | None = None
    policy: KeyPolicy = NO_POLICY

    @property
    def owner_kind(self) -> OwnerKind:
        return "self" if self.user is None else "user"

    @property
    def owner_name(self) -> str:
        return self.agent if self.user is None else self.user

    @property
    def owner(self) -> UUID:
        return owner_key(self.owner_kind, self.owner_name)

    @property
    def default_reach(self) -> Reach:
        return min(Reach.agent, self.ceiling)


@dataclass(frozen=True)
class ScopeFilter:
    """What one operation may touch: the owner's items within `reach` of (agent, session)."""

    owner: UUID
    user: str | None
    agent: str
    session: UUID | None
    reach: Reach


@dataclass(frozen=True)
class Holder:
    """Who holds items or threads of a framework, and whether they are the agent's, for all of its users.

    The agent's rows belong to its self owner, beside its own memory: `for_all` tells them apart in every key and
    every condition, so that nobody reads that memory through them.
    """

    principal: Principal
    for_all: bool

    @property
    def owner(self) -> UUID:
        return self.principal.owner

    @property
    def agent(self) -> str:
        return self.principal.agent

    @property
    def pool(self) -> UUID:
        """The key of all that this holder holds."""
        return holder_pool(self.owner, self.agent, for_all=self.for_all)


SHARED_POOL = UUID(int=0)
"""The pool of the store's shared partition; no owner key is ever zero."""


def derive_key(kind: str, *parts: bytes) -> UUID:
    """A 128-bit key for a tuple of byte strings. Lengths are hashed too, so no two tuples ever look the same."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return UUID(bytes=digest.digest()[:16])


def owner_key(kind: OwnerKind, name: str) -> UUID:
    """The key of an owner. A self owner never equals a user of the same name."""
    return derive_key(f"owner:{kind}", name.encode())


def holder_pool(owner: UUID, agent: str, *, for_all: bool) -> UUID:
    """The key of all items of one holder: no two holders share one."""
    return derive_key("pool", owner.bytes, agent.encode(), b"all" if for_all else b"own")


def item_key(pool: UUID, path: bytes, key: str) -> UUID:
    """The key of an item by its place."""
    return derive_key("item", pool.bytes, path, key.encode())


def session_key(owner: UUID, agent: str, session_id: str) -> UUID:
    """The key of a session: two users, or two agents, with the same session id never meet."""
    return derive_key("session", owner.bytes, agent.encode(), session_id.encode())


def thread_key(holder: Holder, thread_id: str) -> UUID:
    """The key of a thread: its session's, so that they are forgotten together; the agent's own threads have others."""
    if holder.for_all:
        return derive_key("thread", holder.owner.bytes, thread_id.encode())
    return session_key(holder.owner, holder.agent, thread_id)


def resolve_reach(principal: Principal, level: Level | None) -> Reach:
    """The reach of a read. Unnamed: the lower of `agent` and the ceiling. Named above the ceiling: refused."""
    if level is None:
        return principal.default_reach
    reach = Reach[level]
    check_ceiling(principal, reach)
    return reach


def check_ceiling(principal: Principal, reach: Reach, what: str = "") -> None:
    """Refuse an operation that reaches further than the caller's ceiling: the one rule for reads and erasures.

    What names its session (or thread, which is its session's) reaches `session`; what names a memory by its id reaches
    that memory. What selects or lists across sessions, or touches data that belongs to no session (items, and what an
    agent holds for all of its users), reaches `agent`; what selects across agents reaches `user`.
    """
    if reach > principal.ceiling:
        raise Forbidden(
            f"{what}level '{reach.name}' is above this caller's ceiling '{principal.ceiling.name}', which its "
            "credentials and the store's max_read_level set (mode dev: `threefold serve --allow-user-level`)",
            {"level": reach.name, "ceiling": principal.ceiling.name},
        )


def granted_reach(source: str, level: object, highest: Level) -> Reach:
    """The ceiling that a verified claim or header grants, at most the store's; `agent` where it says nothing."""
    if level is None:
        return min(Reach.agent, Reach[highest])
    if not isinstance(level, str) or level not in Reach.__members__:
        raise Forbidden(f"{source}: must be one of {', '.join(Reach.__members__)}")
    return min(Reach[level], Reach[highest])


def read_scope(principal: Principal, level: Level | None, session_id: str | None) -> ScopeFilter:
    """The scope of a recall or a list."""
    reach = resolve_reach(principal, level)
    if reach is Reach.session and session_id is None:
        raise InvalidRequest("session_id: needed at level 'session'", {"field": "session_id"})
    return _scope(principal, session_id, reach)


def session_scope(principal: Principal, session_id: str) -> ScopeFilter:
    """The scope of everything that names one session: the caller's own, by construction of its key."""
    return _scope(principal, session_id, Reach.session)


def item_scope(principal: Principal, session_id: str | None = None) -> ScopeFilter:
    """The scope of by-id verbs: what the caller could read at its ceiling, never beyond its own user."""
    return _scope(principal, session_id, min(principal.ceiling, Reach.user))


def erasure_scope(principal: Principal, request: ForgetRequest) -> ScopeFilter:
    """The scope of a forget, by its selector; refused where the selector reaches above the caller's ceiling."""
    if request.session_id is not None:
        return session_scope(principal, request.session_id)
    if request.level is not None:
        return forget_scope(principal, request.level)
    if request.source is not None:
        return _source_scope(principal, request.source)
    if request.sources and request.in_session is None:
        check_ceiling(principal, Reach.agent, "the turns that a memory rests on may lie in any session, and ")
    return item_scope(principal, request.in_session)


def forget_scope(principal: Principal, level: Level) -> ScopeFilter:
    """The scope of a forget by level: the caller's own agent or user, up to its ceiling."""
    if level == "session":
        raise InvalidRequest("level: to forget one session, name it by `session_id`", {"field": "level"})
    if level == "store":
        raise Forbidden("level 'store' cannot be forgotten through an agent", {"level": level})
    return _scope(principal, None, resolve_reach(principal, level))


def _source_scope(principal: Principal, source: ForgetSource) -> ScopeFilter:
    """The scope of a forget by source. A tool and an agent contribute to many sessions, another agent to its own."""
    if source.kind == "session":
        return session_scope(principal, source.name)
    other_agent = source.kind == "agent" and source.name != principal.agent
    reach = Reach.user if other_agent else Reach.agent
    check_ceiling(
        principal, reach, f"a forget by source '{source.kind}' spans sessions{' of another agent' * other_agent}, and "
    )
    return item_scope(principal)


def thread_holder(principal: Principal, scope: DataScope, *, names_threads: bool) -> Holder:
    """The holder of the threads that a request asks for. `names_threads`: by their ids, not all that match."""
    if not names_threads:
        check_ceiling(principal, Reach.agent, "a request that names no thread spans sessions, and ")
    elif scope == "agent":
        check_ceiling(principal, Reach.agent, "threads of scope 'agent' belong to no session, and ")
    return data_holder(principal, scope)


def items_holder(principal: Principal, scope: DataScope) -> Holder:
    """The holder of the items that a request asks for. Items belong to no session."""
    check_ceiling(principal, Reach.agent, "items belong to no session, and ")
    return data_holder(principal, scope)


def data_holder(principal: Principal, scope: DataScope) -> Holder:
    """The holder that a scope means: the principal's own user with its agent, or its agent. Checks no ceiling."""
    if scope == "agent":
        return Holder(replace(principal, user=None), for_all=True)
    return Holder(principal, for_all=False)


def check_may_share(principal: Principal) -> None:
    """Refuse a save into the shared partition by a caller without that right."""
    if not principal.may_share:
        raise Forbidden("this caller may not write to the shared partition; it needs a key that `may_share`")


def check_may_trust_archives(principal: Principal) -> None:
    """Refuse to keep trust, pins and shared facts of an archive for a caller that may not share itself."""
    if not principal.may_share:
        raise Forbidden(
            "trust_archive: only an administrator that may share too may keep what an archive says of trust, origin "
            "and pins; make a key with `threefold keys create --admin --may-share`, or import without it"
        )


def check_quota(what: str, held: int, more: int, quota: int | None) -> None:
    """Refuse what would give one user more than the store allows."""
    if quota is not None and held + more > quota:
        raise QuotaExceeded(
            f"this user has {held} {what} of {quota} that the store allows, so {more} more were not stored; "
            "forget some first",
            {"of": what, "held": held, "quota": quota},
        )


def check_admin(principal: Principal) -> None:
    """Refuse whoever does not administer the store."""
    if not principal.admin:
        raise Forbidden(
            "only an administrator may do this; `threefold keys create --admin` makes a key for one, "
            "and mode dev takes anybody for one with `threefold serve --allow-admin`"
        )


def check_reads_shared(principal: Principal) -> None:
    """Refuse a read of the shared partition where the store does not allow it."""
    if not principal.reads_shared:
        raise Forbidden("this store does not allow reading the shared partition")


def _scope(principal: Principal, session_id: str | None, reach: Reach) -> ScopeFilter:
    owner = principal.owner
    session = None if session_id is None else session_key(owner, principal.agent, session_id)
    return ScopeFilter(owner, principal.user, principal.agent, session, reach)
