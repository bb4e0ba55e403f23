"""Whether writes and recalls are slower with a slow model, or with one that never answers.

Three services get the same load on 30 sessions that are folded all the time: one without a model, one
whose model takes a second per answer, one whose model hangs. Rounds are interleaved; within a round each latency is
divided by that of the service without a model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from harness import THREEFOLD, Process, machine, started
from load import Make, Measured, drive
from rich.console import Console
from rich.table import Table
from seeding import QUERY_WORDS, TURN_WORDS, Words
from stores import add_engine_options, chosen_engines, stores_of
from talk import request

from threefold_server.storage.engine.migrate import upgrade

SESSIONS = 30
CLIENTS = 8
MODEL_SECONDS = 1.0
HANG_SECONDS = 3_600.0
GOAL = 1.5
MARKS = ("--token-budget", "600", "--compaction-trigger", "400", "--compaction-target", "100", "--embedder", "hash")

console = Console(width=110)


class Model(NamedTuple):
    """How a service gets its digests, and how long an answer of its model takes."""

    name: str
    seconds: float | None


MODELS = (Model("none", None), Model(f"{MODEL_SECONDS:g} s an answer", MODEL_SECONDS), Model("hangs", HANG_SECONDS))


def main() -> None:
    """Measure on each database, and print a table."""
    options = _options()
    os.environ["THREEFOLD_MODEL_API_KEY"] = "not needed"
    kept: dict[str, object] = {"machine": machine(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    for engine in chosen_engines(options):
        with ExitStack() as stack:
            stores = stack.enter_context(stores_of(engine, options.database_url))
            services = {model: stack.enter_context(_serving(model, stores.create())) for model in MODELS}
            ratios = asyncio.run(measure(services, options.rounds, options.seconds))
        console.print(_table(engine, ratios))
        kept[engine] = {f"{operation}, {model.name}": values for (operation, model), values in ratios.items()}
    console.print(f"{machine()}, {datetime.now(UTC).date()}; median of {options.rounds} rounds")
    if options.json:
        Path(options.json).write_text(json.dumps(kept, indent=1))


Ratios = dict[tuple[str, Model], list[float]]


async def measure(services: dict[Model, Process], rounds: int, seconds: float) -> Ratios:
    """Return p95 of each operation with a model divided by that without, per round after a warm-up."""
    ratios: Ratios = defaultdict(list)
    words = Words(seed=5)
    for number in range(rounds + 1):
        for operation, make in {"write": _writes(words), "recall": _recalls(words)}.items():
            found: dict[Model, Measured] = {}
            for model in random.sample(MODELS, len(MODELS)):
                found[model] = await drive(services[model], CLIENTS, seconds, make)
            for model in MODELS[1:]:
                if number:
                    ratios[operation, model].append(found[model].p95 / found[MODELS[0]].p95)
        console.print("warm" if number == 0 else f"round {number} of {rounds}")
    return dict(ratios)


def _writes(words: Words) -> Make:
    def make(client: int, sent: int) -> bytes:
        turns = [{"role": role, "content": words.text(TURN_WORDS), "id": uuid4().hex} for role in ("user", "assistant")]
        return request("/v1/write", "u", {"session_id": f"s{(client + CLIENTS * sent) % SESSIONS}", "turns": turns})

    return make


def _recalls(words: Words) -> Make:
    def make(client: int, sent: int) -> bytes:
        asked = {"query": words.text(QUERY_WORDS), "session_id": f"s{(client + CLIENTS * sent) % SESSIONS}"}
        return request("/v1/recall", "u", asked)

    return make


@contextmanager
def _serving(model: Model, database_url: str) -> Generator[Process]:
    upgrade(database_url)
    command = [THREEFOLD, "serve", "--port", "0", "--database-url", database_url, *MARKS]
    if model.seconds is None:
        with started(*command, "--no-rolling-summary") as process:
            yield process
    else:
        with (
            _endpoint(model.seconds) as url,
            started(*command, "--model", "slow", "--model-base-url", url) as process,
        ):
            yield process


@contextmanager
def _endpoint(seconds: float) -> Generator[str]:
    """Run an OpenAI-compatible endpoint that answers after a delay, or when it is closed."""
    closed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            closed.wait(seconds)
            content = '{"memory": []}' if b"json_object" in asked else "They talked about this and that."
            message = {"role": "assistant", "content": content}
            body = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).encode()
            head = f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            with suppress(ConnectionError):  # the service may have ended
                self.wfile.write(head.encode() + body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        closed.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _table(engine: str, ratios: Ratios) -> Table:
    table = Table(title=f"{engine}: p95 with a model's digests, over p95 without, {CLIENTS} clients")
    for column in ("operation", "model", f"ratio (goal: {GOAL:g})"):
        table.add_column(column)
    for (operation, model), values in ratios.items():
        ratio = statistics.median(values)
        table.add_row(operation, model.name, f"{ratio:.2f} {'[green]✓[/]' if ratio <= GOAL else '[red]✗[/]'}")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--quick", action="store_true", help="a trial of one short round")
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    return options


if __name__ == "__main__":
    main()
