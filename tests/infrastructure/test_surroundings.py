"""Tests run in a clean environment."""

from __future__ import annotations

import os
import socket

import pytest

from fixtures.surroundings import PATIENT

ELSEWHERE = "192.0.2.1"  # reserved for documentation, so never reachable


def test_no_setting_is_inherited() -> None:
    assert {name for name in os.environ if name.startswith("THREEFOLD_")} == PATIENT.keys()


def test_other_machines_are_unreachable() -> None:
    with pytest.raises(pytest.fail.Exception, match="tried to reach 192"):
        socket.create_connection((ELSEWHERE, 80))


def test_names_are_not_looked_up() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"tried to reach example\.com"):
        socket.getaddrinfo("example.com", 80)


def test_loopback_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
