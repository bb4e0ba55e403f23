"""What CrewAI makes of a task or a conversation before it saves it, taken apart again."""

from __future__ import annotations

import re

_TASK = re.compile(r"Task: (?P<asked>.*?)\nAgent: (?P<role>.*?)\nExpected result: .*?\nResult: (?P<said>.*)", re.DOTALL)
_CONVERSATION = re.compile(r"Input: (?P<asked>.*?)\nAgent: (?P<role>.*?)\nResult: (?P<said>.*)", re.DOTALL)
_FINAL_ANSWER = "Final Answer:"


class Exchange(str):
    """A text that CrewAI put together: what was asked, and what an agent said to it.

    It remains a `str` on its way through CrewAI. A text of the same form that a model wants to save is none, so a model
    cannot make its own words somebody else's.
    """

    asked: str
    role: str
    said: str


def exchange_of(text: str) -> Exchange | None:
    """A text as CrewAI's executors put it together, or None. The shortest question counts: words that pass for the
    agent's are trusted less than those that pass for the user's."""
    found = _TASK.fullmatch(text) or _CONVERSATION.fullmatch(text)
    if found is None:
        return None
    exchange = Exchange(text)
    exchange.asked, exchange.role, exchange.said = found["asked"], found["role"], final_answer(found["said"])
    return exchange


def final_answer(text: str) -> str:
    """The answer without the thoughts that some models write before it."""
    return text.rpartition(_FINAL_ANSWER)[2].strip()
