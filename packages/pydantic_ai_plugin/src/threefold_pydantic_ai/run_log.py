"""`RunLog`: the messages of one run, kept even if its history is trimmed or the run is left early."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage

from threefold.calls import TurnLike
from threefold_pydantic_ai.messages import SEPARATOR, learn_groups, turns_of


class RunLog:
    """The messages of a run, in order.

    The history is read whenever it may have grown: a capability may trim it, and a run that is left early does not
    report its messages.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._messages: dict[int, ModelMessage] = {}  # by id(), which is unique while the message is kept here
        self._history: list[ModelMessage] = []
        self._groups: dict[str, str] = {}

    def watch(self, history: list[ModelMessage], *new: ModelMessage) -> None:
        """Add the new messages of a history, and read the same list again in `turns`.

        The messages in `new` are not in the history yet and have no run id yet.
        """
        self._history = history
        self._add_history()
        self._add(new)

    def turns(self) -> list[TurnLike]:
        """Return all messages of the run so far as turns. Their ids do not change, so that no turn is stored twice."""
        self._add_history()
        numbered = enumerate(self._messages.values())
        return [
            turn for n, message in numbered for turn in turns_of(message, f"{self._run_id}{SEPARATOR}{n}", self._groups)
        ]

    def _add_history(self) -> None:
        for message in self._history:
            learn_groups(message, self._groups)
        self._add(message for message in self._history if message.run_id == self._run_id)

    def _add(self, messages: Iterable[ModelMessage]) -> None:
        for message in messages:
            self._messages.setdefault(id(message), message)
