"""What to do when the service does not answer: mode, breaker, spool, tail, counters. One guard for all plugins."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from threefold.bounded import Bounded
from threefold.contract import StorePolicy, Turn, WhoAmI
from threefold.errors import CircuitOpen, NotFound, ServiceError, ThreefoldError, Unavailable, Unreachable
from threefold.graphemes import middle_cut
from threefold.spool import Entry, MemorySpool, SessionKey, Spool, Stamps
from threefold.turn_groups import group_turns, newest_user_turn

FailureMode = Literal["soft", "strict"]

OUTAGE = (Unreachable, Unavailable)
"""Nobody is served. Any other failure may be one call's own, so that the next one is worth a try."""

THRESHOLD = 2  # outages in a row that open the breaker
COOL_DOWN = 5.0  # seconds until it lets one call through again
FLUSH_SECONDS = 5.0  # for a run that is being cancelled; what is not sent by then waits for a later one
TAIL_TURNS = 30
TAIL_SESSIONS = 256
LARGE_GROUP = 10  # tails that the newest group alone may fill
KNOWN_IDENTITIES = 1_024
TAIL_CHARS = 8_000  # of one turn: 256 sessions of 30 such turns are 60 MB at most

log = logging.getLogger("threefold")


@dataclass
class Stats:
    """What became of the calls and turns of one policy. Read it at any time."""

    outages: int = 0
    """Calls that the service did not serve, tried or not."""
    refusals: int = 0
    """Calls that were wrong or not allowed: look at the log."""
    spooled: int = 0
    """Turns that had to wait for the service."""
    replayed: int = 0
    """Turns that were sent by a later call than their own."""
    dropped: int = 0
    """Turns that are lost: refused, or no room to wait."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def add(
        self, *, outages: int = 0, refusals: int = 0, spooled: int = 0, replayed: int = 0, dropped: int = 0
    ) -> None:
        """Count."""
        with self._lock:
            self.outages += outages
            self.refusals += refusals
            self.spooled += spooled
            self.replayed += replayed
            self.dropped += dropped


class CircuitBreaker:
    """Opens after `threshold` outages in a row; then lets one call per `cool_down` seconds try again."""

    def __init__(
        self,
        threshold: int = THRESHOLD,
        cool_down: float = COOL_DOWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._cool_down = cool_down
        self._clock = clock
        self._failures = 0
        self._next_try = 0.0
        self._lock = threading.Lock()

    def check(self) -> None:
        """Pass, or raise `CircuitOpen`. A probe that never reports back, being cancelled, only costs one cool-down."""
        with self._lock:
            if self._failures < self._threshold:
                return
            left = self._next_try - self._clock()
            if left > 0:
                raise CircuitOpen(f"the service did not answer {self._failures} calls; next try in {left:.1f} s")
            self._next_try = self._clock() + self._cool_down

    def succeeded(self) -> None:
        """The service answered, if only to refuse."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """The service did not answer, or could not."""
        with self._lock:
            self._failures += 1
            self._next_try = self._clock() + self._cool_down


class Tails:
    """The newest turns of each session seen here, for a recall that the service cannot serve."""

    def __init__(self, turns: int = TAIL_TURNS, sessions: int = TAIL_SESSIONS) -> None:
        self._turns = turns
        self._sessions = sessions
        self._tails: OrderedDict[SessionKey, dict[str, Turn]] = OrderedDict()
        self._lock = threading.Lock()

    def extend(self, key: SessionKey, turns: Iterable[Turn]) -> None:
        """Add turns; a turn that is there already keeps its place."""
        with self._lock:
            tail = self._tails.setdefault(key, {})
            self._tails.move_to_end(key)
            for turn in turns:
                tail[turn.id] = shortened(turn)
            for turn_id in _beyond(list(tail.values()), self._turns):
                del tail[turn_id]
            while len(self._tails) > self._sessions:
                self._tails.popitem(last=False)

    def seed(self, key: SessionKey, turns: Iterable[Turn]) -> None:
        """Take over what the service knows of a session that is new here."""
        if not self.read(key):
            self.extend(key, turns)

    def read(self, key: SessionKey) -> list[Turn]:
        """The turns, oldest first."""
        with self._lock:
            return list(self._tails.get(key, {}).values())

    def forget_user(self, key: SessionKey) -> None:
        """Drop every tail of this user: after an erasure none may show what went."""
        with self._lock:
            for other in [other for other in self._tails if other[:2] == key[:2]]:
                del self._tails[other]


def _beyond(tail: Sequence[Turn], limit: int) -> Iterator[str]:
    """The ids of the oldest whole groups that a tail can do without; a newest group that is far too large is none."""
    left = len(tail)
    newest_user = newest_user_turn(tail) if limit else None
    groups = group_turns(tail)
    for number, group in enumerate(groups, 1):
        if left <= (limit if number < len(groups) else limit * LARGE_GROUP):
            break
        for turn in group:
            if turn is not newest_user:
                left -= 1
                yield turn.id


class Policy:
    """Failure mode, breaker, spool, tails and counters: one per plugin, shared by its sessions, threads and loops."""

    def __init__(
        self,
        *,
        failure_mode: FailureMode | None = None,
        breaker: CircuitBreaker | None = None,
        spool: Spool | None = None,
        tail_turns: int = TAIL_TURNS,
    ) -> None:
        self.breaker = breaker or CircuitBreaker()
        self.spool: Spool = spool or MemorySpool()
        self.tails = Tails(tail_turns)
        self.stats = Stats()
        self._failure_mode: FailureMode | None = failure_mode
        self._stores: dict[str, StorePolicy] = {}
        self._identities: Bounded[tuple[str | None, ...], WhoAmI] = Bounded(KNOWN_IDENTITIES)
        self._stamps = Stamps()

    def failure_mode(self, origin: str) -> FailureMode:
        """Explicit, else what the store asks for, else soft."""
        return self._failure_mode or self.store(origin).failure_mode

    def store(self, origin: str) -> StorePolicy:
        """The store's policy as far as known."""
        return self._stores.get(origin, StorePolicy())

    def knows(self, origin: str) -> bool:
        """Whether there is nothing to ask the store: it was asked, or the mode is given here."""
        return self._failure_mode is not None or origin in self._stores

    def learn(self, origin: str, store: StorePolicy) -> None:
        """Remember a store's policy."""
        self._stores[origin] = store

    def meet(self, key: SessionKey, whoami: WhoAmI) -> None:
        """Remember what the service said about a user and agent, and what the store asks of its clients."""
        self.learn(key.origin, whoami.store)
        self._identities[key[:3]] = whoami

    def met(self, key: SessionKey) -> WhoAmI | None:
        """What the service said about a user and agent, if it was asked."""
        return self._identities.get(key[:3])

    def stamp(self) -> str:
        """The name of the next entry."""
        return self._stamps.next()

    @contextmanager
    def call(self) -> Generator[None]:
        """Around each call: fails at once while the breaker is open, tells outages from refusals, counts both."""
        try:
            self.breaker.check()
            yield
        except ThreefoldError as error:
            self._note(error)
            raise
        self.breaker.succeeded()

    def refused(self, error: ThreefoldError) -> None:
        """Log and count what no retry can help."""
        log.error("memory refused a call: %s", error)
        self.stats.add(refusals=1)

    def sent(self, entry: Entry, *, late: bool) -> None:
        """The service has an entry."""
        if self.spool.remove(entry) and late:
            self.stats.add(replayed=len(entry.request.turns))

    def drop(self, entry: Entry) -> None:
        """The service will never take an entry, or there is no room for it to wait."""
        self.spool.remove(entry)
        self.stats.add(dropped=len(entry.request.turns))

    def _note(self, error: ThreefoldError) -> None:
        if is_refusal(error):
            self.breaker.succeeded()
            return None if isinstance(error, NotFound) else self.refused(error)  # not there: an answer like another
        self.stats.add(outages=1)
        if not isinstance(error, CircuitOpen):
            self.breaker.failed()
            log.warning("memory is out of reach: %s", error)
        return None


def is_refusal(error: ThreefoldError) -> bool:
    """True where the caller has to change; everything else is an outage."""
    return isinstance(error, ServiceError) and error.refusal


def shortened(turn: Turn) -> Turn:
    """A turn for the tail: without payload, and of bounded length."""
    content = middle_cut(turn.content, TAIL_CHARS)
    cut = turn.cut or len(content) < len(turn.content)
    return turn.model_copy(update={"content": content, "cut": cut, "payload": None})
