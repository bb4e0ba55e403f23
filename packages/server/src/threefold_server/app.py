"""The one place that composes the service: resources, identity, routes, workers."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from fastapi import FastAPI

from threefold_server.clock import now_micros
from threefold_server.consolidation.worker import run_workers
from threefold_server.http import admin, errors, probes, routes
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
from threefold_server.text.redaction import build_redactor

if TYPE_CHECKING:
    from threefold_server.models.chat import ChatModel


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application. Nothing is opened before its lifespan starts."""
    settings = settings or Settings()
    settings.check_servable()
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with open_service(settings, metrics) as service, run_workers(service):
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
        # Its own spans would hold paths with ids and query strings. Old versions of FastAPI ignore this.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        redirect_slashes=False,  # a redirect would lead to whatever host the request names
    )
    app.include_router(routes.router)
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
    """The application of a process that does nothing else; settings come from the environment."""
    settings = Settings()
    configure_logging(settings.log_level)
    if settings.otel:
        configure_tracing()
    app = create_app(settings)
    # Start-up objects live for good: keeping the collector off them cut p99 from ~85 to ~20 ms (32 clients).
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return app


@asynccontextmanager
async def open_service(
    settings: Settings, metrics: Metrics | None = None, *, claim: bool = True
) -> AsyncGenerator[Service]:
    """The resources behind the app, for the app and for commands that work without HTTP.

    `claim` checks that the store's vectors are the embedder's; only `threefold reembed` does without.
    """
    if settings.embedded:
        await anyio.to_thread.run_sync(migrate.upgrade, settings.url)
    async with AsyncExitStack() as stack:
        database = Database(settings.url)
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
        if claim:
            await database.write("system", lambda c: system.claim_embedder(c, embedder.name))
        yield service


def _build_embedder(settings: Settings, meter: Meter) -> Embedder:
    return build_embedder(
        settings.embedder,
        redact=build_redactor(settings.redact),
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
        redact=build_redactor(settings.redact),
        api_key=settings.model_key,
        base_url=settings.model_base_url,
        timeout=settings.model_timeout,
        meter=meter,
    )


def _check_database(connection: Connection) -> None:
    """Refuse a schema of another version, and a role that row-level security does not bind."""
    migrate.check_current(connection)
    role = None if connection.dialect.name == "sqlite" else unbound_role(connection)
    if role is not None:
        raise RuntimeError(
            f"the database role {role!r} is a superuser or has BYPASSRLS, so tenants would not be kept apart; "
            "connect as a plain role (CREATE ROLE threefold LOGIN NOSUPERUSER NOBYPASSRLS)"
        )
