"""Administering a store: everybody's memory, whole users, keys, and the audit. For administrators only."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from threefold.contract.common import MAX_PAGE, Cursor, Flag, Id, PageLimit, Request, Response, Timestamp


class OwnerName(Request):
    """Whose memory: a user's, or that of an agent that acts on its own."""

    user: Id | None = None
    self_agent: Id | None = Field(default=None, description="An agent that acts on its own.")

    @property
    def given(self) -> list[str]:
        """The fields that name somebody."""
        return [name for name in ("user", "self_agent") if getattr(self, name) is not None]


class OneOwner(OwnerName):
    """Exactly one of `user` and `self_agent`."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.given) != 1:
            raise ValueError("name exactly one of user, self_agent")
        return self


class Owner(Response):
    """Somebody who has a memory here, and how much. The counts are of what is kept, history included."""

    kind: Literal["user", "self"]
    name: str
    sessions: int
    turns: int
    tokens: int
    facts: int
    items: int = 0
    threads: int = 0
    created_at: Timestamp


class OwnerPage(Response):
    """One page of owners, the oldest first."""

    owners: list[Owner]
    next_cursor: str | None = None


class StoreUsage(Response):
    """What the whole store holds."""

    owners: int
    sessions: int
    turns: int
    tokens: int
    facts: int
    items: int = 0
    threads: int = 0
    passages: int = Field(description="Entries of the search index.")
    tasks: dict[str, int] = Field(description="Open background work by state.")


class AdminListRequest(OwnerName):
    """`POST /v1/admin/list`: everything of everybody, or of one owner, whatever its visibility."""

    kinds: list[Literal["fact", "turn"]] = Field(default=["fact", "turn"])
    cursor: Cursor | None = None
    limit: PageLimit = 50

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if len(self.given) > 1:
            raise ValueError("name user or self_agent, not both")
        return self


class WideSource(Request):
    """Everything that came from one tool or agent, whoever used it."""

    kind: Literal["tool", "agent"]
    name: Id


class AdminForgetRequest(OwnerName):
    """`POST /v1/admin/forget`: exactly one of `user`, `self_agent`, `source`, `everything`."""

    source: WideSource | None = None
    since: Timestamp | None = Field(default=None, description="With `source`: only what came at or after this time.")
    everything: Flag = Field(default=False, description="The memory of everybody in the store.")
    dry_run: Flag = False

    @model_validator(mode="after")
    def _one_selector(self) -> Self:
        given = [*self.given, *(["source"] if self.source else []), *(["everything"] if self.everything else [])]
        if len(given) != 1:
            raise ValueError(
                f"name exactly one of user, self_agent, source, everything; given: {', '.join(given) or 'none'}"
            )
        if self.since is not None and self.source is None:
            raise ValueError("`since` goes with `source`")
        return self


class RenameRequest(Request):
    """`POST /v1/admin/rename`: give the memory of one user to a name that has none yet."""

    user: Id
    to: Id


class RenameReceipt(Response):
    """What has a new owner now."""

    counts: dict[str, int] = Field(description="Rows moved, by table.")


class ArchiveRow(Request):
    """One row of an archive: the columns of its table, without the owner."""

    table: str
    row: dict[str, Any]


class ArchiveHead(OneOwner):
    """The first line of an archive: whose memory it is, and its form."""

    threefold_archive: Literal[1] = 1
    exported_at: Timestamp


class ArchiveEnd(Request):
    """The last line of an archive. Without it, or with another hash, lines are missing or were changed."""

    rows: int
    sha256: str = Field(description="Of all lines before this one.")


class ImportRequest(OneOwner):
    """`POST /v1/admin/import`: rows of an archive, in its order. Repeating a request adds nothing."""

    rows: Annotated[list[ArchiveRow], Field(max_length=MAX_PAGE)]
    trust_archive: Flag = Field(
        default=False,
        description="Keep origin, trust and pins as exported, for an archive of one's own; needs the right to share. "
        "Otherwise everything has origin `import` and trust up to 0.8, and nothing is pinned.",
    )


class ImportReceipt(Response):
    """What became of the rows of one request."""

    added: int
    present: int = Field(description="Rows that were there already.")


class KeyInfo(Response):
    """What a key grants, and what became of it; never its token."""

    key_id: str
    label: str
    user_grant: Literal["fixed", "named", "self"]
    user: str | None
    agent_grant: Literal["name", "prefix"]
    agent: str = Field(description="Its name, or what it begins with.")
    level: str
    may_share: bool
    admin: bool
    created_at: Timestamp
    expires_at: Timestamp | None
    revoked_at: Timestamp | None
    last_used_at: Timestamp | None
    old_token_until: Timestamp | None = Field(description="The one before the last rotation counts until then.")
    alive: bool


class KeyList(Response):
    """Every key of the store, the oldest first."""

    keys: list[KeyInfo]


class AuditEntry(Response):
    """Who did what to whose memory. People are pseudonyms; the name is there as long as the store knows one."""

    at: Timestamp
    action: str
    target: str = Field(description="The kind of selector, a level, a route, or which key; never an id of a memory.")
    counts: dict[str, int]
    outcome: str
    owner: str | None = Field(description="Whose memory; null: the store's own affairs.")
    owner_name: str | None = None
    actor: str | None = Field(description="Who; null: the command line, or a caller who was not accepted.")
    actor_name: str | None = None
    agent: str | None = Field(description="A hash of the caller's agent.")
    admin: bool
    seq: int | None = Field(default=None, description="The place in the chain; null until a worker has given it one.")


class AuditPage(Response):
    """One page of the audit, the newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None = None


class AuditCheck(Response):
    """Whether the chain of the audit is whole."""

    ok: bool
    problem: str | None = None
    entries: int = Field(description="Entries in the chain.")
    waiting: int = Field(description="Entries that no worker has chained yet.")
    head: str = Field(description="The end of the chain: keep it elsewhere, and verify against it later.")
