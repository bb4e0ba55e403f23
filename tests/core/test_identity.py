"""Values and functions that name the user, agent and session of a run."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from threefold.errors import InvalidRequest
from threefold.identity import Identity, RunIdentity, name_of


def test_values_are_used_unchanged() -> None:
    assert Identity[str](user="ann", session=" s ").of("run", "own") == RunIdentity("ann", None, " s ")
    assert Identity[str]().of("run", "own") == RunIdentity(None, None, "own")


def test_functions_receive_the_run() -> None:
    named = Identity[dict[str, str]](
        user=lambda run: run["user"], agent=lambda run: run["agent"], session=lambda run: run["id"]
    )
    assert named.of({"user": "ann", "agent": "bot", "id": "7"}, "own") == RunIdentity("ann", "bot", "7")


@pytest.mark.parametrize("nothing", [None, "", 7])
@pytest.mark.parametrize("name", ["user", "agent", "session"])
def test_function_that_returns_no_name_is_an_error(name: str, nothing: object) -> None:
    options = cast(dict[str, Any], {name: lambda _: nothing})  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(InvalidRequest, match=f"{name}: its function returned {nothing!r}"):
        Identity[str](**options).of("run", "own")


@pytest.mark.parametrize(("value", "name"), [("ann", "ann"), (7, "7"), (UUID(int=7), str(UUID(int=7))), (None, None)])
def test_names_in_untyped_data(value: object, name: str | None) -> None:
    assert name_of("user_id", value) == name


@pytest.mark.parametrize("wrong", [True, 1.5, ["ann"], b"ann"])
def test_value_that_is_no_name_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="user_id: must be a string, not"):
        name_of("user_id", wrong)
