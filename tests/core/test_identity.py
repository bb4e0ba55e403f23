"""Values and functions that name whose memory a run uses."""

from __future__ import annotations

from typing import Any, cast

import pytest

from threefold.errors import InvalidRequest
from threefold.identity import Identity, Who


def test_values_count_as_they_are() -> None:
    assert Identity[str](user="ann", session=" s ").of("run", "own") == Who("ann", None, " s ")
    assert Identity[str]().of("run", "own") == Who(None, None, "own")


def test_functions_get_the_run() -> None:
    named = Identity[dict[str, str]](
        user=lambda run: run["user"], agent=lambda run: run["agent"], session=lambda run: run["id"]
    )
    assert named.of({"user": "ann", "agent": "bot", "id": "7"}, "own") == Who("ann", "bot", "7")


@pytest.mark.parametrize("nothing", [None, "", 7])
@pytest.mark.parametrize("name", ["user", "agent", "session"])
def test_a_function_that_finds_nobody_is_an_error(name: str, nothing: object) -> None:
    options = cast(dict[str, Any], {name: lambda _: nothing})  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(InvalidRequest, match=f"{name}: its function gave {nothing!r}"):
        Identity[str](**options).of("run", "own")
