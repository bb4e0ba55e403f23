"""`/mcp` of `threefold serve`, with the official client."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

from fixtures.command_line import running
from fixtures.keys import make_key
from fixtures.mcp_clients import SETTINGS, call, over_http
from threefold import MemoryClient
from threefold.tools.answers import NOTHING_FORGOTTEN, NOTHING_FOUND, UNAVAILABLE
from threefold_server import settings as settings_module
from threefold_server.app import create_app
from threefold_server.local import LocalService
from threefold_server.rules.access import Reach
from threefold_server.settings import Settings, sqlite_url

pytestmark = pytest.mark.anyio

QUICK = {name.removeprefix("THREEFOLD_").lower(): value for name, value in SETTINGS.items()}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Service:
    """A running service in mode `keys` that can make keys."""

    url: str
    database_url: str

    def key(self, user: str, **grants: Any) -> str:
        """Make a key for a user."""
        return make_key(self.database_url, user_value=user, **grants)

    @asynccontextmanager
    async def connect(self, key: str, query: str = "") -> AsyncGenerator[ClientSession]:
        """Open a separate connection."""
        async with bearing(key) as http, over_http(f"{self.url}/mcp{query}", http) as client:
            yield client


def bearing(key: str) -> httpx.AsyncClient:
    """Return an HTTP client with a key."""
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in mode `keys`; each test has its own users."""
    data = tmp_path_factory.mktemp("keyed")
    flags = ("--mode", "keys", "--max-read-level", "user", "--store-name", "lab")
    with running("serve", "--port", "0", "--data", str(data), *flags, **QUICK) as process:
        yield Service(process.first_line, sqlite_url(data))


async def test_fact_of_one_session_is_found_in_another(keyed: Service) -> None:
    """Both connections use MCP only and share nothing but the key."""
    key = keyed.key("ana")
    async with keyed.connect(key) as client:
        assert (await call(client, "save_memory", text="The gate code is 4711.")).startswith("Saved as ")
        await call(client, "record", message="I deploy to staging on Fridays.", answer="Noted.")
    async with keyed.connect(key) as client:
        assert "4711" in await call(client, "search_memory", query="What is the gate code?")
        assert "Fridays" in await call(client, "load_memory", query="When do I deploy to staging?")


async def test_concurrent_connections_of_two_users_are_separate(keyed: Service) -> None:
    """Users reported that two users with the same session id shared its history."""
    bea, carl = keyed.key("bea"), keyed.key("carl")
    async with keyed.connect(bea, "?session=same") as hers, keyed.connect(carl, "?session=same&tools=forget") as his:
        fact = (await call(hers, "save_memory", text="The canary is called Tweety.")).split()[-1].rstrip(".")
        await call(hers, "record", message="My canary sings at dawn.")
        with pytest.raises(McpError, match="no such"):
            await his.read_resource(AnyUrl(f"threefold://facts/{fact}"))
        with pytest.raises(McpError, match="no such session"):
            await his.read_resource(AnyUrl("threefold://sessions/same/digest"))
        assert await call(his, "forget", ids=[fact]) == NOTHING_FORGOTTEN
        prompt = (await his.get_prompt("recall", {"query": "canary"})).messages[0].content
        assert getattr(prompt, "text", "") == NOTHING_FOUND
        async with keyed.connect(carl, "?session=same") as all_his:
            assert await call(all_his, "search_memory", query="canary") == NOTHING_FOUND
            assert await call(all_his, "list_memories") == NOTHING_FOUND
        assert "Tweety" in await call(hers, "search_memory", query="canary")


async def test_memory_of_another_user_is_answered_like_a_missing_one(keyed: Service) -> None:
    async with keyed.connect(keyed.key("ria")) as hers:
        fact = (await call(hers, "save_memory", text="Ria's own.")).split()[-1].rstrip(".")
    async with keyed.connect(keyed.key("sid"), "?tools=forget,search_memory") as his:
        errors: list[object] = []
        for uri in (f"facts/{fact}", "facts/nonsense"):
            with pytest.raises(McpError) as failure:
                await his.read_resource(AnyUrl(f"threefold://{uri}"))
            errors.append(failure.value.error)
        assert errors[0] == errors[1]
        assert await call(his, "forget", ids=[fact]) == await call(his, "forget", ids=["nonsense"])


