"""Liveness, readiness and metrics, for monitoring."""

from __future__ import annotations

import anyio
from fastapi import APIRouter, Response

from threefold.contract import Health, paths
from threefold.errors import Unavailable
from threefold_server.http.routes import ServiceDep
from threefold_server.storage.engine.migrate import check_current

METRICS = "/metrics"
PATHS = frozenset({paths.HEALTH, paths.READY, METRICS})

router = APIRouter()

READY_SECONDS = 1.0
"""Time for the database to answer a probe; the probe itself is answered within 2 s."""


@router.get(paths.HEALTH)
async def healthz() -> Health:
    """Tell that the process is alive, without touching the database."""
    return Health(status="ok")


@router.get(paths.READY, responses={503: {"model": Health}})
async def readyz(service: ServiceDep, response: Response) -> Health:
    """Tell whether the database answers and has the right schema. Models are not asked: memory works without them.

    Without its process of background work the service is degraded: it answers, and finds new turns by their words.
    """
    try:
        with anyio.fail_after(READY_SECONDS):
            await service.database.probe("system", check_current, READY_SECONDS)
    except TimeoutError:
        response.status_code = 503
        return Health(status="unavailable", detail="the database did not answer in time")
    except Unavailable as error:
        response.status_code = 503
        return Health(status="unavailable", detail=error.message)
    if service.background is not None and service.background.problem is not None:
        return Health(status="degraded", detail=service.background.problem)
    return Health(status="ok")


@router.get(METRICS, response_class=Response)
async def metrics(service: ServiceDep) -> Response:
    """Return the metrics in the Prometheus text format."""
    work = None if service.background is None else service.background.metrics
    return Response(service.metrics.render(work), media_type="text/plain; version=0.0.4; charset=utf-8")
