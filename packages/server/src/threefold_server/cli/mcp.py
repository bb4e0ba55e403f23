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
    data: Annotated[Path | None, typer.Option(help="Directory of an embedded store, in place of a service.")] = None,
    url: Url = None,
    user: User = None,
    agent: Agent = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the API key. Default: the key in THREEFOLD_API_KEY.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Session to continue. Default: a new one at each start.")
    ] = None,
    profile: Annotated[ProfileName, typer.Option(help="Set of tools and prompts to offer.")] = "threefold",
    tools: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Tools of the profile to offer. Default: the profile's choice."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no tool that writes.")] = False,
    allow_user_level: Annotated[
        bool | None,
        typer.Option(
            "--allow-user-level", help="With --data: allow reads of level `user`, over all agents of the user."
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Lowest level of log messages on standard error."),
    ] = "warning",
) -> None:
    """Serve memory to one MCP client, which starts this command and talks to it by standard input and output."""
    if data is not None and url is not None:
        raise UsageError("--data and --url name two memories; give one of them")
    if not installed("mcp"):
        raise Failed("`threefold mcp` needs the Python SDK of MCP: pip install 'threefold-server[mcp]'")
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
        except ValueError as error:  # the client refuses an invalid URL or key
            raise UsageError(str(error)) from error
        stdio.serve(client, session_id, offer, protocol)


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text("ascii", errors="replace").strip()  # the client refuses an invalid key
    except OSError as error:
        raise Failed(f"--key-file: {error.strerror}: {file}") from error


def _embedded(stack: ExitStack, target: dict[str, Any], data: Path, flags: dict[str, Any]) -> AsyncMemoryClient:
    """Start the service in a thread of this process and return its client. Other processes may use the same store."""
    from threefold_server.cli.store import explained, load_settings
    from threefold_server.local import LocalService

    load_settings(data=data, **flags)  # reports wrong settings in one line
    with explained():
        service = stack.enter_context(LocalService(data, **flags))
    return service.async_client(target["user"], target["agent"], api_key=target["api_key"])
