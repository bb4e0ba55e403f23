"""Fault trials: kill, stop and restart services and databases under load, then count every turn.

Each acknowledged turn must be stored once, in its writer's order, and finally be indexed, folded and read for facts
once. The exit status is the number of failed trials. `make test` runs a small version of each trial.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from fixtures.faults import PAUSE, Serving, Writers, check_consolidated, check_turns, cut_connections, stored_turns
from fixtures.openai_server import Asked, OpenAIServer, Reply, chat_reply, late
from fixtures.pooler import PROGRAM, PgBouncer
from fixtures.postgres import Databases, PostgresServer, migrate
from threefold import MemoryClient
from threefold.calls import Deadlines
from threefold.policy import Policy
from threefold.session import MemorySession
from threefold.spool import DirectorySpool

SESSIONS = ["own 0", "own 1", "shared", "shared"]
MARKS = ("--token-budget", "200", "--compaction-trigger", "150", "--compaction-target", "50")
TURNS_BETWEEN_FAULTS = 40
OUTAGE_SECONDS = 30.0
EXTRACTION_SECONDS = 5.0
STATEMENT = "Ana lives in Oslo."
LEASE_SECONDS = 90  # another worker takes over the tasks of a killed process after a minute

console = Console(width=110)


class Skipped(Exception):
    """Raised if this machine cannot run a trial, with the reason."""


TENTH = re.compile(r"The heron of writer \d+ lands \d*0 times\.")
ROW = re.compile(rf'"seq": (\d+),[^{{}}]*?"content": "({TENTH.pattern})"')


class HeronModel(OpenAIServer):
    """A scripted model: extracts a fact from every tenth turn of a writer, calls each one new, and writes digests."""

    def answer(self, asked: Asked) -> Reply:
        material = str(asked.body["messages"][-1]["content"])
        if "response_format" not in asked.body:
            return chat_reply("The heron lands again and again.")
        if material.startswith('{"comparisons"'):
            rows = [{"new": row["new"]["name"], "relation": "new"} for row in json.loads(material)["comparisons"]]
            return chat_reply(json.dumps({"verdicts": rows}))
        drawn = [{"text": text, "sources": [int(seq)]} for seq, text in ROW.findall(material)]
        return chat_reply(json.dumps({"memory": drawn}))


def endpoint(model: OpenAIServer) -> tuple[str, ...]:
    """Yield the options of a service that uses this model."""
    return "--model", "scripted", "--model-base-url", model.url


@dataclass
class House:
    """A directory, a Postgres server, and services on separate databases."""

    directory: Path
    server: PostgresServer
    stack: ExitStack
    databases: Databases = field(init=False)

    def __post_init__(self) -> None:
        self.databases = Databases(self.server.admin_url)
        self.databases.create_role()

    def database(self, engine: str, disk: Path | None = None) -> str:
        """Create a database with the schema, with its files on `disk`, and return its URL."""
        if engine == "SQLite":
            url = f"sqlite:///{tempfile.mkdtemp(dir=disk or self.directory)}/threefold.db"
        else:
            name = self.databases.create()
            self.databases.create_extension(name)
            if disk is not None:
                self.databases.move(name, disk)
            url = self.databases.url(name)
        migrate(url)
        return url

    def serve(self, url: str, *options: str) -> Serving:
        """Run a service that folds after about a dozen turns."""
        log = Path(tempfile.mkstemp(dir=self.directory, suffix=".log")[1])
        return self.stack.enter_context(Serving(log, "--database-url", url, *MARKS, *options))


def kill_service(house: House, engine: str, faults: int) -> str:
    """Kill the service (-9) repeatedly while it indexes, folds and extracts facts."""
    url = house.database(engine)
    service = house.serve(url, *endpoint(house.stack.enter_context(HeronModel())))
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for _ in range(faults):
            writers.wait_for(TURNS_BETWEEN_FAULTS)
            service.kill()
            service.start()
        writers.wait_for(TURNS_BETWEEN_FAULTS)
    counted = count(url, service, writers)
    with service.client(timeout=30.0) as client:
        return f"{counted}, {check_extracted(client, list(writers.turns))} facts"


def stop_service(house: House, engine: str, faults: int) -> str:
    """Stop the service by SIGTERM under load: running requests are answered, and the exit status is 0."""
    url = house.database(engine)
    service = house.serve(url)
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for _ in range(faults):
            writers.wait_for(TURNS_BETWEEN_FAULTS)
            assert service.stop() == 0
            service.start()
        writers.wait_for(TURNS_BETWEEN_FAULTS)
    assert set(writers.failures) <= {"Unreachable"}, writers.failures
    return count(url, service, writers)


def four_processes(house: House, engine: str, faults: int) -> str:
    """Run four processes on one database, which write 500 turns each into one session."""
    url = house.database(engine)
    services = [house.serve(url) for _ in range(4)]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(Writers(service.client, ["shared"], first_writer=number))
            for number, service in enumerate(services)
        ]
        for each in writers:
            each.wait_for(500 - each.total)
    turns = [turn_id for each in writers for turn_id in each.turns["shared"]]
    assert not any(each.failures for each in writers)
    with services[0].client() as client:
        check_turns(client, {"shared": turns})
        check_consolidated(url, client, ["shared"], timeout=LEASE_SECONDS)
    return f"{len(turns)} turns"


def restart_postgres(house: House, engine: str, faults: int) -> str:
    """Restart and kill Postgres alternately."""
    url = house.database(engine)
    service = house.serve(url)
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for number in range(faults):
            writers.wait_for(TURNS_BETWEEN_FAULTS)
            house.server.stop() if number % 2 else house.server.kill()
            house.server.start()
        writers.wait_for(TURNS_BETWEEN_FAULTS)
    assert set(writers.failures) <= {"Unavailable"}, writers.failures
    return count(url, service, writers)


@contextmanager
def small_disk(parent: Path) -> Generator[Path]:
    """Mount a disk of 64 MB."""
    disk = Path(tempfile.mkdtemp(dir=parent))
    parent.chmod(0o755)  # Postgres runs as another user
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        raise Skipped("mounting a small disk needs root, and Linux")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def disk_full(house: House, engine: str, faults: int) -> str:
    """Fill the disk: errors are clear, nothing is half-stored, and the service recovers by itself.

    The log of Postgres is on another disk, because a full log disk stops the server, which another trial covers.
    """
    disk = house.stack.enter_context(small_disk(house.directory))
    url, filler = house.database(engine, disk), disk / "filler"
    service = house.serve(url)
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for number in range(faults):
            writers.wait_for(TURNS_BETWEEN_FAULTS)
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            while writers.failures.total() <= number * len(SESSIONS):
                time.sleep(PAUSE)
            with service.client() as client:
                assert client.recall("heron", session_id="shared").window, "it does not answer while the disk is full"
            filler.unlink()
        writers.wait_for(TURNS_BETWEEN_FAULTS)
    assert set(writers.failures) == {"Unavailable"}, writers.failures
    return count(url, service, writers)


def cut_idle_and_busy(house: House, engine: str, faults: int) -> str:
    """End every connection to Postgres on the server under load: only running calls may fail."""
    url = house.database(engine)
    service = house.serve(url)
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for _ in range(faults):
            writers.wait_for(TURNS_BETWEEN_FAULTS)
            cut_connections(url)
        writers.wait_for(TURNS_BETWEEN_FAULTS)
    assert set(writers.failures) <= {"Unavailable"}, writers.failures
    assert writers.failures.total() <= faults * len(SESSIONS), writers.failures
    return count(url, service, writers)


def behind_pgbouncer(house: House, engine: str, faults: int) -> str:
    """Run behind a real PgBouncer in transaction mode, which is killed and started again."""
    if PROGRAM is None:
        raise Skipped("PgBouncer is not installed")
    url = house.database(engine)
    pooler = house.stack.enter_context(PgBouncer(url))
    service = house.serve(pooler.url)
    with Writers(partial(service.client, timeout=5.0), SESSIONS) as writers:
        for _ in range(faults):
            writers.wait_for(TURNS_BETWEEN_FAULTS)
            pooler.kill()
            pooler.start()
        writers.wait_for(TURNS_BETWEEN_FAULTS)
    assert set(writers.failures) <= {"Unavailable"}, writers.failures
    return count(url, service, writers)


def facts_at_once(house: House, engine: str, faults: int) -> str:
    """Extract one fact from two sessions in two processes; meanwhile forget one session and save the fact."""
    model = house.stack.enter_context(OpenAIServer())
    model.otherwise = late(chat_reply(json.dumps({"memory": [{"text": STATEMENT, "sources": [1]}]})))
    url = house.database(engine)
    one, other = house.serve(url, *endpoint(model)), house.serve(url, *endpoint(model))
    with one.client(timeout=30.0) as client, other.client(timeout=30.0) as second:
        for session, writer in (("s1", client), ("s2", second)):
            writer.write(session, [{"role": "user", "content": STATEMENT}])
            writer.end(session)
        while len(model.asked) < 2:
            time.sleep(PAUSE)
        saved = client.save(STATEMENT)
        client.forget(session_id="s1")
        time.sleep(EXTRACTION_SECONDS)
        model.let_go()
        status = client.wait("s2", timeout=LEASE_SECONDS)
        found = [
            (fact.id, [source.session_id for source in fact.sources]) for fact in client.list(kinds=["fact"]).items
        ]
        assert (found, status.extracted_upto) == ([(saved.id, ["s2"])], 1), found
    return f"1 fact with 1 source, {len(model.asked)} calls of the model"


class Agent:
    """A client that continues to write while the service is down."""

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.turns: list[str] = []
        self.longest = 0.0

    def write(self, seconds: float) -> None:
        """Write turn after turn for a while."""
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            self.turns.append(f"0.{len(self.turns)}")
            self.session.record([{"role": "user", "content": "The heron lands.", "id": self.turns[-1]}])
            self.longest = max(self.longest, time.monotonic() - began)


def outage_with_spool(house: House, engine: str, faults: int) -> str:
    """Stop the service for half a minute while an agent continues to write."""
    url = house.database(engine)
    service = house.serve(url)
    with service.client() as client:
        spool = DirectorySpool(tempfile.mkdtemp(dir=house.directory))
        agent = Agent(MemorySession(client, "spooled", policy=Policy(spool=spool)))
        for _ in range(faults):
            agent.write(1)
            service.kill()
            agent.write(OUTAGE_SECONDS)
            service.start()
            agent.write(1)
        agent.session.flush()
        assert [turn.id for turn in stored_turns(client, "spooled")] == agent.turns
        assert agent.longest < Deadlines().write, f"the agent waited {agent.longest:.1f} s"
        check_consolidated(url, client, ["spooled"], timeout=LEASE_SECONDS)
    spooled = agent.session.stats.spooled
    return f"{len(agent.turns)} turns, {spooled} had to wait; longest call {agent.longest:.2f} s"


def count(url: str, service: Serving, writers: Writers) -> str:
    """Check all stored turns, and return a summary."""
    with service.client(timeout=30.0) as client:
        check_turns(client, writers.turns)
        check_consolidated(url, client, list(writers.turns), timeout=LEASE_SECONDS)
    return f"{writers.total} turns, {writers.failures.total()} calls sent again"


def check_extracted(client: MemoryClient, sessions: Sequence[str]) -> int:
    """Check that every tenth turn gave one fact, once; return the number of facts."""
    said: list[tuple[str, str, int]] = []
    for session in sessions:
        client.end(session)
        client.wait(session, timeout=LEASE_SECONDS)
        said += [(turn.content, session, turn.seq) for turn in stored_turns(client, session)]
    drawn = [
        (fact.text, source.session_id, source.from_seq)
        for fact in client.iter_memories(kinds=["fact"])
        for source in fact.sources
    ]
    wanted = Counter(turn for turn in said if TENTH.fullmatch(turn[0]))
    assert Counter(drawn) == wanted, f"lacking {wanted - Counter(drawn)}, too many {Counter(drawn) - wanted}"
    return len(drawn)


Trial = Callable[[House, str, int], str]
TRIALS: list[tuple[Trial, str, int]] = [
    (kill_service, "SQLite", 20),
    (kill_service, "Postgres", 20),
    (stop_service, "SQLite", 5),
    (stop_service, "Postgres", 5),
    (four_processes, "Postgres", 0),
    (restart_postgres, "Postgres", 10),
    (cut_idle_and_busy, "Postgres", 10),
    (disk_full, "SQLite", 2),
    (disk_full, "Postgres", 2),
    (behind_pgbouncer, "Postgres", 5),
    (facts_at_once, "SQLite", 0),
    (facts_at_once, "Postgres", 0),
    (outage_with_spool, "SQLite", 1),
    (outage_with_spool, "Postgres", 1),
]
"""Trial, engine, and how often its fault comes."""


@contextmanager
def open_house() -> Generator[House]:
    """Create a temporary directory and server for one trial."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threefold-soak-")))
        yield House(directory, stack.enter_context(PostgresServer()), stack)


