"""Erasure: one selector in the request, one receipt in the answer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from threefold.contract.common import MAX_IDS_PER_CALL, Flag, Id, Level, Request, Response, Timestamp


class ForgetSource(Request):
    """Everything that came from one tool, one session or one agent."""

    kind: Literal["tool", "session", "agent"]
    name: Id


class ForgetRequest(Request):
    """`POST /v1/forget`: exactly one of `session_id`, `level`, `memory_ids`, `source`."""

    session_id: Id | None = Field(default=None, description="Selector: one session with everything in it.")
    level: Level | None = Field(
        default=None, description="Selector: `agent` is all of this user with this agent, `user` is all of this user."
    )
    memory_ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_IDS_PER_CALL)] | None = None
    in_session: Id | None = Field(
        default=None,
        description="With `memory_ids`: the session of a turn; needed if its id exists in several sessions.",
    )
    sources: Flag = Field(
        default=False, description="With `memory_ids`: also erase the content of the turns that the facts rest on."
    )
    source: ForgetSource | None = None
    since: Timestamp | None = Field(
        default=None, description="With `source`: only what was written at or after this time."
    )
    dry_run: Flag = Field(default=False, description="Count without erasing.")

    @model_validator(mode="after")
    def _one_selector(self) -> Self:
        selectors = {
            "session_id": self.session_id,
            "level": self.level,
            "memory_ids": self.memory_ids,
            "source": self.source,
        }
        given = [name for name, value in selectors.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"name exactly one of {', '.join(selectors)}; given: {', '.join(given) or 'none'}")
        if (self.sources or self.in_session is not None) and self.memory_ids is None:
            raise ValueError("`sources` and `in_session` need `memory_ids`")
        if self.since is not None and self.source is None:
            raise ValueError("`since` needs `source`")
        return self


class ForgetReceipt(Response):
    """Counts of what was erased, without content. A dry run counts and erases nothing."""

    receipt_id: str
    counts: dict[str, int] = Field(description="Rows erased per tier: turns, facts, digests, sessions, ...")
    complete: bool = Field(description="Nothing of the selection is left in the database.")
    not_covered: list[str] = Field(default_factory=list)
    purge: Literal["done", "pending"] = Field(
        description="Whether the bytes are gone from the files as well; `pending` until `threefold purge` has run."
    )
    dry_run: bool
    at: Timestamp