async def test_every_request_is_authenticated(keyed: Service) -> None:
    """A session id gives no access: with another key in the middle of a connection, only its own user's memory is
    read."""
    dora, emil = keyed.key("dora"), keyed.key("emil")
    async with bearing(dora) as http, over_http(f"{keyed.url}/mcp", http) as client:
        await call(client, "record", message="The heron lands at dawn.")
        http.headers["Authorization"] = f"Bearer {emil}"
        assert await call(client, "search_memory", query="heron", level="session") == NOTHING_FOUND
        http.headers["Authorization"] = f"Bearer {dora}"
        assert "heron" in await call(client, "search_memory", query="heron", level="agent")
        for authorization in ("Bearer nonsense", ""):
            http.headers["Authorization"] = authorization
            answer = await http.post(f"{keyed.url}/mcp", json=PING, headers=ACCEPT)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


async def test_model_that_names_a_user_gets_an_error_and_writes_nothing(keyed: Service) -> None:
    """Users reported tools where the model supplied the user."""
    mallory, victim = keyed.key("mallory"), keyed.key("victim")
    async with keyed.connect(mallory) as client:
        for name in ("user_id", "user", "agent", "session_id"):
            said = await call(client, "save_memory", text="Send money.", **{name: "victim"}, is_error=True)
            assert f"{name}: Extra inputs are not permitted" in said
            await call(client, "record", message="Send money.", **{name: "victim"}, is_error=True)
        assert await call(client, "list_memories") == NOTHING_FOUND
    async with keyed.connect(victim) as client:
        assert await call(client, "list_memories") == NOTHING_FOUND


async def test_identity_in_the_url_is_refused(keyed: Service) -> None:
    async with bearing(keyed.key("finn")) as http:
        answer = await http.post(f"{keyed.url}/mcp?user=bob", json=PING, headers=ACCEPT)
    assert answer.status_code == 422
    assert "user: Extra inputs are not permitted" in answer.json()["error"]["message"]


async def test_trusted_backend_names_its_users_in_a_header(keyed: Service) -> None:
    key = make_key(keyed.database_url, user_grant="named", user_value=None)
    for user in ("gina", "hugo"):
        async with bearing(key) as http:
            http.headers["X-Threefold-User"] = user
            async with over_http(f"{keyed.url}/mcp", http) as client:
                await call(client, "save_memory", text=f"I am {user}.")
    with MemoryClient(keyed.url, api_key=key, user="hugo") as memory:
        assert [item.text for item in memory.list().items] == ["I am hugo."]


async def test_offered_levels_end_at_the_ceiling_of_the_key(keyed: Service) -> None:
    up_to_agent, up_to_user = keyed.key("ida"), keyed.key("ida", ceiling=Reach.user, agent_value="research")
    async with keyed.connect(up_to_user) as client:
        assert "'user'" in str((await client.list_tools()).tools[0].inputSchema["properties"]["level"])
        await call(client, "save_memory", text="Ida likes tea.")
        assert "Ida likes tea." in await call(client, "search_memory", query="tea", level="user")
    async with keyed.connect(up_to_agent) as client:
        assert "'user'" not in str((await client.list_tools()).tools[0].inputSchema["properties"]["level"])
        assert "level: " in await call(client, "search_memory", query="tea", level="user", is_error=True)
        assert await call(client, "search_memory", query="tea") == NOTHING_FOUND


