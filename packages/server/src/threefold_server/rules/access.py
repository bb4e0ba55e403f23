"""Who may read and change what: every rule of identity and scope. Pure."""

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
    """How far one request reaches; each reach contains the smaller ones."""

    session = 0
    agent = 1
    user = 2
    store = 3


@dataclass(frozen=True)
class KeyPolicy:
    """The settings of one key. None: the setting of the store."""

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
    """What one operation may touch: the memory of `owner` within `reach` of (agent, session)."""

    owner: UUID
    user: str | None
    agent: str
    session: UUID | None
    reach: Reach


@dataclass(frozen=True)
class Holder:
    """The owner of a framework's items or threads, and whether they belong to the agent for all of its users.

    The agent's rows have the agent itself as owner, as its own memory has. `for_all` is part of every key and every
    condition, so that users of the agent cannot read that memory.
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
        """The key of all items of this holder."""
        return holder_pool(self.owner, self.agent, for_all=self.for_all)


SHARED_POOL = UUID(int=0)
"""The pool of the store's shared partition; no owner key is ever zero."""


def derive_key(kind: str, *parts: bytes) -> UUID:
    """Return a 128-bit key for a tuple of byte strings. Lengths are hashed too, so that tuples stay distinct."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return UUID(bytes=digest.digest()[:16])


def owner_key(kind: OwnerKind, name: str) -> UUID:
    """Return the key of an owner. An agent as its own owner and a user of the same name have different keys."""
    return derive_key(f"owner:{kind}", name.encode())


def holder_pool(owner: UUID, agent: str, *, for_all: bool) -> UUID:
    """Return the key of all items of one holder."""
    return derive_key("pool", owner.bytes, agent.encode(), b"all" if for_all else b"own")


def item_key(pool: UUID, path: bytes, key: str) -> UUID:
    """Return the key of an item from its namespace (`path`) and its key in it."""
    return derive_key("item", pool.bytes, path, key.encode())


def session_key(owner: UUID, agent: str, session_id: str) -> UUID:
    """Return the key of a session. Users and agents with the same session id have different keys."""
    return derive_key("session", owner.bytes, agent.encode(), session_id.encode())


def thread_key(holder: Holder, thread_id: str) -> UUID:
    """Return the key of a thread.

    It is the key of the session with this id, so that both are forgotten together. Threads that an agent has for all
    of its users have a key of their own.
    """
    if holder.for_all:
        return derive_key("thread", holder.owner.bytes, thread_id.encode())
    return session_key(holder.owner, holder.agent, thread_id)


def resolve_reach(principal: Principal, level: Level | None) -> Reach:
    """Return the reach of a read: `level`, or by default the lower of `agent` and the ceiling.

    Raises:
        Forbidden: `level` is above the ceiling.
    """
    if level is None:
        return principal.default_reach
    reach = Reach[level]
    check_ceiling(principal, reach)
    return reach


def check_ceiling(principal: Principal, reach: Reach, reason: str = "") -> None:
    """Raise Forbidden if an operation reaches above the caller's ceiling: the same rule for reads and erasures.

    A request that names its session or thread reaches `session`. A request that names a memory by id reaches that
    memory only. A request across sessions, or for data outside of sessions (items, and threads that an agent has for
    all of its users), reaches `agent`. A request across agents reaches `user`.

    Args:
        reason: Start of the message: why the operation reaches so far.
    """
    if reach > principal.ceiling:
        raise Forbidden(
            f"{reason}level '{reach.name}' is above this caller's ceiling '{principal.ceiling.name}', which its "
            "credentials and the store's max_read_level set (mode dev: `threefold serve --allow-user-level`)",
            {"level": reach.name, "ceiling": principal.ceiling.name},
        )


def granted_reach(source: str, level: object, highest: Level) -> Reach:
    """Return the ceiling that a verified claim or header grants: at most `highest`, and `agent` if it is absent.

    Raises:
        Forbidden: The value is not a level.
    """
    if level is None:
        return min(Reach.agent, Reach[highest])
    if not isinstance(level, str) or level not in Reach.__members__:
        raise Forbidden(f"{source}: must be one of {', '.join(Reach.__members__)}")
    return min(Reach[level], Reach[highest])


def read_scope(principal: Principal, level: Level | None, session_id: str | None) -> ScopeFilter:
    """Return the scope of a recall or a list."""
    reach = resolve_reach(principal, level)
    if reach is Reach.session and session_id is None:
        raise InvalidRequest("session_id: required at level 'session'", {"field": "session_id"})
    return _scope(principal, session_id, reach)


def session_scope(principal: Principal, session_id: str) -> ScopeFilter:
    """Return the scope of an operation on one session. Its key contains the caller, so it is the caller's own."""
    return _scope(principal, session_id, Reach.session)


