"""`threefold serve | worker`: the long-running processes."""

from __future__ import annotations

import signal
import socket
from typing import Annotated, Any

import anyio
import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from threefold_server.cli.output import Failed, UsageError, say
from threefold_server.cli.store import ALL, explained, store_verb, with_service
from threefold_server.consolidation.process import work_for_service
from threefold_server.consolidation.worker import run_workers
from threefold_server.http.connections import ServerConfig
from threefold_server.service import Service
from threefold_server.settings import Settings, export_environment
from threefold_server.storage.engine import files
from threefold_server.telemetry import configure_logging, configure_tracing

app = typer.Typer()

BACKLOG = 2_048
"""Connections that the operating system keeps waiting until the service accepts them."""
KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections, so that the client closes them
GRACE_SECONDS = 30  # for requests in flight at the end; a forget may take that long

STARTUP_FAILURE = 3
"""The exit code with which uvicorn ends if the application does not start."""

LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "threefold_server.telemetry.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False}},
}


@store_verb(
    app,
    "threefold serve --data ./memory",
    "threefold serve --database-url postgresql://threefold_app@db/threefold --workers 4 --mode keys",
    flags=ALL,
)
def serve(
    settings: Settings,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of processes; more than one need Postgres.")
    ] = 1,
) -> None:
    """Run the service. Its URL is the first line on standard error; SIGTERM lets requests in flight finish."""
    if workers > 1 and settings.embedded:
        raise UsageError("--workers: several processes need Postgres (--database-url); on SQLite use one")
    with explained():
        settings.check_servable()
    # Reports a store that cannot be opened in one line. uvicorn would print a traceback.
    with_service(settings, _nothing)
    with _listen(settings.host, settings.port) as listener:
        export_environment(settings.model_copy(update={"consolidate": settings.consolidate or "process"}))
        _run(settings, listener, workers)


@store_verb(app, "threefold worker --database-url postgresql://threefold_app@db/threefold", flags=ALL)
def worker(
    settings: Settings,
    supervised: Annotated[
        bool, typer.Option("--supervised", hidden=True, help="Work for the service that started this process.")
    ] = False,
) -> None:
    """Run the background work of a store. Use it if the services run with --consolidate off."""
    configure_logging(settings.log_level)
    if settings.otel:
        configure_tracing()
    with_service(settings, work_for_service if supervised else _work_until_signal)


async def _nothing(_: Service) -> None:
    """Do nothing: opening the store was the check."""


async def _work_until_signal(service: Service) -> None:
    files.warn(service.settings.url)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with run_workers(service):
            say("Working. SIGTERM or Ctrl-C lets running tasks finish.")
            async for _ in signals:
                return


def _run(settings: Settings, listener: socket.socket, workers: int) -> None:
    config = ServerConfig(
        settings,
        workers=workers,
        lifespan="on",
        ws="none",
        log_config=LOG_CONFIG,
        access_log=False,  # paths contain ids
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    if workers > 1:
        _supervise(config, listener)
        return
    # Once it has drained, uvicorn raises the signal again: with the default handlers the exit code would be -15.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    Server(config, settings.url).run(sockets=[listener])


class Server(uvicorn.Server):
    """Prints its URL once it answers there, and warns about files of the store that other users may read."""

    def __init__(self, config: uvicorn.Config, database_url: str) -> None:
        super().__init__(config)
        self._database_url = database_url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            say(_url(listener))
        files.warn(self._database_url)


def _supervise(config: uvicorn.Config, listener: socket.socket) -> None:
    """Run several processes on one socket. The URL is printed at once: callers wait until the first process is up."""
    say(_url(listener))
    supervisor = Multiprocess(config, sockets=[listener])
    supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise Failed("a process of the service did not start; see the log above")


def _ignore(number: int, frame: object) -> None:
    """Ignore a signal that has been handled."""


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. From then on callers wait instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Failed(f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port") from error


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