def run(trial: Trial, engine: str, faults: int) -> tuple[bool, str]:
    """Run one trial; return False and the reason if it failed."""
    try:
        with open_house() as house:
            return True, trial(house, engine, faults)
    except AssertionError as error:
        return False, str(error).split("\n")[0]
    except Skipped as reason:
        return True, f"SKIPPED: {reason}"


def main() -> int:
    """Run every trial and print a table."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="at most so many faults per trial (default: 20)")
    parser.add_argument("--only", default="", metavar="TEXT", help="trials whose name has this")
    options = parser.parse_args()
    logging.getLogger("threefold").setLevel(logging.CRITICAL)  # of clients whose calls fail on purpose
    table = Table("trial", "engine", "faults", "seconds", "outcome", "", box=None)
    failed = 0
    for trial, engine, most in TRIALS:
        name, faults = trial.__name__.replace("_", " "), min(most, options.faults)
        if options.only not in name:
            continue
        console.print(f"{name}, {engine} …")
        began = time.monotonic()
        passed, outcome = run(trial, engine, faults)
        failed += not passed
        took = f"{time.monotonic() - began:.0f}"
        table.add_row(name, engine, str(faults), took, outcome, "ok" if passed else "FAILED")
    console.print(table)
    return failed


if __name__ == "__main__":
    sys.exit(main())
