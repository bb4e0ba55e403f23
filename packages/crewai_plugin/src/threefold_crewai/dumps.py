"""What CrewAI makes of a task or a conversation before it saves it, taken apart again."""

from __future__ import annotations

from typing import Self

_TASK, _INPUT, _AGENT, _EXPECTED, _RESULT = "Task: ", "Input: ", "\nAgent: ", "\nExpected result: ", "\nResult: "
_FINAL_ANSWER = "Final Answer:"


class Exchange(str):
    """A text that CrewAI put together: what was asked, and what an agent said to it.

    It remains a `str` on its way through CrewAI. A text of the same form that a model wants to save is none, so a model
    cannot make its own words somebody else's.
    """

    asked: str
    role: str
    said: str
    by_user: bool

    def __new__(cls, text: str, asked: str, role: str, said: str, *, by_user: bool) -> Self:
        self = super().__new__(cls, text)
        self.asked, self.role, self.said, self.by_user = asked, role, final_answer(said), by_user
        return self


def exchange_of(text: str, question: str | None) -> Exchange | None:
    """A text as CrewAI's executors put it together, or None.

    Only the `question` that CrewAI has just asked memory for is the user's: an application may have texts of a model
    taken apart, too, and those may look like anything.
    """
    known = f"{_INPUT}{question}{_AGENT}"
    if question is not None and text.startswith(known):
        role, _, said = text[len(known) :].partition(_RESULT)
        return Exchange(text, question, role, said, by_user=True)
    asked, agent, answer = text.partition(_AGENT)
    role, result, said = answer.partition(_RESULT)
    start = next((start for start in (_TASK, _INPUT) if asked.startswith(start)), None)
    if start is None or not agent or not result:
        return None
    return Exchange(text, asked.removeprefix(start), role.partition(_EXPECTED)[0], said, by_user=False)


def final_answer(text: str) -> str:
    """The answer without the thoughts that some models write before it."""
    return text.rpartition(_FINAL_ANSWER)[2].strip()
