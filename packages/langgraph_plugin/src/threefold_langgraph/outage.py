"""Checkpoints that the service does not have yet: kept here while it is out of reach, sent in order after."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threefold import MemoryClient
from threefold.bounded import Bounded
from threefold.calls import Call
from threefold.contract import Stored
from threefold.errors import ThreefoldError, Unreachable
from threefold.policy import OUTAGE, is_refusal
from threefold_langgraph.checkpoints import Owner

logger = logging.getLogger("threefold.langgraph")

PAUSE = 1.0  # seconds between attempts to send what waits
MAX_BYTES = 64 * 2**20
MAX_LOADED = 10_000


@dataclass(frozen=True)
class Change:
    """Something to store: in the service, and for the runs of this process."""

    call: Call[Stored]
    hold: Callable[[InMemorySaver], object]


class _Unsent(NamedTuple):
    owner: Owner
    call: Call[Stored]


class Outbox:
    """Calls in order, and their checkpoints for the runs of this process. Shared by the copies of one saver."""

    def __init__(self, client: MemoryClient) -> None:
        self.refused = 0
        """Calls that the service refused when it was back: they are lost, and logged."""
        self._client = client
        self._unsent: deque[_Unsent] = deque()
        self._bytes = 0
        self._held: dict[Owner, InMemorySaver] = {}
        self._loaded: Bounded[tuple[Owner, str], None] = Bounded(MAX_LOADED)
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, owner: Owner, change: Change) -> None:
        """Take what could not be sent, and hold it for the runs of this process."""
        size = len(change.call.body or b"")
        with self._lock:
            if self._bytes + size > MAX_BYTES:
                raise Unreachable(f"the service is out of reach, and {self._bytes} bytes wait for it already")
            change.hold(self._held.setdefault(owner, InMemorySaver()))
            self._unsent.append(_Unsent(owner, change.call))
            self._bytes += size
            self._start()

    def find(self, owner: Owner, config: RunnableConfig, serde: SerializerProtocol) -> CheckpointTuple | None:
        """A checkpoint that waits."""
        with self._lock:
            if owner not in self._held:
                return None
            held = copy.copy(self._held[owner])
            held.serde = serde
            return held.get_tuple(config)

    def loaded(self, owner: Owner, checkpoint_id: str) -> None:
        """Note that a run goes on from a checkpoint, which others may have gone on from before."""
        with self._lock:
            self._loaded[owner, checkpoint_id] = None

    def is_new(self, owner: Owner, config: RunnableConfig) -> bool:
        """True for a call of a subgraph that nobody can have made before, as this process made the step it is in."""
        configurable: dict[str, Any] = config.get("configurable", {})
        ns: str = configurable.get("checkpoint_ns") or ""
        parents: dict[str, str] = configurable.get("checkpoint_map") or {}
        with self._lock:
            return ":" in ns.rpartition("|")[2] and not any((owner, made) in self._loaded for made in parents.values())

    def flush(self, owner: Owner | None = None) -> bool:
        """Send what waits, in order for each owner, as far as the service takes it; True once nothing waits, of this
        owner if one is named."""
        with self._sending, suppress(*OUTAGE):
            stuck: set[Owner] = set()
            for unsent in self._waiting():
                if unsent.owner not in stuck and not self._send(unsent):
                    stuck.add(unsent.owner)
        with self._lock:
            return not self._unsent if owner is None else owner not in self._held

    def _waiting(self) -> list[_Unsent]:
        with self._lock:
            return list(self._unsent)

    def _send(self, unsent: _Unsent) -> bool:
        """False where the service answers, but not to this; an outage raises, as nothing else would pass."""
        client = self._client.acting_as(user=unsent.owner.user, agent=unsent.owner.agent)
        try:
            client.send(unsent.call)
        except OUTAGE:
            raise
        except ThreefoldError as error:
            if not is_refusal(error):
                return False
            self.refused += 1
            logger.error("a checkpoint that waited was refused and is lost: %s", error)
        self._sent(unsent)
        return True

    def _sent(self, unsent: _Unsent) -> None:
        with self._lock:
            self._bytes -= len(unsent.call.body or b"")
            self._unsent.remove(unsent)
            if all(other.owner != unsent.owner for other in self._unsent):
                del self._held[unsent.owner]

    def _start(self) -> None:
        """Send in the background as long as anything waits."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._keep_sending, name="threefold-outbox", daemon=True)
            self._thread.start()

    def _keep_sending(self) -> None:
        while True:
            time.sleep(PAUSE)
            self.flush()
            with self._lock:
                if not self._unsent:  # whatever comes from here on starts another thread
                    self._thread = None
                    return
