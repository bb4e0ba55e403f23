"""The whole service inside this process, behind the same clients: for notebooks, tests and scripts."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from threefold import AsyncMemoryClient, MemoryClient
from threefold_server.app import create_app
from threefold_server.settings import Settings
from threefold_server.storage.engine import files

HOST = "threefold.local"
URL = f"http://{HOST}"


class LocalService:
    """The service inside this process, in a thread with its own event loop, for several clients.

    It serves synchronous callers and callers on any event loop.

    Args:
        data: Directory of the store; by default a temporary one that is deleted at the end.
        **settings: Fields of `Settings`. The environment's `THREEFOLD_DATABASE_URL` is ignored.

    Example:
        ```python
        with LocalService() as service, service.client(user="ana", agent="support") as memory:
            memory.write("s1", [{"role": "user", "content": "I deploy on Fridays."}])
        ```
    """

    def __init__(self, data: Path | str | None = None, **settings: Any) -> None:
        self._data = data
        self._settings = settings
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._app_transport: httpx.ASGITransport | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # closes what was opened if a step fails
            data = self._data or stack.enter_context(tempfile.TemporaryDirectory(prefix="threefold-"))
            # `data` names the store, even if the environment names a database for a service.
            settings: dict[str, Any] = {"database_url": None, "data": Path(data), **self._settings}
            app = create_app(Settings(**settings))
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(app.router.lifespan_context(app)))
            files.warn(app.state.service.settings.url)
            self._app_transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            self._portal = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._portal = None

    def client(self, user: str | None = None, agent: str | None = None, **options: Any) -> MemoryClient:
        """Return a synchronous client for one identity; `options` are those of `MemoryClient`."""
        return MemoryClient(URL, user=user, agent=agent, transport=self.transport(), **options)

    def async_client(self, user: str | None = None, agent: str | None = None, **options: Any) -> AsyncMemoryClient:
        """Return an asynchronous client for one identity, usable on any event loop."""
        return AsyncMemoryClient(URL, user=user, agent=agent, transport=_AsyncTransport(self), **options)

    def transport(self) -> httpx.BaseTransport:
        """Return a transport with which any httpx client reaches the service."""
        return _SyncTransport(self)

    def submit(self, request: httpx.Request) -> Future[httpx.Response]:
        """Send a request to the service from any thread.

        Raises:
            httpx.ConnectError: The service is not running.
        """
        if self._portal is None:
            raise httpx.ConnectError("the local service is closed", request=request)
        return self._portal.start_task_soon(self._send, request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        assert self._app_transport is not None
        if request.url.host == request.headers.get("Host") == HOST:  # the name in URL; no network resolves it
            request.headers["Host"] = "localhost"
        response = await self._app_transport.handle_async_request(request)
        content = await response.aread()
        return httpx.Response(response.status_code, headers=response.headers, content=content)


class LocalMemory:
    """A service with one client: `with` gives a `MemoryClient`, `async with` an `AsyncMemoryClient`."""

    def __init__(self, service: LocalService, user: str | None, agent: str | None) -> None:
        self._service = service
        self._identity = {"user": user, "agent": agent}

    def __enter__(self) -> MemoryClient:
        return self._service.__enter__().client(**self._identity)

    def __exit__(self, *failure: Any) -> None:
        self._service.__exit__(*failure)

    async def __aenter__(self) -> AsyncMemoryClient:
        service = await asyncio.to_thread(self._service.__enter__)
        return service.async_client(**self._identity)

    async def __aexit__(self, *failure: Any) -> None:
        await asyncio.to_thread(self._service.__exit__, *failure)


def local_memory(
    data: Path | str | None = None, *, user: str | None = None, agent: str | None = None, **settings: Any
) -> LocalMemory:
    """Return a service inside this process with one client. For several identities use `LocalService`.

    Args:
        data: Directory of the store; by default a temporary one that is deleted at the end.
        user: The user of every call; `local` by default.
        agent: The agent of every call; `local` by default.
        **settings: Fields of `Settings`.

    Example:
        ```python
        with local_memory() as memory:
            memory.write("s1", [{"role": "user", "content": "I deploy on Fridays."}])
        ```
    """
    return LocalMemory(LocalService(data, **settings), user, agent)


class _SyncTransport(httpx.BaseTransport):
    def __init__(self, service: LocalService) -> None:
        self._service = service

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._service.submit(request).result()


class _AsyncTransport(httpx.AsyncBaseTransport):
    def __init__(self, service: LocalService) -> None:
        self._service = service

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await asyncio.wrap_future(self._service.submit(request))
