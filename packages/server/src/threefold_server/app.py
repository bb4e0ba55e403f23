"""The web application: composes resources, identity, routes and workers."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from fastapi import FastAPI

from threefold_server.clock import now_micros
from threefold_server.consolidation.process import run_background
from threefold_server.http import admin, belief_routes, errors, probes, routes
from threefold_server.http.bodies import Bodies
from threefold_server.http.identity import build_identity
from threefold_server.http.middleware import BodyLimit, Measure
from threefold_server.http.rates import Rates
from threefold_server.http.sites import SiteGuard
from threefold_server.models import build_chat, build_embedder, build_extractor, build_summarizer
from threefold_server.models.ports import Embedder, Meter
from threefold_server.operations.whoami import VERSION
from threefold_server.service import Service
from threefold_server.settings import Settings
from threefold_server.spending import Spending
from threefold_server.storage.engine import migrate
from threefold_server.storage.engine.database import Connection, Database
from threefold_server.storage.engine.row_security import unbound_role
from threefold_server.storage.store import system
from threefold_server.telemetry import Metrics, configure_logging, configure_tracing, keep_own_spans
from threefold_server.text.redaction import redactor_for

if TYPE_CHECKING:
    from threefold_server.models.chat import ChatModel


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the ASGI application. Its lifespan opens and closes the resources.

    Args:
        settings: Settings from the environment by default.
    """
    settings = settings or Settings()
    settings.check_servable()
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with open_service(settings, metrics) as service, run_background(service):
            app.state.service = service
            app.state.identity = build_identity(service)
            app.state.bodies = Bodies()
            app.state.rates = Rates(settings, service.ticks)
            yield

    app = FastAPI(
        title="Threefold",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # FastAPI's own spans would contain paths with ids and query strings. Old versions ignore this.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        redirect_slashes=False,  # a redirect would go to the host that the request names
    )
    app.include_router(routes.router)
    app.include_router(belief_routes.router)
    app.include_router(admin.router)
    app.include_router(probes.router)
    if settings.serves_mcp:
        from threefold_server.http import mcp  # loads the [mcp] extra

        app.include_router(mcp.router)
    errors.install(app)
    app.add_middleware(SiteGuard, settings=settings)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Measure, metrics=metrics)
    keep_own_spans(app)
    return app


def serve_app() -> FastAPI:
    """Return the application of a process that only serves; settings come from the environment."""
    settings = Settings()
    configure_logging(settings.log_level)
    if settings.otel:
        configure_tracing()
    app = create_app(settings)
    # Objects made at start-up are never freed. Not collecting them cut p99 from 85 to 20 ms (32 clients).
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return app


@asynccontextmanager
async def open_service(
    settings: Settings, metrics: Metrics | None = None, *, claim: bool = True
) -> AsyncGenerator[Service]:
    """Open the resources of a service, for the app and for commands that work without HTTP.

    Args:
        settings: Settings of the service.
        metrics: Counters to use; new ones by default.
        claim: Record the embedder as the store's, and refuse one that did not make the store's vectors. Only
            `threefold reembed` sets False.

    Yields:
        The service. Its database and models are closed at the end of the block.

    Raises:
        RuntimeError: The database role is not bound by row-level security.
        EmbedderMismatch: Another embedder made the vectors of the store.
    """
    if settings.embedded:
        await anyio.to_thread.run_sync(migrate.upgrade, settings.url)
    async with AsyncExitStack() as stack:
        database = Database(
            settings.url, threads=settings.database_threads, background_threads=settings.background_threads
        )
        stack.push_async_callback(database.aclose)
        await database.read("system", _check_database)
        metrics = metrics or Metrics()
        meter = Spending(settings, database, metrics, now_micros)
        embedder = _build_embedder(settings, meter)
        stack.push_async_callback(embedder.aclose)
        chat = _build_chat(settings, meter)
        if chat is not None:
            stack.push_async_callback(chat.aclose)
        summarizer = build_summarizer(chat, settings.prompts)
        extractor = build_extractor(chat, settings.prompts) if chat and settings.extracts_facts else None
        service = Service(settings, database, embedder, summarizer, extractor, metrics)
        stack.push_async_callback(service.aclose)
        if claim:
            await database.write("system", lambda c: system.claim_embedder(c, embedder.name))
        yield service


def _build_embedder(settings: Settings, meter: Meter) -> Embedder:
    return build_embedder(
        settings.embedder,
        redact=redactor_for(settings.redact),
        model_path=settings.minilm_model,
        dimensions=settings.embedder_dimensions,
        api_key=settings.model_key,
        base_url=settings.model_base_url,
        timeout=settings.model_timeout,
        meter=meter,
    )


def _build_chat(settings: Settings, meter: Meter) -> ChatModel | None:
    return build_chat(
        settings.model,
        redact=redactor_for(settings.redact),
        api_key=settings.model_key,
        base_url=settings.model_base_url,
        timeout=settings.model_timeout,
        meter=meter,
    )


def _check_database(connection: Connection) -> None:
    """Raise for a schema of another version and for a role that bypasses row-level security."""
    migrate.check_current(connection)
    role = None if connection.dialect.name == "sqlite" else unbound_role(connection)
    if role is not None:
        raise RuntimeError(
            f"the database role {role!r} is a superuser or has BYPASSRLS, so row-level security would not separate "
            "owners; connect as a plain role (CREATE ROLE threefold LOGIN NOSUPERUSER NOBYPASSRLS)"
        )
