"""`threefold serve | worker`: the processes that stay."""

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
from threefold_server.consolidation.worker import run_workers
from threefold_server.http.connections import ServerConfig
from threefold_server.service import Service
from threefold_server.settings import Settings, export_environment
from threefold_server.storage.engine import files
from threefold_server.telemetry import configure_logging, configure_tracing

app = typer.Typer()

BACKLOG = 2_048
KEEP_ALIVE_SECONDS = 75  # longer than clients keep an idle connection: they must be the ones to close it
GRACE_SECONDS = 30  # for requests in flight at the end; a forget may take as long

STARTUP_FAILURE = 3


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
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes; more than one need Postgres.")] = 1,
) -> None:
    """Run the service. Its address is the first line on standard error; SIGTERM lets requests in flight end."""
    if workers > 1 and settings.embedded:
        raise UsageError("--workers: several processes need Postgres (--database-url); on SQLite one serves all")
    with explained():
        settings.check_servable()
    with_service(settings, _nothing)  # a store that does not open is one line here, and a traceback in uvicorn
    with _listen(settings.host, settings.port) as listener:
        export_environment(settings)
        _run(settings, listener, workers)


@store_verb(app, "threefold worker --database-url postgresql://threefold_app@db/threefold", flags=ALL)
def worker(settings: Settings) -> None:
    """Do the background work of a store. For services that run with --no-consolidate."""
    configure_logging(settings.log_level)
    if settings.otel:
        configure_tracing()
    with_service(settings.model_copy(update={"consolidate": True}), _work_until_told)


async def _nothing(_: Service) -> None:
    """What opens, opens."""


async def _work_until_told(service: Service) -> None:
    files.warn(service.settings.url)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with run_workers(service):
            say("Working; SIGTERM or Ctrl-C lets tasks in hand end.")
            async for _ in signals:
                return


def _run(settings: Settings, listener: socket.socket, workers: int) -> None:
    config = ServerConfig(
        settings,
        workers=workers,
        lifespan="on",
        ws="none",
        log_config=LOG_CONFIG,
        access_log=False,  # its paths hold ids
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
        signal.signal(number, _drained)
    Server(config, settings.url).run(sockets=[listener])


class Server(uvicorn.Server):
    """Tells its address as soon as it answers there, and then what is wrong with the files of its store."""

    def __init__(self, config: uvicorn.Config, database_url: str) -> None:
        super().__init__(config)
        self._database_url = database_url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            say(_url(listener))
        files.warn(self._database_url)


def _supervise(config: uvicorn.Config, listener: socket.socket) -> None:
    """Several processes on one socket. Its address is told at once: until one of them is up, callers wait."""
    say(_url(listener))
    supervisor = Multiprocess(config, sockets=[listener])
    supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise Failed("a process did not start; its log says why")


def _drained(number: int, frame: object) -> None:
    """The signal has done its work."""


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket: from here on callers wait rather than be refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Failed(f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port") from error


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
