"""`threefold keys …`: who may call a service in mode `keys`. Works on the store itself."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from pydantic import BaseModel
from rich.table import Table

from threefold.checks import checked_id
from threefold.contract import CallerLevel
from threefold.contract.admin import KeyInfo
from threefold.contract.common import clean_text
from threefold.errors import Forbidden, NotFound
from threefold_server.cli.commands import Json
from threefold_server.cli.output import UsageError, err, out, say, show_json, table
from threefold_server.cli.store import check_exists, open_database, store_verb
from threefold_server.cli.views import when
from threefold_server.clock import DAY, now_micros
from threefold_server.operations.admin import key_info
from threefold_server.rules.access import KeyPolicy, Reach
from threefold_server.settings import Settings
from threefold_server.storage.engine.database import Connection
from threefold_server.storage.store import keys
from threefold_server.storage.store.keys import AgentGrant, Key, UserGrant

app = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys. Works on the store itself.")

ADMIN = "admin"
"""The agent of an administrator's key that names none."""


class KeyView(KeyInfo):
    """A key with its policy; its token only when it is made."""

    policy: KeyPolicy
    token: str | None = None


class KeyList(BaseModel):
    """Every key of the store, oldest first."""

    keys: list[KeyView]


User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Speaks for this user.")]
NamedUsers = Annotated[bool, typer.Option("--named-users", help="For any user it names: a trusted backend.")]
Alone = Annotated[bool, typer.Option("--self", help="For no user: an agent that acts on its own.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Speaks as this agent.")]
AgentPrefix = Annotated[
    str | None, typer.Option("--agent-prefix", metavar="PREFIX", help="As any agent under it: crew/.")
]
Highest = Annotated[
    CallerLevel | None, typer.Option("--level", help="How far it may read; agent if the store allows it.")
]
Days = Annotated[float | None, typer.Option("--expires-in-days", metavar="DAYS", min=0.001, help="Dies after this.")]
Failure = Annotated[Literal["soft", "strict"] | None, typer.Option("--failure-mode", help="In place of the store's.")]
Budget = Annotated[int | None, typer.Option("--token-budget", min=1, max=1_000_000, help="In place of the store's.")]
TopK = Annotated[int | None, typer.Option("--top-k", min=0, max=1_000, help="In place of the store's.")]
Rate = Annotated[int | None, typer.Option("--requests-per-minute", min=1, help="In place of the store's.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="As `threefold keys list` shows it.")]


@store_verb(
    app,
    "threefold keys create --user u-1 --agent support",
    "threefold keys create --named-users --agent-prefix crew/ --label backend --expires-in-days 90",
    "threefold keys create --admin --label operator --expires-in-days 30",
)
def create(
    settings: Settings,
    user: User = None,
    named_users: NamedUsers = False,
    alone: Alone = False,
    agent: Agent = None,
    agent_prefix: AgentPrefix = None,
    level: Highest = None,
    may_share: Annotated[bool, typer.Option("--may-share", help="May write for every user of the store.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="May administer the store.")] = False,
    expires_in_days: Days = None,
    failure_mode: Failure = None,
    token_budget: Budget = None,
    top_k: TopK = None,
    requests_per_minute: Rate = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    json: Json = False,
) -> None:
    """Make a key. Its token is shown this once; the store keeps a hash of it."""
    if admin:  # an administrator acts on its own, unless the key says otherwise
        alone = alone or (user is None and not named_users)
        agent = ADMIN if agent is None and agent_prefix is None else agent
    now = now_micros()
    key = Key(
        keys.new_key_id(),
        str(clean_text(label)),
        *_user(user, named_users, alone),
        *_agent(agent, agent_prefix),
        ceiling=_ceiling(level, Reach[settings.max_read_level]),
        may_share=may_share,
        admin=admin,
        policy=KeyPolicy(failure_mode, token_budget, top_k, requests_per_minute),
        created_at=now,
        expires_at=None if expires_in_days is None else now + int(expires_in_days * DAY),
    )
    with open_database(settings) as database:
        token = database.write_sync("system", lambda c: keys.create(c, key))
    _show_made(_view(key, now).model_copy(update={"token": token}), json)


@store_verb(app, "threefold keys list --data ./memory", name="list")
def list_keys(settings: Settings, json: Json = False) -> None:
    """List the keys. The oldest comes first."""
    check_exists(settings)
    with open_database(settings) as database:
        found = database.read_sync("system", keys.list_keys)
    now = now_micros()
    answer = KeyList(keys=[_view(key, now) for key in found])
    show_json(answer) if json else out.print(_table(answer.keys))


@store_verb(app, "threefold keys rotate 5f0c9e1d2b3a --grace-days 7")
def rotate(
    settings: Settings,
    key_id: KeyId,
    grace_days: Annotated[
        float, typer.Option("--grace-days", metavar="DAYS", min=0, help="So long the old token works, too.")
    ] = 7,
    json: Json = False,
) -> None:
    """Give a key a new token. The old one works until the grace is over, so that holders can change over."""
    check_exists(settings)
    now = now_micros()

    def work(connection: Connection) -> tuple[str | None, Key | None]:
        token = keys.rotate(connection, key_id, now, now + int(grace_days * DAY))
        return token, keys.get(connection, key_id)

    with open_database(settings) as database:
        token, key = database.write_sync("system", work)
    if token is None or key is None:
        raise NotFound("no such live key; see `threefold keys list`")
    _show_made(_view(key, now).model_copy(update={"token": token}), json)


@store_verb(app, "threefold keys revoke 5f0c9e1d2b3a")
def revoke(settings: Settings, key_id: KeyId) -> None:
    """Revoke a key. Services refuse it within five seconds."""
    check_exists(settings)
    with open_database(settings) as database:
        if not database.write_sync("system", lambda c: keys.revoke(c, key_id, now_micros())):
            raise NotFound("no such live key; see `threefold keys list`")
    say(f"Revoked {key_id}.")


def _user(user: str | None, named_users: bool, alone: bool) -> tuple[UserGrant, str | None]:
    if (user is not None) + named_users + alone != 1:
        raise UsageError("name whom the key speaks for: exactly one of --user, --named-users, --self")
    if user is not None:
        return "fixed", checked_id("user", user)
    return ("named" if named_users else "self"), None


def _agent(agent: str | None, prefix: str | None) -> tuple[AgentGrant, str]:
    if agent is not None and prefix is None:
        return "name", checked_id("agent", agent)
    if prefix is not None and agent is None:
        return "prefix", checked_id("agent_prefix", prefix)
    raise UsageError("name what the key speaks as: exactly one of --agent, --agent-prefix")


def _ceiling(level: CallerLevel | None, highest: Reach) -> Reach:
    wanted = min(Reach.agent, highest) if level is None else Reach[level]
    if wanted > highest:
        raise Forbidden(f"level '{wanted.name}' is above the store's '{highest.name}' (THREEFOLD_MAX_READ_LEVEL)")
    return wanted


def _show_made(made: KeyView, json: bool) -> None:
    if json:
        show_json(made)
        return
    err.print(_table([made]))
    say("The token, shown this once; clients find it in THREEFOLD_API_KEY:")
    typer.echo(made.token)


def _view(key: Key, now: int) -> KeyView:
    return KeyView(**key_info(key, now).model_dump(), policy=key.policy)


def _table(views: list[KeyView]) -> Table:
    made = table(
        *("key", "user", "agent", "level", "may", "expires", "used", "state", "label"),
        rows=[
            (
                view.key_id,
                view.user or f"({view.user_grant})",
                view.agent + ("…" if view.agent_grant == "prefix" else ""),
                view.level,
                ", ".join(word for word, may in (("share", view.may_share), ("admin", view.admin)) if may),
                when(view.expires_at) or "never",
                when(view.last_used_at) or "never",
                "live" if view.alive else "revoked" if view.revoked_at else "expired",
                view.label,
            )
            for view in views
        ],
    )
    made.columns[0].no_wrap = True  # an id is for copying
    return made