async def test_requests_of_a_connection_share_one_session(keyed: Service) -> None:
    key = keyed.key("jo")
    async with bearing(key) as http, AsyncExitStack() as stack:
        names: set[str | None] = set()
        for _ in range(2):
            streams = await stack.enter_async_context(streamable_http_client(f"{keyed.url}/mcp", http_client=http))
            client = await stack.enter_async_context(ClientSession(*streams[:2]))
            await client.initialize()
            await call(client, "record", message="one")
            await call(client, "record", message="two")
            names.add(streams[2]())
    with MemoryClient(keyed.url, api_key=key) as memory:
        written = {session.session_id: session.turns for session in memory.sessions().sessions}
    assert written.keys() == names
    assert list(written.values()) == [2, 2]


async def test_session_can_be_named_in_the_url(keyed: Service) -> None:
    key = keyed.key("kim")
    for message in ("one", "two"):
        async with keyed.connect(key, "?session=diary") as client:
            await call(client, "record", message=message)
    with MemoryClient(keyed.url, api_key=key) as memory:
        assert [turn.content for turn in memory.turns("diary").turns] == ["one", "two"]


async def test_url_selects_profile_and_tools(keyed: Service) -> None:
    key = keyed.key("lee")
    async with keyed.connect(key, "?profile=kagent&tools=load_memory,save_memory") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["load_memory", "save_memory"]
        await call(client, "save_memory", content="Lee likes tea.")
    async with keyed.connect(key, "?profile=kaigents&read_only=true") as client:
        offered = [tool.name for tool in (await client.list_tools()).tools]
        assert offered == ["memory.query", "memory.recall", "memory.assemble_context"]
        assert "Lee likes tea." in await call(client, "memory.query", query="tea", workspace_id="lab")
        assert "workspace_id" in await call(client, "memory.query", query="tea", workspace_id="x", is_error=True)
        assert "no tool" in await call(client, "memory.record", content="x", tier="long", is_error=True)


async def test_kagent_loads_memories_by_cosine(keyed: Service) -> None:
    key = keyed.key("uma")
    near, far = "The red cat.", "A lazy dog in a large garden by the slow river that evening, with a cat."
    async with keyed.connect(key, "?profile=kagent") as client:
        await call(client, "save_memory", content=near)
        await call(client, "save_memory", content=far)
        with MemoryClient(keyed.url, api_key=key) as memory:
            expiries = [fact.expires_at is not None for fact in memory.list().items]
            while memory.recall("cat").pending_turns:
                pass
        loaded = json.loads(await call(client, "load_memory", query="cat"))
        assert [entry["content"]["parts"][0]["text"] for entry in loaded["memories"]] == [near]
        block = await call(client, "prefetch_memory", message="cat")
        assert (near in block, far in block) == (True, False)
    assert expiries == [True, True]
    async with keyed.connect(key) as client:
        assert far in await call(client, "load_memory", query="cat")


async def test_tools_of_the_kaigents_profile(keyed: Service) -> None:
    async with keyed.connect(keyed.key("mo"), "?profile=kaigents") as client:
        await call(client, "memory.record", content="Step one worked.", tier="short")
        await call(client, "memory.record", content="The valve is on the left.", tier="long", metadata={"step": 1})
        assert "tier: " in await call(client, "memory.record", content="x", tier="epistemic", is_error=True)
        assert "valve" in await call(client, "memory.recall", query="Where is the valve?")
        assert "Step one worked." in await call(client, "memory.assemble_context", query="What worked?")
        assert (await call(client, "memory.consolidate")).startswith("Consolidation is ")


async def test_forgotten_fact_is_gone(keyed: Service) -> None:
    async with keyed.connect(keyed.key("nia"), "?tools=save_memory,list_memories,forget") as client:
        fact = (await call(client, "save_memory", text="The code word is quokka.")).split()[-1].rstrip(".")
        assert f"[fact {fact}, " in await call(client, "list_memories")
        assert await call(client, "forget", ids=[fact], dry_run=True) == "This would be forgotten: facts 1."
        assert await call(client, "forget", ids=[fact]) == "Forgotten for good: facts 1."
        assert await call(client, "list_memories") == NOTHING_FOUND


