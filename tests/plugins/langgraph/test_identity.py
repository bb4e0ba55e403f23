"""How the user of a run is found."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime, ServerInfo

from threefold import AsyncMemoryClient, Forbidden, InvalidRequest, MemoryClient
from threefold_langgraph import ThreefoldConnection
from threefold_langgraph.identity import current_config, find_user, thread_of

URL = "http://127.0.0.1:1"


@dataclass
class Verified:
    """A verified user as LangGraph Server passes it."""

    identity: str
    is_authenticated: bool = True
    display_name: str = ""
    permissions: tuple[str, ...] = ()


@dataclass
class Context:
    """The context of a run."""

    user_id: object = None


def config(context: Any = None, verified: str | None = None, **configurable: Any) -> RunnableConfig:
    """Return the config of a run, with its runtime where LangGraph stores it."""
    user: Any = None if verified is None else Verified(verified)
    runtime = Runtime(context=context, server_info=ServerInfo("assistant", "graph", user))
    return {"configurable": {"__pregel_runtime": runtime, "thread_id": "t", **configurable}}


def connection(**options: Any) -> ThreefoldConnection:
    """Return a connection to an address where nothing listens."""
    client = options.pop("client_user", None)
    return ThreefoldConnection(MemoryClient(URL, user=client), AsyncMemoryClient(URL, user=client), **options)


def test_sources_of_a_user_have_a_fixed_order() -> None:
    full = config(Context("of context"), langgraph_user_id="of langmem", user_id="plain")
    assert find_user(full, "explicit", "of client") == "explicit"
    assert find_user(full, lambda run: run["configurable"]["user_id"] + "!", None) == "plain!"  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert find_user(config(verified="ana"), None, "of client") == "ana"
    assert find_user(full, None, "of client") == "of langmem"
    assert find_user(config(Context("of context"), user_id="plain"), None, "of client") == "of context"
    assert find_user(config(Context(), user_id="plain"), None, "of client") == "plain"
    assert find_user(config(), None, "of client") == "of client"
    assert find_user({}, None, None) is None
    assert (
        find_user(config(verified="ana"), lambda _: "tenant 7", None) == "tenant 7"
    )  # the function of the operator wins


@pytest.mark.parametrize("nobody", ["", None])
def test_function_that_returns_no_user_is_an_error(nobody: Any) -> None:
    with pytest.raises(InvalidRequest, match="user: its function returned"):
        find_user(config(user_id="ana"), lambda _: nobody, "of client")


@pytest.mark.parametrize("context", [{"user_id": "ana"}, Context("ana"), Context(UUID(int=7)), Context(7)])
def test_context_may_have_any_form(context: object) -> None:
    assert find_user(config(context), None, None) in {"ana", str(UUID(int=7)), "7"}


@pytest.mark.parametrize(
    "named",
    [{"langgraph_user_id": "ben"}, {"user_id": "ben"}, {"context": Context("ben")}, {"user_id": "Ana"}],
)
def test_only_the_verified_user_is_accepted(named: dict[str, Any]) -> None:
    with pytest.raises(Forbidden, match="verified"):
        find_user(config(verified="ana", **named), None, None)
    by_config = config(langgraph_auth_user={"identity": "ana"}, **named)
    with pytest.raises(Forbidden):
        find_user(by_config, None, None)
    with pytest.raises(Forbidden):
        find_user(config(langgraph_auth_user_id="ana", **named), None, None)


def test_verified_user_may_be_named_again() -> None:
    assert find_user(config(verified="ana", user_id="ana"), None, None) == "ana"


def test_empty_identity_of_a_server_is_nobody() -> None:
    """A LangGraph Server without `auth` fills in empty texts."""
    unverified = config(verified="", langgraph_auth_user_id="", user_id="")
    assert find_user(unverified, None, "of client") == "of client"
    assert find_user(unverified, None, None) is None
    with pytest.raises(InvalidRequest, match="no user"):
        connection().acting(unverified)


def test_run_of_a_server_that_verifies_nobody_is_the_users_of_its_other_calls() -> None:
    named = config(langgraph_auth_user_id="", user_id="ben")
    assert find_user(named, None, None) == "ben"
    assert find_user(named, None, "ben") == "ben"
    assert find_user(named, "explicit", "ana") == "explicit"
    with pytest.raises(Forbidden, match="THREEFOLD_USER"):
        find_user(named, None, "ana")
    assert find_user(config(user_id="ben"), None, "ana") == "ben"  # not on a server


def test_request_to_a_server_names_the_user_outside_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    user = Verified("ana")
    module = SimpleNamespace(get_auth_ctx=lambda: SimpleNamespace(user=user))
    monkeypatch.setitem(sys.modules, "langgraph_api.utils", module)  # pyright: ignore[reportArgumentType]
    assert find_user({}, None, "of client") == "ana"
    with pytest.raises(Forbidden, match="verified"):
        find_user(config(user_id="ben"), None, None)
    user.identity = ""
    assert find_user({}, None, "of client") == "of client"


@pytest.mark.parametrize("wrong", [True, 1.5, ["ana"], b"ana"])
def test_value_that_is_no_name_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="must be a string"):
        find_user(config(user_id=wrong), None, None)


def test_run_without_a_user_reads_only_the_data_of_the_agent() -> None:
    with pytest.raises(InvalidRequest, match="no user"):
        connection().acting(config())
    with pytest.raises(InvalidRequest, match="no user"):
        connection().acting_async(config())
    assert connection().acting(config(), "agent").user is None


@pytest.mark.parametrize("blank", ["", "  ", "*"])
def test_blank_or_reserved_name_is_refused(blank: str) -> None:
    with pytest.raises(InvalidRequest, match="user"):
        connection().acting(config(user_id=blank))


def test_connection_acts_for_the_user_of_the_run() -> None:
    shared = connection(agent=lambda run: str(thread_of(run)), client_user="fallback")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    client = shared.acting(config(user_id="ana"))
    assert (client.user, client.agent) == ("ana", "t")
    assert shared.acting({}).user == "fallback"
    assert shared.acting_async(config(user_id="ana")).user == "ana"


def test_config_outside_of_a_run_is_empty() -> None:
    assert current_config() == {}
