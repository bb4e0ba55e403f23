"""Background work in a process of its own: the side of the service, which starts it, and the side of the process.

Two pipes connect them. Through its standard input the service wakes the process; the end of that input tells it to
stop, and comes also if the service is killed. Through its standard output the process sends its metrics, one JSON
string per line; the first line says that it works.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from threefold_server.consolidation.worker import GRACE_SECONDS, flushing, run_workers
from threefold_server.service import Background, Service
from threefold_server.settings import environment_of
from threefold_server.telemetry import logger

COMMAND = (sys.executable, "-m", "threefold_server.cli", "worker", "--supervised")
WRONG_USAGE = 2
"""Exit code of a process that refuses its settings. It would refuse them again, so it is not restarted."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
STABLE_SECONDS = 60.0
"""A process that worked for so long is restarted after the first pause again; pauses double otherwise."""

STOP_SECONDS = GRACE_SECONDS + 5
"""Time to finish what is in hand and to close, before the process is killed."""

REPORT_SECONDS = 5.0
SILENCE_SECONDS = 120.0
"""A process that sends nothing for so long hangs and is killed."""

WAKE_SECONDS = 0.02  # many writes wake the process once: each wake costs it a query
MAX_LINE_BYTES = 1_000_000


class Supervisor:
    """Keeps one process of background work running, and tells the service about it."""

    def __init__(self, service: Service, command: Sequence[str] = COMMAND) -> None:
        self.background = Background()
        self._service = service
        self._command = command
        self._woken = anyio.Event()
        self._works = False

    def wake(self) -> None:
        """Let the process look for due tasks now; to be called in the event loop."""
        self._woken.set()

    async def run(self) -> None:
        """Start the process, and again whenever it ends, until cancelled. Then let it finish what is in hand."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            reason, permanent = await self._run_once()
            self._service.metrics.consolidation_up.set(0)
            if permanent:
                self.background.problem = f"background work does not run: {reason}; correct the settings and restart"
                logger.error("background process refused to start", extra={"fields": {"reason": reason}})
                return
            pause = FIRST_PAUSE_SECONDS if time.monotonic() - began > STABLE_SECONDS else pause
            self.background.problem = f"background work does not run: {reason}; it starts again"
            fields = {"reason": reason, "restart_seconds": pause}
            logger.warning("background process ended", extra={"fields": fields})
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._service.metrics.consolidation_restarts.inc()

    async def _run_once(self) -> tuple[str, bool]:
        """Run the process until it ends; return why it did, and whether it would do so again."""
        try:
            process = await self._start()
        except OSError as error:
            return f"it cannot be started ({error.strerror})", False
        logger.info("background process started", extra={"fields": {"pid": process.pid}})
        reason, code = "", 0
        self._works = False
        try:
            reason = await self._attend(process)
        finally:
            with anyio.CancelScope(shield=True):
                if not self._works:
                    _send(process, signal.SIGTERM)  # it has nothing in hand yet, and hears us only once it has started
                code = await _end(process)
        return reason or f"exit code {code}", code == WRONG_USAGE

    async def _start(self) -> Process:
        process: Process | None = None
        with anyio.CancelScope(shield=True):  # cancelled half-way, it would leave a process behind
            process = await anyio.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,
                env=environment_of(self._service.settings),
            )
        assert process is not None
        return process

    async def _attend(self, process: Process) -> str:
        """Wake the process and listen to it until it closes its output; return a reason if it hangs."""
        assert process.stdin is not None
        assert process.stdout is not None
        hangs = False
        async with anyio.create_task_group() as group:
            group.start_soon(self._pass_on_wakes, process.stdin)
            hangs = await self._listen(process.stdout)
            group.cancel_scope.cancel()
        if hangs:
            _send(process, signal.SIGKILL)
        return f"it sent nothing for {SILENCE_SECONDS:g} s" if hangs else ""

    async def _pass_on_wakes(self, wakes: ByteSendStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await self._woken.wait()
                self._woken = anyio.Event()
                await wakes.send(b"\n")
                await anyio.sleep(WAKE_SECONDS)

    async def _listen(self, output: ByteReceiveStream) -> bool:
        """Take the metrics until the output ends; return True if none came for too long."""
        lines = BufferedByteReceiveStream(output)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead):
            while True:
                line = b""
                with anyio.move_on_after(SILENCE_SECONDS):
                    line = await lines.receive_until(b"\n", MAX_LINE_BYTES)
                if not line:
                    return True
                self._works = True
                self.background.metrics = str(json.loads(line)).encode()
                self.background.problem = None
                self._service.metrics.consolidation_up.set(1)
        return False


def _send(process: Process, number: signal.Signals) -> None:
    """Send a signal. `Process.kill` would also look for the exit code, and take it from the event loop."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _end(process: Process) -> int:
    """Tell the process to stop, and kill it if it does not. Return its exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    with anyio.move_on_after(STOP_SECONDS):
        await process.wait()
    if process.returncode is None:
        logger.error("background process killed: it did not stop in time")
        _send(process, signal.SIGKILL)
    code = await process.wait()
    with anyio.move_on_after(1), suppress(anyio.EndOfStream):
        while True:
            await process.stdout.receive()  # the pipe closes once it is read to its end
    await process.aclose()
    return code


@asynccontextmanager
async def run_background(service: Service) -> AsyncGenerator[None]:
    """Run the background work of a service inside the block where its settings say: in a process, here, or nowhere."""
    mode = service.settings.consolidate or "thread"
    if mode == "thread":
        async with run_workers(service):
            service.metrics.consolidation_up.set(1)
            yield
        return
    async with flushing(service), anyio.create_task_group() as group:
        if mode == "process":
            supervisor = Supervisor(service)
            service.background, service.wake = supervisor.background, supervisor.wake
            group.start_soon(supervisor.run)
        yield
        group.cancel_scope.cancel()


async def work_for_service(service: Service) -> None:
    """Do the background work of the service that started this process, until it closes our standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the service decides when work ends
    stopped = anyio.Event()
    loop = asyncio.get_running_loop()
    listener = threading.Thread(target=_listen_to_service, args=(loop, service, stopped), daemon=True)
    async with run_workers(service), anyio.create_task_group() as group:
        listener.start()
        group.start_soon(_report, service)
        group.start_soon(_await_sigterm, stopped)
        await stopped.wait()
        group.cancel_scope.cancel()


def _listen_to_service(loop: asyncio.AbstractEventLoop, service: Service, stopped: anyio.Event) -> None:
    """Pass on each wake and the end of the input. Exit if the process then hangs: nobody else would end it."""
    with suppress(RuntimeError):  # the loop has ended
        while os.read(sys.stdin.fileno(), 4_096):
            loop.call_soon_threadsafe(service.wake)
        loop.call_soon_threadsafe(stopped.set)
    time.sleep(STOP_SECONDS)
    os._exit(1)


async def _await_sigterm(stopped: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            stopped.set()


async def _report(service: Service) -> None:
    with suppress(BrokenPipeError):  # the service is gone; the end of the input says so, too
        while True:
            sys.stdout.write(json.dumps(service.metrics.render_work().decode()) + "\n")
            sys.stdout.flush()
            await anyio.sleep(REPORT_SECONDS)
