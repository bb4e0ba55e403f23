"""Administration of a store: the memory of all owners, keys and the audit. All routes require an administrator."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from threefold.contract.common import MAX_PAGE, Cursor, Flag, Id, PageLimit, Request, Response, Timestamp


class OwnerName(Request):
    """Names an owner: a user, or an agent that acts for itself."""

    user: Id | None = None
    self_agent: Id | None = Field(default=None, description="An agent that acts for itself.")

    @property
    def given(self) -> list[str]:
        """The names of the fields that are set."""
        return [name for name in ("user", "self_agent") if getattr(self, name) is not None]


class OneOwner(OwnerName):
    """Exactly one of `user` and `self_agent`."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.given) != 1:
            raise ValueError("name exactly one of user, self_agent")
        return self


class Owner(Response):
    """An owner and how much the store keeps of it, history included."""

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
    """One page of owners, oldest first."""

    owners: list[Owner]
    next_cursor: str | None = None


class StoreUsage(Response):
    """Counts of everything in the store."""

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
    """`POST /v1/admin/list`: the memories of all owners or of one, at every visibility."""

    kinds: list[Literal["fact", "turn"]] = Field(default=["fact", "turn"])
    cursor: Cursor | None = None
    limit: PageLimit = 50

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if len(self.given) > 1:
            raise ValueError("name user or self_agent, not both")
        return self


class WideSource(Request):
    """Everything that came from one tool or agent, of all owners."""

    kind: Literal["tool", "agent"]
    name: Id


class AdminForgetRequest(OwnerName):
    """`POST /v1/admin/forget`: exactly one of `user`, `self_agent`, `source`, `everything`."""

    source: WideSource | None = None
    since: Timestamp | None = Field(
        default=None, description="With `source`: only what was written at or after this time."
    )
    everything: Flag = Field(default=False, description="The memory of all owners of the store.")
    dry_run: Flag = False

    @model_validator(mode="after")
    def _one_selector(self) -> Self:
        given = [*self.given, *(["source"] if self.source else []), *(["everything"] if self.everything else [])]
        if len(given) != 1:
            raise ValueError(
                f"name exactly one of user, self_agent, source, everything; given: {', '.join(given) or 'none'}"
            )
        if self.since is not None and self.source is None:
            raise ValueError("`since` needs `source`")
        return self


class RenameRequest(Request):
    """`POST /v1/admin/rename`: give the memory of a user to another name, which must have no memory yet."""

    user: Id
    to: Id


class RenameReceipt(Response):
    """Counts of the rows that have a new owner."""

    counts: dict[str, int] = Field(description="Rows moved, by table.")


class ArchiveRow(Request):
    """One row of an archive: the columns of its table, without the owner."""

    table: str
    row: dict[str, Any]


class ArchiveHead(OneOwner):
    """The first line of an archive: its owner and its form."""

    threefold_archive: Literal[1] = 1
    exported_at: Timestamp


class ArchiveEnd(Request):
    """The last line of an archive. If it is missing or its hash differs, lines are missing or were changed."""

    rows: int
    sha256: str = Field(description="Hash of all lines before this one.")


class ImportRequest(OneOwner):
    """`POST /v1/admin/import`: rows of an archive, in its order. Repeating a request adds nothing."""

    rows: Annotated[list[ArchiveRow], Field(max_length=MAX_PAGE)]
    trust_archive: Flag = Field(
        default=False,
        description="Keep origin, trust and pins as exported, for an archive that you made; needs the right to share. "
        "By default everything gets the origin `import` and a trust of at most 0.8, and nothing is pinned.",
    )


class ImportReceipt(Response):
    """Counts of the rows of one request."""

    added: int
    present: int = Field(description="Rows that existed before.")


class KeyInfo(Response):
    """What a key grants and its state, without its token."""

    key_id: str
    label: str
    user_grant: Literal["fixed", "named", "self"]
    user: str | None
    agent_grant: Literal["name", "prefix"]
    agent: str = Field(description="The name of the agent, or the prefix of its name.")
    level: str
    may_share: bool
    admin: bool
    created_at: Timestamp
    expires_at: Timestamp | None
    revoked_at: Timestamp | None
    last_used_at: Timestamp | None
    old_token_until: Timestamp | None = Field(description="Until when the token before the last rotation is valid.")
    alive: bool


class KeyList(Response):
    """Every key of the store, oldest first."""

    keys: list[KeyInfo]


class AuditEntry(Response):
    """One action on the memory of an owner. People are pseudonyms; a name is given while the store knows it."""

    at: Timestamp
    action: str
    target: str = Field(description="The kind of selector, a level, a route or a key; never the id of a memory.")
    counts: dict[str, int]
    outcome: str
    owner: str | None = Field(description="The owner of the memory; null if the action concerns the store.")
    owner_name: str | None = None
    actor: str | None = Field(description="Who acted; null for the command line or a caller that was not accepted.")
    actor_name: str | None = None
    agent: str | None = Field(description="A hash of the caller's agent.")
    admin: bool
    seq: int | None = Field(default=None, description="Position in the chain; null until a worker has set it.")


class AuditPage(Response):
    """One page of the audit, newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None = None


class AuditCheck(Response):
    """Result of checking the chain of the audit."""

    ok: bool
    problem: str | None = None
    entries: int = Field(description="Entries in the chain.")
    waiting: int = Field(description="Entries that are not in the chain yet.")
    head: str = Field(description="Hash at the end of the chain. Store it elsewhere and compare later.")
