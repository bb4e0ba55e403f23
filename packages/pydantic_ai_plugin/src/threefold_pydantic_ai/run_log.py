"""What one run says, message by message, whatever becomes of its history and however it ends."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage

from threefold.calls import TurnLike
from threefold_pydantic_ai.messages import SEPARATOR, learn_groups, turns_of


class RunLog:
    """The messages of a run in their order. Histories are looked at whenever they may have grown, because capabilities
    that trim them take messages away again, and a run that is left early tells nobody what it had so far."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._messages: dict[int, ModelMessage] = {}  # by their id(), which nobody else gets while they are here
        self._history: list[ModelMessage] = []
        self._groups: dict[str, str] = {}

    def watch(self, history: list[ModelMessage], *coming: ModelMessage) -> None:
        """Take in what is new in a history, and look at that same list again at the end. What is `coming` is not in it
        yet, and does not say yet whose it is."""
        self._history = history
        self._see_history()
        self._see(coming)

    def turns(self) -> list[TurnLike]:
        """All that the run said until now. The ids are its own and stay, so that nothing is stored twice."""
        self._see_history()
        numbered = enumerate(self._messages.values())
        return [turn for n, said in numbered for turn in turns_of(said, f"{self._run_id}{SEPARATOR}{n}", self._groups)]

    def _see_history(self) -> None:
        for message in self._history:
            learn_groups(message, self._groups)
        self._see(message for message in self._history if message.run_id == self._run_id)

    def _see(self, messages: Iterable[ModelMessage]) -> None:
        for message in messages:
            self._messages.setdefault(id(message), message)
