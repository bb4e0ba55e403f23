"""MCP over standard input and output: one client and one identity per process."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper

import anyio
from mcp.server.stdio import stdio_server

from threefold import AsyncMemoryClient, AsyncMemorySession
from threefold.errors import ThreefoldError
from threefold.policy import is_refusal
from threefold_server.mcp.messages import replace_surrogates
from threefold_server.mcp.server import Connection, Offer

STDOUT, STDERR = 1, 2


def claim_stdout() -> int:
    """Return a descriptor of standard output for the protocol, and redirect standard output to standard error.

    Other output, even of libraries in C, then goes to standard error: one stray line would end the client's session.
    """
    sys.stdout.flush()
    protocol = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return protocol


def serve(client: AsyncMemoryClient, session_id: str, offer: Offer, protocol: int) -> None:
    """Answer until standard input ends. Raise if the service refuses this identity."""
    # A read of standard input cannot be interrupted, so a clean shutdown on Ctrl-C would wait for one more line.
    # Acknowledged calls are committed, so the process may end at once, as it does on SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_serve, client, session_id, offer, protocol)


async def _serve(client: AsyncMemoryClient, session_id: str, offer: Offer, protocol: int) -> None:
    connection = Connection(AsyncMemorySession(client, session_id), offer)
    server = connection.server()
    async with client:
        await _check_identity(client, connection)
        with os.fdopen(protocol, "w", encoding="utf-8", newline="\n") as stdout:
            stdin = Lines(sys.stdin.buffer, encoding="utf-8", errors="replace")
            async with stdio_server(anyio.wrap_file(stdin), anyio.wrap_file(stdout)) as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())


class Lines(TextIOWrapper):
    """Standard input with one repaired message per line."""

    def readline(self, size: int = -1, /) -> str:
        return replace_surrogates(super().readline(size))


async def _check_identity(client: AsyncMemoryClient, connection: Connection) -> None:
    """Raise if the service refuses the identity. Ignore an outage: the service may be up by the first call."""
    try:
        connection.learn(await client.whoami())
    except ThreefoldError as error:
        if is_refusal(error):
            raise