async def test_long_list_is_continued_by_cursor(keyed: Service) -> None:
    async with keyed.connect(keyed.key("ole")) as client:
        for number in range(3):
            await call(client, "save_memory", text=f"Fact {number}.")
        first = await call(client, "list_memories", limit=2)
        cursor = first.partition("more follow: cursor ")[2].split()[0]
        second = await call(client, "list_memories", limit=2, cursor=cursor)
    assert ("Fact 2." in first, "Fact 0." in first) == (True, False)
    assert ("Fact 0." in second, "more follow" in second) == (True, False)


async def test_digest_can_be_read(tmp_path: Path) -> None:
    marks = ("--token-budget", "200", "--compaction-trigger", "60", "--compaction-target", "20")
    with running("serve", "--port", "0", "--data", str(tmp_path), *marks, **QUICK) as process:
        async with httpx.AsyncClient() as http, over_http(f"{process.first_line}/mcp?session=s", http) as client:
            for number in range(8):
                await call(client, "record", message=f"On day {number} the heron landed at the northern pond again.")
            with process.client() as memory:
                memory.wait("s")
            (content,) = (await client.read_resource(AnyUrl("threefold://sessions/s/digest"))).contents
    assert "Digest of turns 1 to " in getattr(content, "text", "")


async def test_any_worker_answers_any_request(postgres_url: str) -> None:
    """No state of a connection is kept in the worker process that started it."""
    flags = ("serve", "--port", "0", "--workers", "2")
    with running(*flags, database_url=postgres_url, **QUICK) as process:
        url = f"{process.first_line}/mcp?session=s"
        for number in range(6):
            async with httpx.AsyncClient(timeout=60) as http, over_http(url, http) as client:
                await call(client, "record", message=f"Turn {number}")
        with process.client() as memory:
            assert len(memory.turns("s").turns) == 6


async def test_other_methods_are_not_allowed(keyed: Service) -> None:
    """The server offers no event stream and no session to delete."""
    async with bearing(keyed.key("pia")) as http:
        for method in ("GET", "DELETE", "PUT"):
            answer = await http.request(method, f"{keyed.url}/mcp")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_oversized_body_is_refused(tmp_path: Path) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        yield b'{"padding": "'
        yield b"x" * 5_000

    with running("serve", "--port", "0", "--data", str(tmp_path), "--max-body-bytes", "2000", **QUICK) as process:
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{process.first_line}/mcp", content=chunks(), headers=ACCEPT | JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


async def test_service_stops_with_clients_connected(tmp_path: Path) -> None:
    """Some clients never close their connections, and some are gone before their answer."""
    with running("serve", "--port", "0", "--data", str(tmp_path), **QUICK) as process:
        address = httpx.URL(process.first_line)
        message = json.dumps(PING | {"method": "tools/call", "params": {"name": "list_memories"}})
        head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(message)}\r\n"
        for _ in range(3):
            with socket.create_connection((address.host, address.port or 80)) as gone:
                gone.sendall(f"{head}Content-Type: application/json\r\n\r\n{message}".encode())
        async with httpx.AsyncClient() as http, over_http(f"{process.first_line}/mcp", http) as client:
            assert await call(client, "list_memories") == NOTHING_FOUND
            assert process.stop() == 0


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b'{"jsonrpc": "2.0", "id": ' + b"1" * 5_000 + b"}",
        b'{"params": ' + b"[" * 9_000 + b"]" * 9_000 + b"}",
    ],
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with (
        LocalService(embedder="hash") as service,
        httpx.Client(transport=service.transport(), base_url="http://127.0.0.1:8181") as http,
    ):
        answer = http.post("/mcp", content=body, headers=ACCEPT | JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("text", [rb"a half: \ud83d", b"no UTF-8: \xff"])
def test_text_that_cannot_be_stored_is_replaced(text: bytes) -> None:
    message = json.dumps(PING | {"method": "tools/call", "params": {"name": "record", "arguments": {"message": "?"}}})
    body = message.encode().replace(b"?", text)
    with LocalService(embedder="hash") as service, service.client() as memory:
        with httpx.Client(transport=service.transport(), base_url="http://127.0.0.1:8181") as http:
            answer = http.post("/mcp", content=body, headers=ACCEPT | JSON)
        assert "Recorded." in answer.text
        assert [item.text[-1] for item in memory.list().items] == ["\ufffd"]


def test_request_with_two_session_ids_is_refused() -> None:
    named = [*ACCEPT.items(), ("Mcp-Session-Id", "a"), ("Mcp-Session-Id", "b")]
    with (
        LocalService(embedder="hash") as service,
        httpx.Client(transport=service.transport(), base_url="http://127.0.0.1:8181") as http,
    ):
        answer = http.post("/mcp", json=PING, headers=named)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        422,
        "mcp-session-id: sent 2 times; send it once",
    )


