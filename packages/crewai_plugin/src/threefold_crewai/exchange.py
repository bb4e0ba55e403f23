"""What CrewAI makes of a task or a conversation before it saves it, taken apart again."""

from __future__ import annotations

import re
from typing import Self

_DUMP = re.compile(r"(?:Task|Input): (.*?)\nAgent: (.*?)\n(?:Expected result: .*?\n)?Result: (.*)", re.DOTALL)
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
    known = f"Input: {question}\nAgent: "
    if question is not None and text.startswith(known):
        role, _, said = text[len(known) :].partition("\nResult: ")
        return Exchange(text, question, role, said, by_user=True)
    found = _DUMP.fullmatch(text)
    return Exchange(text, found[1], found[2], found[3], by_user=False) if found else None


def final_answer(text: str) -> str:
    """The answer without the thoughts that some models write before it."""
    return text.rpartition(_FINAL_ANSWER)[2].strip()
