"""Find the user of a run in the run itself, never in a namespace, a thread id or a tool argument."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from threefold import Forbidden, InvalidRequest
from threefold.identity import name_of, value_of

Resolver = Callable[[RunnableConfig], str]
"""A function of the operator that returns a name from a run's config; an empty name is an error."""

NO_USER = (
    "no user: name one in the run's config (`configurable.langgraph_user_id`), in its context (`user_id`), "
    "or by `user=`; or use scope='agent' for data that all users of the agent share"
)
OTHER_USER = (
    "the run names another user than THREEFOLD_USER, but this server verifies no user, so its calls outside of runs "
    "would not find the thread: add `auth` to langgraph.json, or pass `user=`, or unset THREEFOLD_USER"
)


def current_config() -> RunnableConfig:
    """Return the config of the current run, or an empty one outside of runs."""
    try:
        return get_config()
    except RuntimeError:
        return {}


def find_user(config: RunnableConfig, explicit: str | Resolver | None, default: str | None) -> str | None:
    """Return the user of a run, or None.

    The first of these counts: the `explicit` name or function of the operator, the user that LangGraph Server has
    verified, the user that the run names, the `default` of the client.

    Raises:
        Forbidden: The run names another user than the verified one; or, on a server that verifies no user, another one
            than `default`, with which the server reads and deletes threads outside of runs.
    """
    chosen = value_of("user", explicit, config)
    if chosen is not None:
        return chosen
    verified = _verified(config)
    named = [name for name in _named(config) if name is not None]
    if verified is not None and any(name != verified for name in named):
        raise Forbidden("the run names another user than the one that LangGraph Server has verified")
    if verified is None and _on_server(config) and default is not None and any(name != default for name in named):
        raise Forbidden(OTHER_USER)
    return next((name for name in (verified, *named) if name is not None), default)


def need_user(config: RunnableConfig, explicit: str | Resolver | None, default: str | None) -> str:
    """Return the user of a run. Raise InvalidRequest if it has none."""
    user = find_user(config, explicit, default)
    if user is None:
        raise InvalidRequest(NO_USER)
    return user


def thread_of(config: RunnableConfig) -> str | None:
    """Return the thread of a run, which is the session of its turns; None if it has none."""
    return name_of("thread_id", config.get("configurable", {}).get("thread_id"))


def _verified(config: RunnableConfig) -> str | None:
    """Return the user that LangGraph Server has verified. Clients cannot set these values.

    An empty identity is the one of a server without `auth`: nobody is verified.
    """
    configurable: Mapping[str, Any] = config.get("configurable", {})
    server = getattr(configurable.get("__pregel_runtime"), "server_info", None)
    for user in (getattr(server, "user", None), configurable.get("langgraph_auth_user"), _requesting_user()):
        identity = name_of("user", _field(user, "identity"))
        if identity:
            return identity
    return name_of("user", configurable.get("langgraph_auth_user_id")) or None


def _requesting_user() -> Any:
    """Return the user of the request that LangGraph Server answers; None outside of the server.

    The server calls a checkpointer or store outside of runs without a config; it keeps the user in a context variable.
    """
    server = sys.modules.get("langgraph_api.utils")
    context = None if server is None else server.get_auth_ctx()
    return getattr(context, "user", None)


def _on_server(config: RunnableConfig) -> bool:
    return "langgraph_auth_user_id" in config.get("configurable", {})


def _named(config: RunnableConfig) -> tuple[str | None, ...]:
    """Return the users that a run names, the most specific first."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    context = getattr(configurable.get("__pregel_runtime"), "context", None)
    plain = name_of("user_id", configurable.get("user_id"))
    return (
        name_of("langgraph_user_id", configurable.get("langgraph_user_id")),
        name_of("user_id", _field(context, "user_id")),
        # A server without `auth` fills in an empty text.
        None if plain == "" and _on_server(config) else plain,
    )


def _field(holder: Any, name: str) -> Any:
    """Return a field of a dataclass, a model or a mapping."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
