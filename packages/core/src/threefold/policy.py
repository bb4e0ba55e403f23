"""What a session does in an outage: failure mode, circuit breaker, spool, tails and counters."""

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
"""Errors after which no call is served. Other failures may concern one call only, so the next call is tried."""

THRESHOLD = 2  # failed calls in a row that open the breaker
COOL_DOWN = 5.0  # seconds until an open breaker lets one call through
FLUSH_SECONDS = 5.0  # seconds that a cancelled run may still send; a later run sends the rest
TAIL_TURNS = 30
TAIL_SESSIONS = 256
LARGE_GROUP = 10  # the newest group may have this many times TAIL_TURNS turns
KNOWN_IDENTITIES = 1_024
TAIL_CHARS = 8_000  # of one turn; 256 sessions of 30 such turns are 60 MB at most

log = logging.getLogger("threefold")


@dataclass
class Stats:
    """Counters of the calls and turns of one policy; any thread may read them at any time."""

    outages: int = 0
    """Calls that failed in an outage, or were not tried because the breaker was open."""
    refusals: int = 0
    """Calls that the service refused; the log says why."""
    spooled: int = 0
    """Turns that the call that recorded them could not send; they were put into the spool."""
    replayed: int = 0
    """Turns from the spool that a later call has sent."""
    dropped: int = 0
    """Turns that are lost, because the service refused them or the spool was full."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def add(
        self, *, outages: int = 0, refusals: int = 0, spooled: int = 0, replayed: int = 0, dropped: int = 0
    ) -> None:
        """Add to the counters.

        Args:
            outages: Added to `outages`.
            refusals: Added to `refusals`.
            spooled: Turns, added to `spooled`.
            replayed: Turns, added to `replayed`.
            dropped: Turns, added to `dropped`.
        """
        with self._lock:
            self.outages += outages
            self.refusals += refusals
            self.spooled += spooled
            self.replayed += replayed
            self.dropped += dropped


class CircuitBreaker:
    """Switch that stops calls to a service that does not answer.

    It opens after `threshold` failed calls in a row. While it is open, one call per `cool_down` seconds is tried; the
    first one that is answered closes it.

    Args:
        threshold: Failed calls in a row that open the breaker (default 2).
        cool_down: Seconds until an open breaker lets one call through (default 5).
        clock: Returns the seconds of a monotonic clock.
    """

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
        """Let a call through.

        A call that is let through by an open breaker and then cancelled delays the next try by one cool-down.

        Raises:
            CircuitOpen: The breaker is open and its cool-down is not over.
        """
        with self._lock:
            if self._failures < self._threshold:
                return
            left = self._next_try - self._clock()
            if left > 0:
                raise CircuitOpen(f"the service did not answer {self._failures} calls; next try in {left:.1f} s")
            self._next_try = self._clock() + self._cool_down

    def succeeded(self) -> None:
        """Note that the service answered a call, even with a refusal, and close the breaker."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Note that the service did not answer a call, or could not serve it."""
        with self._lock:
            self._failures += 1
            self._next_try = self._clock() + self._cool_down


class Tails:
    """The newest turns of the sessions of this process, for recalls in an outage."""

    def __init__(self, turns: int = TAIL_TURNS, sessions: int = TAIL_SESSIONS) -> None:
        self._turns = turns
        self._sessions = sessions
        self._tails: OrderedDict[SessionKey, dict[str, Turn]] = OrderedDict()
        self._lock = threading.Lock()

    def extend(self, key: SessionKey, turns: Iterable[Turn]) -> None:
        """Add turns; a turn that is present keeps its position."""
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
        """Add turns of a session that has no tail yet."""
        if not self.read(key):
            self.extend(key, turns)

    def read(self, key: SessionKey) -> list[Turn]:
        """Return the turns of a session, oldest first."""
        with self._lock:
            return list(self._tails.get(key, {}).values())

    def forget_user(self, key: SessionKey) -> None:
        """Delete the tails of this user, because they may contain turns that were erased."""
        with self._lock:
            for other in [other for other in self._tails if other[:2] == key[:2]]:
                del self._tails[other]


