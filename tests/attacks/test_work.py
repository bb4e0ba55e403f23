"""Attacks on availability: small requests for enormous work, and one owner that uses the capacity of all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from threefold import MemoryClient
from threefold.errors import InvalidRequest
from threefold_server.local import LocalService

AT_ONCE = 46  # more than the threads that a process shares
EXPANDING = [
    "{a,b}" * 200,
    "{a,b}." * 50,
    "{*,a}" * 100,
    "a{x,y,z}" * 60,
    "{[0],[1]}" * 40,
    "*." * 999,
    "[*]" * 999,
]


def put(memory: MemoryClient, index: list[str], value: dict[str, Any]) -> None:
    operation = {"op": "put", "namespace": ["notes"], "key": "k", "value": value, "index": index}
    memory.items_batch([operation])


@pytest.mark.parametrize("path", EXPANDING)
def test_expanding_path_is_refused(memory: MemoryClient, path: str) -> None:
    with pytest.raises(InvalidRequest, match="index: "):
        put(memory, [path], {"a": "words"})


def test_expanding_paths_do_not_stop_the_service(service: LocalService, memory: MemoryClient) -> None:
    nested: dict[str, Any] = {"a": "words", "b": "words"}
    for _ in range(40):
        nested = {"a": nested, "b": "words"}

    def attack(number: int) -> None:
        with pytest.raises(InvalidRequest), service.client(user="mallory", agent="support") as mallory:
            put(mallory, ["{a,b}" * 160 + str(number)], nested)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attack, range(AT_ONCE)))
    put(memory, ["{a,b}"], {"a": "words"})
