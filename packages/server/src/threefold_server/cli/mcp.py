"""`threefold mcp`: memory for one MCP client, which starts the command and talks to it by standard input and output."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import typer

from threefold import AsyncMemoryClient
from threefold.checks import checked_id
from threefold.client import target_from_env
from threefold.tools.definitions import ProfileName
from threefold_server.cli.client import Agent, Url, User
from threefold_server.cli.commands import example, given
from threefold_server.cli.output import Failed, UsageError
from threefold_server.extras import installed

app = typer.Typer()


@app.command(
    epilog=example(
        "threefold mcp --data ./memory --user u-1",
        "threefold mcp --url https://memory.example.com --key-file key --tools search_memory,save_memory",
    )
)
def mcp(
    data: Annotated[Path | None, typer.Option(help="Directory of an embedded store; without it, a service.")] = None,
    url: Url = None,
    user: User = None,
    agent: Agent = None,
    key_file: Annotated[Path | None, typer.Option(help="A file with the API key; else THREEFOLD_API_KEY.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="The session; else a new one each time.")] = None,
    profile: Annotated[ProfileName, typer.Option(help="Which tools and prompts there are.")] = "threefold",
    tools: Annotated[str | None, typer.Option(metavar="A,B", help="Only these tools of the profile.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="No tool that writes.")] = False,
    allow_user_level: Annotated[
        bool | None, typer.Option("--allow-user-level", help="With --data: this user's other agents may be read.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Of the log on standard error.")
    ] = "warning",
) -> None:
    """Serve memory to one MCP client. It starts this command and talks to it by standard input and output."""
    if data is not None and url is not None:
        raise UsageError("--data and --url name two memories; give one of them")
    if not installed("mcp"):
        raise Failed("this needs MCP's Python SDK; install threefold-server[mcp]")
    from threefold_server.mcp import stdio
    from threefold_server.mcp.server import Offer
    from threefold_server.telemetry import configure_logging

    protocol = stdio.claim_stdout()
    configure_logging(log_level)
    offer = Offer.of(profile, tools, read_only)
    session_id = uuid4().hex if session is None else checked_id("session", session)
    target: dict[str, Any] = {**target_from_env(), **given(url=url, user=user, agent=agent, api_key=_key(key_file))}
    with ExitStack() as stack:
        try:
            if data is None:
                client = AsyncMemoryClient(**target)
            else:
                client = _embedded(stack, target, data, given(allow_user_level=allow_user_level, log_level=log_level))
        except ValueError as error:  # of the client: a key or a URL that cannot be one
            raise UsageError(str(error)) from error
        stdio.serve(client, session_id, offer, protocol)


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text("ascii", errors="replace").strip()  # the client refuses what is no key
    except OSError as error:
        raise Failed(f"--key-file: {error.strerror}: {file}") from error


def _embedded(stack: ExitStack, target: dict[str, Any], data: Path, flags: dict[str, Any]) -> AsyncMemoryClient:
    """The service in a thread of this process, on a store that other processes may use, too."""
    from threefold_server.cli.store import explained, load_settings
    from threefold_server.local import LocalService

    load_settings(data=data, **flags)  # wrong ones are told in one line
    with explained():
        service = stack.enter_context(LocalService(data, **flags))
    return service.async_client(target["user"], target["agent"], api_key=target["api_key"])
