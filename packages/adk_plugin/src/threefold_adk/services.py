"""`register`: make `threefold://` URIs known to `adk web`, `adk run` and `adk api_server`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threefold_adk.memory import ThreefoldMemoryService
from threefold_adk.sessions import ThreefoldSessionService
from threefold_adk.uris import SCHEMES

if TYPE_CHECKING:
    from google.adk.cli.service_registry import ServiceRegistry


def register(registry: ServiceRegistry | None = None) -> None:
    """Register the services of Threefold with the commands of ADK.

    Call it in `services.py` in the directory of the agents.

    Args:
        registry: The registry of ADK (default: the one that its commands use).
    """
    from google.adk.cli.service_registry import get_service_registry  # its import takes 20 ms and only commands need it

    registry = registry or get_service_registry()
    for scheme in SCHEMES:
        registry.register_session_service(scheme, lambda uri, **options: ThreefoldSessionService(uri=uri, **options))
        registry.register_memory_service(scheme, lambda uri, **options: ThreefoldMemoryService(uri=uri, **options))
