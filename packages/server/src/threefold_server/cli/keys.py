"""`threefold keys …`: the API keys of services in mode `keys`. The commands open the store itself."""

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

app = typer.Typer(
    no_args_is_help=True, help="Make, list, rotate and revoke API keys. The commands open the store itself."
)

ADMIN = "admin"
"""The agent of an administrator's key that is made without one."""


class KeyView(KeyInfo):
    """A key with its policy. `token` is set only when the key is made or rotated."""

    policy: KeyPolicy
    token: str | None = None


class KeyList(BaseModel):
    """All keys of the store, oldest first."""

    keys: list[KeyView]


User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The key acts for this user.")]
NamedUsers = Annotated[
    bool, typer.Option("--named-users", help="The key acts for any user that the request names; for trusted backends.")
]
Alone = Annotated[bool, typer.Option("--self", help="The key acts for no user: the agent acts for itself.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The key acts as this agent.")]
AgentPrefix = Annotated[
    str | None,
    typer.Option(
        "--agent-prefix",
        metavar="PREFIX",
        help="The key acts as any agent whose name starts with this, for example crew/.",
    ),
]
Highest = Annotated[
    CallerLevel | None,
    typer.Option(
        "--level", help="Highest level that the key may read. Default: agent, or lower if the store's limit is lower."
    ),
]
Days = Annotated[
    float | None,
    typer.Option("--expires-in-days", metavar="DAYS", min=0.001, help="Days until the key expires. Default: never."),
]
Failure = Annotated[
    Literal["soft", "strict"] | None,
    typer.Option("--failure-mode", help="What clients do in an outage. Default: the store's setting."),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--token-budget", min=1, max=1_000_000, help="Most tokens of a recalled block. Default: the store's setting."
    ),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", min=0, max=1_000, help="Memories per recall. Default: the store's setting."),
]
Rate = Annotated[
    int | None,
    typer.Option("--requests-per-minute", min=1, help="Requests per minute. Default: the store's setting."),
]
KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Id of the key as `threefold keys list` prints it.")]


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
    may_share: Annotated[
        bool, typer.Option("--may-share", help="The key may write facts for all users of the store.")
    ] = False,
    admin: Annotated[bool, typer.Option("--admin", help="The key may administer the store.")] = False,
    expires_in_days: Days = None,
    failure_mode: Failure = None,
    token_budget: Budget = None,
    top_k: TopK = None,
    requests_per_minute: Rate = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="Note for people: what the key is for.")] = "",
    json: Json = False,
) -> None:
    """Make a key. Its token is printed only once; the store keeps a hash of it.

    Give exactly one of --user, --named-users and --self, and exactly one of --agent and --agent-prefix. With --admin
    both may be missing.
    """
    if admin:  # without a user, an administrator acts for itself
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
    _show_token(_view(key, now).model_copy(update={"token": token}), json)


@store_verb(app, "threefold keys list --data ./memory", name="list")
def list_keys(settings: Settings, json: Json = False) -> None:
    """List all keys, oldest first."""
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
        float, typer.Option("--grace-days", metavar="DAYS", min=0, help="Days for which the old token still works.")
    ] = 7,
    json: Json = False,
) -> None:
    """Give a key a new token. The old one works for some days, so that clients can be changed one by one."""
    check_exists(settings)
    now = now_micros()

    def work(connection: Connection) -> tuple[str | None, Key | None]:
        token = keys.rotate(connection, key_id, now, now + int(grace_days * DAY))
        return token, keys.get(connection, key_id)

    with open_database(settings) as database:
        token, key = database.write_sync("system", work)
    if token is None or key is None:
        raise NotFound("no such live key; see `threefold keys list`")
    _show_token(_view(key, now).model_copy(update={"token": token}), json)


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
        raise UsageError("give exactly one of --user, --named-users and --self, which say for whom the key acts")
    if user is not None:
        return "fixed", checked_id("user", user)
    return ("named" if named_users else "self"), None


def _agent(agent: str | None, prefix: str | None) -> tuple[AgentGrant, str]:
    if agent is not None and prefix is None:
        return "name", checked_id("agent", agent)
    if prefix is not None and agent is None:
        return "prefix", checked_id("agent_prefix", prefix)
    raise UsageError("give exactly one of --agent and --agent-prefix, which say as which agent the key acts")


def _ceiling(level: CallerLevel | None, highest: Reach) -> Reach:
    ceiling = min(Reach.agent, highest) if level is None else Reach[level]
    if ceiling > highest:
        raise Forbidden(f"level '{ceiling.name}' is above the store's '{highest.name}' (THREEFOLD_MAX_READ_LEVEL)")
    return ceiling


def _show_token(key: KeyView, json: bool) -> None:
    if json:
        show_json(key)
        return
    err.print(_table([key]))
    say("The token, printed only once; clients read it from THREEFOLD_API_KEY:")
    typer.echo(key.token)


def _view(key: Key, now: int) -> KeyView:
    return KeyView(**key_info(key, now).model_dump(), policy=key.policy)


def _table(views: list[KeyView]) -> Table:
    shown = table(
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
    shown.columns[0].no_wrap = True  # so that an id can be copied
    return shown
