"""`/mcp` under the ceilings of keys: no tool, prompt or resource reads or erases what is above them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp.client.session import ClientSession
from mcp.shared.exceptions import McpError
from mcp.types import TextContent
from pydantic import AnyUrl

from fixtures.command_line import running
from fixtures.keys import make_key
from fixtures.mcp_clients import SETTINGS, over_http
from threefold import MemoryClient
from threefold.tools.definitions import PROFILES
from threefold_server.rules.access import Reach
from threefold_server.settings import sqlite_url

pytestmark = pytest.mark.anyio

QUICK = {name.removeprefix("THREEFOLD_").lower(): value for name, value in SETTINGS.items()}
SECRETS = {"session": "kumquat", "other session": "quince", "other agent": "medlar", "agent for all": "loquat"}
VISIBLE: dict[str, set[str]] = {
    "session": {"session"},
    "agent": {"session", "other session"},
    "user": {"session", "other session", "other agent"},
}
LEVELS = [None, "session", "agent", "user", "store", "everything"]


class Store:
    """A service in mode `keys` with a secret word at each level of one user."""

    def __init__(self, url: str, database_url: str) -> None:
        self.url, self.database_url = url, database_url
        self.ids: dict[str, str] = {}
        self._fill("support", "mine", "session")
        self._fill("support", "theirs", "other session")
        self._fill("billing", "invoices", "other agent")

    def _fill(self, agent: str, session: str, where: str) -> None:
        key = self.key(Reach.user, agent)
        with MemoryClient(self.url, api_key=key, timeout=60) as memory:
            text = f"The {SECRETS[where]} of {where}."
            self.ids[where] = memory.save(text, session_id=session).id
            memory.write(session, [{"role": "user", "content": text}])
            memory.save(f"Private: {text}", session_id=session, visibility="session")
            memory.wait(session, timeout=60)  # the profile `kagent` compares vectors

    def key(self, ceiling: Reach, agent: str = "support") -> str:
        return make_key(self.database_url, ceiling=ceiling, agent_value=agent)

    @asynccontextmanager
    async def connect(self, ceiling: Reach, profile: str) -> AsyncGenerator[ClientSession]:
        headers = {"Authorization": f"Bearer {self.key(ceiling)}"}
        url = f"{self.url}/mcp?profile={profile}&session=mine"
        async with httpx.AsyncClient(headers=headers, timeout=60) as http, over_http(url, http) as client:
            yield client


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    data = tmp_path_factory.mktemp("store")
    flags = ("--mode", "keys", "--max-read-level", "user")
    with running("serve", "--port", "0", "--data", str(data), *flags, **QUICK) as process:
        yield Store(process.first_line, sqlite_url(data))


def calls(tool: str, properties: dict[str, Any], ids: list[str]) -> Iterator[dict[str, Any]]:
    """Yield arguments of a tool, with each level also where its schema has none."""
    values: dict[str, Any] = {"ids": ids, "limit": 50, "budget": 4_000}
    question = " ".join(SECRETS.values())
    given = {name: values.get(name, question) for name in properties if name in values or name in _TEXTS}
    for level in LEVELS:
        yield given if level is None else {**given, "level": level}


_TEXTS = ("query", "message", "content", "text")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("ceiling", [Reach.session, Reach.agent])
async def test_no_tool_reads_above_the_ceiling(store: Store, ceiling: Reach, profile: str) -> None:
    found = set[str]()
    async with store.connect(ceiling, profile) as client:
        for tool in (await client.list_tools()).tools:
            if tool.annotations is not None and tool.annotations.readOnlyHint:
                for arguments in calls(tool.name, tool.inputSchema["properties"], list(store.ids.values())):
                    result = await client.call_tool(tool.name, arguments)
                    text = "".join(part.text for part in result.content if isinstance(part, TextContent))
                    found |= {where for where, secret in SECRETS.items() if secret in text}
    assert "session" in found
    assert found <= VISIBLE[ceiling.name]


@pytest.mark.parametrize("ceiling", [Reach.session, Reach.agent])
async def test_no_prompt_or_resource_reads_above_the_ceiling(store: Store, ceiling: Reach) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(store.connect(ceiling, "threefold"))
        for prompt in (await client.list_prompts()).prompts:
            arguments = {argument.name: " ".join(SECRETS.values()) for argument in prompt.arguments or []}
            found = await client.get_prompt(prompt.name, arguments)
            text = found.model_dump_json()
            assert {where for where, secret in SECRETS.items() if secret in text} <= VISIBLE[ceiling.name]
        for uri in ("threefold://facts/{}", "threefold://sessions/invoices/digest", "threefold://facts/../facts/{}"):
            with pytest.raises(McpError):
                await client.read_resource(AnyUrl(uri.format(store.ids["other agent"])))


@pytest.mark.parametrize("ceiling", [Reach.session, Reach.agent])
async def test_no_tool_erases_above_the_ceiling(store: Store, ceiling: Reach) -> None:
    above = [where for where in store.ids if where not in VISIBLE[ceiling.name]]
    async with store.connect(ceiling, "threefold") as client:
        for arguments in (
            {"ids": [store.ids[where] for where in above]},
            {"ids": [store.ids[where] for where in above], "level": "user"},
            {"level": "user"},
            {"session_id": "theirs"},
            {"source": {"kind": "agent", "name": "billing"}},
        ):
            await client.call_tool("forget", arguments)
    with MemoryClient(store.url, api_key=store.key(Reach.user), timeout=60) as memory:
        assert [memory.get_fact(store.ids[where]).id for where in above] == [store.ids[where] for where in above]
