"""Whose memory a run uses: found in the run itself, never in a namespace, a thread id or a tool argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from threefold import Forbidden, InvalidRequest
from threefold.identity import name_of, value_of

Resolver = Callable[[RunnableConfig], str]
"""The operator's own rule: a name out of a run's config. One that finds none is an error."""

NO_USER = (
    "no user: name one in the run's config (`configurable.langgraph_user_id`), in its context (`user_id`), "
    "or by `user=`; or choose scope='agent' for data that all users of the agent share"
)


def current_config() -> RunnableConfig:
    """The config of the run that this code is part of; an empty one outside of runs."""
    try:
        return get_config()
    except RuntimeError:
        return {}


def find_user(config: RunnableConfig, explicit: str | Resolver | None, default: str | None) -> str | None:
    """The user of a run.

    In this order: what the operator's `explicit` rule says, the user that LangGraph Server has verified, what the run
    names, and the `default` of the client. A run may not name somebody else than the verified user.
    """
    chosen = value_of("user", explicit, config)
    if chosen is not None:
        return chosen
    verified = _verified(config)
    named = [name for name in _named(config) if name is not None]
    if verified is not None and any(name != verified for name in named):
        raise Forbidden("the run names another user than the one that LangGraph Server has verified")
    return next((name for name in (verified, *named) if name is not None), default)


def need_user(config: RunnableConfig, explicit: str | Resolver | None, default: str | None) -> str:
    """The user of a run, or `InvalidRequest` that says how to name one."""
    user = find_user(config, explicit, default)
    if user is None:
        raise InvalidRequest(NO_USER)
    return user


def thread_of(config: RunnableConfig) -> str | None:
    """The thread of a run: the session of its turns."""
    return name_of("thread_id", config.get("configurable", {}).get("thread_id"))


def _verified(config: RunnableConfig) -> str | None:
    """The user that LangGraph Server puts there once it has checked the request: no client can."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    server = getattr(configurable.get("__pregel_runtime"), "server_info", None)
    for user in (getattr(server, "user", None), configurable.get("langgraph_auth_user")):
        identity = name_of("user", _field(user, "identity"))
        if identity is not None:
            return identity
    return name_of("user", configurable.get("langgraph_auth_user_id"))


def _named(config: RunnableConfig) -> tuple[str | None, ...]:
    """What a run says about itself, the most specific first."""
    configurable: Mapping[str, Any] = config.get("configurable", {})
    context = getattr(configurable.get("__pregel_runtime"), "context", None)
    return (
        name_of("langgraph_user_id", configurable.get("langgraph_user_id")),
        name_of("user_id", _field(context, "user_id")),
        name_of("user_id", configurable.get("user_id")),
    )


def _field(holder: Any, name: str) -> Any:
    """A field of a dataclass, a model or a mapping."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
