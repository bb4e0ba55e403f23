"""`threefold facts …`: single facts, through a client."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import typer

from threefold import MemoryClient
from threefold.contract import FactHistory, ForgetReceipt, Memory, Visibility
from threefold_server.cli import views
from threefold_server.cli.client import FactId, Session, verb
from threefold_server.cli.commands import given
from threefold_server.cli.output import UsageError

app = typer.Typer(no_args_is_help=True, help="Save, show, correct and erase single facts.")

Text = Annotated[str, typer.Argument(metavar="TEXT", help="One statement, at most 10000 characters.")]
Expires = Annotated[
    float | None,
    typer.Option(
        "--expires-in-days", metavar="DAYS", help="Days until the fact expires. Default: the setting fact_expiry_days."
    ),
]
Metadata = Annotated[
    str | None, typer.Option(metavar="JSON", help="JSON object to keep with the fact, at most 16 KiB.")
]


@verb(app, 'threefold facts save "Staging is deployed on Fridays." --pinned', show=views.memory)
def save(
    memory: MemoryClient,
    text: Text,
    session: Session = None,
    visibility: Annotated[
        Visibility | None, typer.Option(help="Widest level at which the fact is recalled. Default: user.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Share the fact with all users of the store; the key must allow it.")
    ] = False,
    pinned: Annotated[bool, typer.Option("--pinned", help="The fact never expires.")] = False,
    expires: Expires = None,
    metadata: Metadata = None,
) -> Memory:
    """Save one fact. It can be recalled at once."""
    options = given(visibility=visibility, expires_in_days=expires, metadata=_object(metadata))
    return memory.save(text, session_id=session, shared=shared, pinned=pinned, **options)


@verb(app, "threefold facts show 0b5e6c...", show=views.memory)
def show(memory: MemoryClient, fact: FactId) -> Memory:
    """Show one fact."""
    return memory.get_fact(fact)


@verb(app, 'threefold facts edit 0b5e6c... --text "Staging is deployed on Mondays."', show=views.memory)
def edit(
    memory: MemoryClient,
    fact: FactId,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="New text. The old one stays in the history.")
    ] = None,
    pinned: Annotated[bool | None, typer.Option("--pinned/--unpinned", help="Whether the fact never expires.")] = None,
    expires: Expires = None,
    metadata: Metadata = None,
) -> Memory:
    """Change one fact. With a new text it gets a new id; the old version stays in the history."""
    changes = given(text=text, pinned=pinned, expires_in_days=expires, metadata=_object(metadata))
    if not changes:
        raise UsageError("nothing to change: give --text, --pinned, --unpinned, --expires-in-days or --metadata")
    return memory.update_fact(fact, **changes)


@verb(app, "threefold facts delete 0b5e6c... --sources", show=views.receipt)
def delete(
    memory: MemoryClient,
    fact: FactId,
    sources: Annotated[bool, typer.Option("--sources", help="Also erase the turns that the fact rests on.")] = False,
    in_session: Annotated[
        str | None, typer.Option(metavar="ID", help="Session of a turn; needed if its id exists in several sessions.")
    ] = None,
) -> ForgetReceipt:
    """Erase one fact or turn permanently."""
    return memory.delete_fact(fact, sources=sources, in_session=in_session)


@verb(app, "threefold facts history 0b5e6c...", show=views.history)
def history(memory: MemoryClient, fact: FactId) -> FactHistory:
    """Show all versions of one fact, oldest first."""
    return memory.fact_history(fact)


@verb(app, "threefold facts restore 0b5e6c...", show=views.memory)
def restore(memory: MemoryClient, fact: FactId) -> Memory:
    """Make an older version of a fact the current one."""
    return memory.restore_fact(fact)


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--metadata is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError("--metadata must be a JSON object")
    return cast("dict[str, Any]", value)
