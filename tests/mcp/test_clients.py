"""Each configuration in docs/mcp.md is started as a client would start it, and offers its tools."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from mcp.client.stdio import StdioServerParameters

from fixtures.command_line import THREEFOLD, running
from fixtures.keys import make_key
from fixtures.mcp_clients import SETTINGS, over_http, started
from threefold.tools.definitions import PROFILES
from threefold_server.settings import sqlite_url

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
FENCE = re.compile(r"^```(json|toml|yaml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LOAD = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}

SERVICE, DATA, TOKEN = "https://memory.example.com", "/home/ana/.threefold", "tf_..."


class Place(NamedTuple):
    """Values for the placeholders of the page."""

    url: str
    data: Path
    key: str

    def fill_in(self, text: str) -> str:
        """Replace the placeholders in a text of the page."""
        return text.replace(SERVICE, self.url).replace(DATA, str(self.data)).replace(TOKEN, self.key)


def servers(configuration: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the servers of a configuration of any client."""
    if configuration.get("kind") == "RemoteMCPServer":
        (header,) = configuration["spec"]["headersFrom"]
        yield {"url": configuration["spec"]["url"], "headers": {header["name"]: f"Bearer {TOKEN}"}}
        return
    for key in ("mcpServers", "servers", "mcp_servers"):
        yield from configuration.get(key, {}).values()


CONFIGURED = [server for kind, text in FENCE.findall(PAGE) for server in servers(LOAD[kind](text))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service in mode `keys`, and a directory for a store."""
    data = tmp_path_factory.mktemp("service")
    with running("serve", "--port", "0", "--data", str(data), "--mode", "keys", embedder="hash") as process:
        yield Place(process.first_line, tmp_path_factory.mktemp("store"), make_key(sqlite_url(data)))


def test_every_fence_configures_a_server() -> None:
    assert len(CONFIGURED) == 8
    assert all(list(servers(LOAD[kind](text))) for kind, text in FENCE.findall(PAGE))


@pytest.mark.parametrize("server", CONFIGURED, ids=range(len(CONFIGURED)))
async def test_configuration_starts(server: dict[str, Any], place: Place) -> None:
    server = json.loads(place.fill_in(json.dumps(server)))
    if "url" in server:
        headers = server.get("headers") or server["http_headers"]
        async with httpx.AsyncClient(headers=headers) as http, over_http(server["url"], http) as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
    else:
        path = f"{THREEFOLD.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path} | SETTINGS | server.get("env", {})
        parameters = StdioServerParameters(command=server["command"], args=server["args"], env=environment)
        async with started(parameters) as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
    assert offered
    assert ("profile=kagent" in str(server)) == (offered == set(PROFILES["kagent"].tools))


def test_every_tool_and_prompt_is_on_the_page() -> None:
    names = {name for profile in PROFILES.values() for name in (*profile.tools, *profile.prompts)}
    assert {name for name in names if f"`{name}" not in PAGE} == set()
