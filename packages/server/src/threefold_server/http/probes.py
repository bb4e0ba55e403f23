"""Liveness, readiness and metrics: for machines that watch the service."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Response

from threefold.contract import Health
from threefold.errors import Unavailable
from threefold_server.http.routes import service_of
from threefold_server.service import Service
from threefold_server.storage.engine.migrate import check_current

PATHS = frozenset({"/healthz", "/readyz", "/metrics"})

router = APIRouter()

READY_SECONDS = 1.0
"""For the database to answer a probe; the answer to whoever asks comes within 2 s."""

Open = Annotated[Service, Depends(service_of)]


@router.get("/healthz")
async def healthz() -> Health:
    """The process is alive. Touches nothing."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health}})
async def readyz(service: Open, response: Response) -> Health:
    """The database answers and has the right schema. Models are not asked: without them memory still works."""
    try:
        with anyio.fail_after(READY_SECONDS):
            await service.database.probe("system", check_current, READY_SECONDS)
    except TimeoutError:
        response.status_code = 503
        return Health(status="unavailable", detail="the database did not answer in time")
    except Unavailable as error:
        response.status_code = 503
        return Health(status="unavailable", detail=error.message)
    return Health(status="ok")


@router.get("/metrics", response_class=Response)
async def metrics(service: Open) -> Response:
    """Prometheus metrics."""
    return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