def item_scope(principal: Principal, session_id: str | None = None) -> ScopeFilter:
    """Return the scope of an operation on a memory by id: up to the caller's ceiling, within its own user."""
    return _scope(principal, session_id, min(principal.ceiling, Reach.user))


def erasure_scope(principal: Principal, request: ForgetRequest) -> ScopeFilter:
    """Return the scope of a forget. Raise Forbidden if its selector reaches above the caller's ceiling."""
    if request.session_id is not None:
        return session_scope(principal, request.session_id)
    if request.level is not None:
        return forget_scope(principal, request.level)
    if request.source is not None:
        return _source_scope(principal, request.source)
    if request.sources and request.in_session is None:
        check_ceiling(principal, Reach.agent, "the source turns of a memory may be in any session, and ")
    return item_scope(principal, request.in_session)


def forget_scope(principal: Principal, level: Level) -> ScopeFilter:
    """Return the scope of a forget by level: the caller's own agent or user, up to its ceiling."""
    if level == "session":
        raise InvalidRequest("level: to forget one session, name it in `session_id`", {"field": "level"})
    if level == "store":
        raise Forbidden(
            "level 'store' can be forgotten only by an administrator, through /v1/admin/forget", {"level": level}
        )
    return _scope(principal, None, resolve_reach(principal, level))


def _source_scope(principal: Principal, source: ForgetSource) -> ScopeFilter:
    """Return the scope of a forget by source. A tool or an agent may have written to many sessions."""
    if source.kind == "session":
        return session_scope(principal, source.name)
    other_agent = source.kind == "agent" and source.name != principal.agent
    reach = Reach.user if other_agent else Reach.agent
    check_ceiling(
        principal, reach, f"a forget by source '{source.kind}' spans sessions{' of another agent' * other_agent}, and "
    )
    return item_scope(principal)


def thread_holder(principal: Principal, scope: DataScope, *, names_threads: bool) -> Holder:
    """Return the holder of the threads of a request.

    Args:
        names_threads: The request names threads by id, and does not ask for all that match.
    """
    if not names_threads:
        check_ceiling(principal, Reach.agent, "a request that names no thread spans sessions, and ")
    elif scope == "agent":
        check_ceiling(principal, Reach.agent, "threads of scope 'agent' belong to no session, and ")
    return data_holder(principal, scope)


def items_holder(principal: Principal, scope: DataScope) -> Holder:
    """Return the holder of the items of a request. Items belong to no session."""
    check_ceiling(principal, Reach.agent, "items belong to no session, and ")
    return data_holder(principal, scope)


def data_holder(principal: Principal, scope: DataScope) -> Holder:
    """Return the holder of a scope: the caller's user and agent, or its agent. Does not check the ceiling."""
    if scope == "agent":
        return Holder(replace(principal, user=None), for_all=True)
    return Holder(principal, for_all=False)


def check_may_share(principal: Principal) -> None:
    """Raise Forbidden if the caller may not save shared facts."""
    if not principal.may_share:
        raise Forbidden(
            "this caller may not save shared facts; use a key made with `threefold keys create --may-share`"
        )


def check_may_trust_archives(principal: Principal) -> None:
    """Raise Forbidden if the caller may not keep the trust, pins and shared facts of an archive."""
    if not principal.may_share:
        raise Forbidden(
            "trust_archive: to keep trust, origin and pins of an archive, an administrator must also have the right to "
            "share; make a key with `threefold keys create --admin --may-share`, or import without it"
        )


def check_quota(what: str, held: int, more: int, quota: int | None) -> None:
    """Raise QuotaExceeded if `more` rows would exceed the user's quota."""
    if quota is not None and held + more > quota:
        raise QuotaExceeded(
            f"this user has {held} {what} and the store allows {quota}, so {more} more were not stored; "
            "forget some first",
            {"of": what, "held": held, "quota": quota},
        )


def check_admin(principal: Principal) -> None:
    """Raise Forbidden if the caller is not an administrator."""
    if not principal.admin:
        raise Forbidden(
            "only an administrator may do this; make a key with `threefold keys create --admin`, "
            "or in mode dev run `threefold serve --allow-admin`"
        )


def check_reads_shared(principal: Principal) -> None:
    """Raise Forbidden if the store does not let callers read shared facts."""
    if not principal.reads_shared:
        raise Forbidden("this store does not let callers read shared facts; leave out 'shared'")


def _scope(principal: Principal, session_id: str | None, reach: Reach) -> ScopeFilter:
    owner = principal.owner
    session = None if session_id is None else session_key(owner, principal.agent, session_id)
    return ScopeFilter(owner, principal.user, principal.agent, session, reach)