def _beyond(tail: Sequence[Turn], limit: int) -> Iterator[str]:
    """Yield the ids of the oldest groups that exceed `limit` turns, without the newest user turn.

    The newest group is included only if it exceeds `LARGE_GROUP` times the limit.
    """
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
    """What sessions do in an outage. One policy is shared by the sessions, threads and event loops of a program.

    Args:
        failure_mode: `soft` goes on without memory, `strict` raises. None (default) takes the mode that the store asks
            for, which is soft until the store has been asked.
        breaker: Stops calls to a service that does not answer (default: `CircuitBreaker()`).
        spool: Keeps unsent writes (default: `MemorySpool()`, which is lost with the process).
        tail_turns: Turns kept per session for recalls in an outage (default 30), for at most 256 sessions.
    """

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
        """Return the failure mode for the store behind a client.

        Args:
            origin: `MemoryClient.origin`.

        Returns:
            The mode of this policy if it was given, else the mode that the store asks for, else `soft`.
        """
        return self._failure_mode or self.store(origin).failure_mode

    def store(self, origin: str) -> StorePolicy:
        """Return the policy of a store, or the default policy if the store has not been asked.

        Args:
            origin: `MemoryClient.origin`.
        """
        return self._stores.get(origin, StorePolicy())

    def knows_store(self, origin: str) -> bool:
        """Return True if the store need not be asked: it was asked, or this policy has an explicit failure mode.

        Args:
            origin: `MemoryClient.origin`.
        """
        return self._failure_mode is not None or origin in self._stores

    def remember_store(self, origin: str, store: StorePolicy) -> None:
        """Remember the policy of a store.

        Args:
            origin: `MemoryClient.origin`.
            store: The policy, as `whoami` returned it.
        """
        self._stores[origin] = store

    def remember_identity(self, key: SessionKey, whoami: WhoAmI) -> None:
        """Remember the verified identity of a user and agent, and the policy of their store.

        Args:
            key: A session of the user and agent.
            whoami: The answer of the service. The newest 1,024 identities are kept.
        """
        self.remember_store(key.origin, whoami.store)
        self._identities[key[:3]] = whoami

    def known_identity(self, key: SessionKey) -> WhoAmI | None:
        """Return the verified identity of a user and agent, or None if the service has not been asked.

        Args:
            key: A session of the user and agent.
        """
        return self._identities.get(key[:3])

    def stamp(self) -> str:
        """Return the name of the next entry of the spool."""
        return self._stamps.next()

    @contextmanager
    def call(self) -> Generator[None]:
        """Guard one call: count and log its failure, and tell the breaker.

        Raises:
            CircuitOpen: The breaker is open, so the call is not made.
        """
        try:
            self.breaker.check()
            yield
        except ThreefoldError as error:
            self._note(error)
            raise
        self.breaker.succeeded()

    def refused(self, error: ThreefoldError) -> None:
        """Log and count a call that the service refused.

        Args:
            error: The refusal.
        """
        log.error("memory refused a call: %s", error)
        self.stats.add(refusals=1)

    def sent(self, entry: Entry, *, late: bool) -> None:
        """Remove an entry that the service has stored from the spool.

        Args:
            entry: The entry.
            late: A later call than the one that recorded the entry has sent it; count it as replayed.
        """
        if self.spool.remove(entry) and late:
            self.stats.add(replayed=len(entry.request.turns))

    def drop(self, entry: Entry) -> None:
        """Remove an entry that is lost from the spool and count its turns as dropped.

        Args:
            entry: An entry that the service refused, or that could not be sent and has no room in the spool.
        """
        self.spool.remove(entry)
        self.stats.add(dropped=len(entry.request.turns))

    def _note(self, error: ThreefoldError) -> None:
        if is_refusal(error):
            self.breaker.succeeded()
            return None if isinstance(error, NotFound) else self.refused(error)  # "not found" is an ordinary answer
        self.stats.add(outages=1)
        if not isinstance(error, CircuitOpen):
            self.breaker.failed()
            log.warning("memory is out of reach: %s", error)
        return None


def is_refusal(error: ThreefoldError) -> bool:
    """Return True if a retry cannot help because the request has to change; else the service failed."""
    return isinstance(error, ServiceError) and error.refusal


def shortened(turn: Turn) -> Turn:
    """Return a turn as a tail keeps it: without payload, at most `TAIL_CHARS` characters long."""
    content = middle_cut(turn.content, TAIL_CHARS)
    cut = turn.cut or len(content) < len(turn.content)
    return turn.model_copy(update={"content": content, "cut": cut, "payload": None})
