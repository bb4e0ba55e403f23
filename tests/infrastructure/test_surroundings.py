"""Tests run in an environment of their own."""

from __future__ import annotations

import os
import socket

import pytest

ELSEWHERE = "192.0.2.1"  # reserved for documentation: nobody is there


def test_no_setting_leaks_in() -> None:
    assert [name for name in os.environ if name.startswith("THREEFOLD_")] == []


def test_another_machine_is_out_of_reach() -> None:
    with pytest.raises(pytest.fail.Exception, match="tried to reach 192"):
        socket.create_connection((ELSEWHERE, 80))


def test_a_name_is_not_looked_up() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"tried to reach example\.com"):
        socket.getaddrinfo("example.com", 80)


def test_loopback_is_within_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
