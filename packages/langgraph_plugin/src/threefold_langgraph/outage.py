"""`Outbox`: checkpoints that could not be sent in an outage; they are kept in memory and sent in order afterwards."""

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

PAUSE = 1.0  # seconds between two attempts to send
MAX_BYTES = 64 * 2**20
MAX_LOADED = 10_000


@dataclass(frozen=True)
class Change:
    """One change to store, in the service and in this process."""

    call: Call[Stored]
    keep: Callable[[InMemorySaver], object]


class _Unsent(NamedTuple):
    owner: Owner
    call: Call[Stored]


class Outbox:
    """Unsent calls in order, and their checkpoints for the runs of this process. The copies of a saver share it."""

    def __init__(self, client: MemoryClient) -> None:
        self.refused = 0
        """Number of calls that the service refused after an outage; they are lost and logged."""
        self._client = client
        self._unsent: deque[_Unsent] = deque()
        self._bytes = 0
        self._kept: dict[Owner, InMemorySaver] = {}
        self._loaded: Bounded[tuple[Owner, str], None] = Bounded(MAX_LOADED)
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._unsent)

    def add(self, owner: Owner, change: Change) -> None:
        """Keep a change that could not be sent. Raise Unreachable if 64 MiB are kept already."""
        size = len(change.call.body or b"")
        with self._lock:
            if self._bytes + size > MAX_BYTES:
                raise Unreachable(
                    f"the service does not answer, and the unsent checkpoints have {self._bytes} bytes already"
                )
            change.keep(self._kept.setdefault(owner, InMemorySaver()))
            self._unsent.append(_Unsent(owner, change.call))
            self._bytes += size
            self._start()

    def find(self, owner: Owner, config: RunnableConfig, serde: SerializerProtocol) -> CheckpointTuple | None:
        """Return an unsent checkpoint, or None."""
        with self._lock:
            if owner not in self._kept:
                return None
            kept = copy.copy(self._kept[owner])
            kept.serde = serde
            return kept.get_tuple(config)

    def loaded(self, owner: Owner, checkpoint_id: str) -> None:
        """Remember that a run continues a checkpoint, which other runs may have continued before."""
        with self._lock:
            self._loaded[owner, checkpoint_id] = None

    def is_new(self, owner: Owner, config: RunnableConfig) -> bool:
        """Return True for a call of a subgraph that has no checkpoint yet: this process made the step around it."""
        configurable: dict[str, Any] = config.get("configurable", {})
        ns: str = configurable.get("checkpoint_ns") or ""
        parents: dict[str, str] = configurable.get("checkpoint_map") or {}
        with self._lock:
            return ":" in ns.rpartition("|")[2] and not any((owner, made) in self._loaded for made in parents.values())

    def flush(self, owner: Owner | None = None) -> bool:
        """Send the unsent calls, in order for each owner, as far as the service accepts them.

        Return True if no call is left, of this owner if one is given.
        """
        with self._sending, suppress(*OUTAGE):
            skipped: set[Owner] = set()
            for unsent in self._unsent_calls():
                if unsent.owner not in skipped and not self._send(unsent):
                    skipped.add(unsent.owner)
        with self._lock:
            return not self._unsent if owner is None else owner not in self._kept

    def _unsent_calls(self) -> list[_Unsent]:
        with self._lock:
            return list(self._unsent)

    def _send(self, unsent: _Unsent) -> bool:
        """Send one call. Return False if the service answers but failed; raise in an outage, which ends the sending."""
        client = self._client.acting_as(user=unsent.owner.user, agent=unsent.owner.agent)
        try:
            client.send(unsent.call)
        except OUTAGE:
            raise
        except ThreefoldError as error:
            if not is_refusal(error):
                return False
            self.refused += 1
            logger.error("the service refused an unsent checkpoint, which is lost: %s", error)
        self._sent(unsent)
        return True

    def _sent(self, unsent: _Unsent) -> None:
        with self._lock:
            self._bytes -= len(unsent.call.body or b"")
            self._unsent.remove(unsent)
            if all(other.owner != unsent.owner for other in self._unsent):
                del self._kept[unsent.owner]

    def _start(self) -> None:
        """Start a thread that sends until no call is left."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._keep_sending, name="threefold-outbox", daemon=True)
            self._thread.start()

    def _keep_sending(self) -> None:
        while True:
            time.sleep(PAUSE)
            self.flush()
            with self._lock:
                if not self._unsent:  # a later call starts another thread
                    self._thread = None
                    return