async def test_rate_limit_counts_only_memory_calls_and_is_reported_as_text(tmp_path: Path) -> None:
    flags = ("--user-requests-per-minute", "2", "--consolidators", "1")
    with running("serve", "--port", "0", "--data", str(tmp_path), *flags, **QUICK) as process:
        async with httpx.AsyncClient() as http, over_http(f"{process.first_line}/mcp", http) as client:
            await client.list_tools()
            await client.list_tools()
            said = [await call(client, "list_memories") for _ in range(3)]
    assert said == [NOTHING_FOUND, NOTHING_FOUND, UNAVAILABLE]


async def test_inner_call_keeps_the_network_of_the_gateway(sqlite_url: str) -> None:
    """The call that a tool makes inside the service has the address of the outer request."""
    secret = "what only the proxy and the service know"
    settings: dict[str, Any] = {"mode": "gateway", "gateway_secret": secret, "gateway_networks": "10.0.0.0/8"}
    settings |= {"database_url": sqlite_url, "embedder": "hash", "consolidate": False}
    app = create_app(Settings(**settings))
    proven = {"X-Threefold-Gateway-Secret": secret, "X-Threefold-User": "ana", "X-Threefold-Agent": "support"}
    transport = httpx.ASGITransport(app, client=("10.1.2.3", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, headers=proven) as http,
        over_http("http://memory.example/mcp", http) as client,
    ):
        assert (await call(client, "save_memory", text="Ana likes tea.")).startswith("Saved as ")


async def test_unreadable_message_is_answered_and_not_logged(tmp_path: Path) -> None:
    with running("serve", "--port", "0", "--data", str(tmp_path), "--log-level", "debug", **QUICK) as process:
        async with httpx.AsyncClient(headers=ACCEPT) as http:
            for message in (PING | {"method": "quokka"}, PING | {"method": 7, "quokka": 1}, ["quokka"]):
                answer = await http.post(f"{process.first_line}/mcp", json=message)
                assert "error" in answer.json()
        process.stop()
        assert "quokka" not in process.rest


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_requests_from_another_site_are_refused(headers: dict[str, str], status: int) -> None:
    """Mode `dev` accepts any caller, and the domain of another site may resolve to this machine."""
    with (
        LocalService(embedder="hash") as service,
        httpx.Client(transport=service.transport(), base_url="http://127.0.0.1:8181") as http,
    ):
        answer = http.post("/mcp", json=PING, headers=ACCEPT | headers)
        assert answer.status_code == status


@pytest.mark.parametrize(("mcp", "status"), [(None, 405), (True, 405), (False, 404)])
def test_mcp_can_be_turned_off(mcp: bool | None, status: int) -> None:
    with LocalService(embedder="hash", mcp=mcp) as service, httpx.Client(transport=service.transport()) as http:
        assert http.get("http://threefold.local/mcp").status_code == status


def test_mcp_without_its_extra_is_off_and_cannot_be_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: str) -> bool:
        return False

    monkeypatch.setattr(settings_module, "installed", not_there)
    assert not Settings(embedder="hash").serves_mcp
    with pytest.raises(ValueError, match=r"install threefold-server\[mcp\]"):
        Settings(embedder="hash", mcp=True)
