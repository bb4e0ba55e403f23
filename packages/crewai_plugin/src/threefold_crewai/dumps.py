"""Parse the texts that CrewAI builds from a task or a conversation before it saves them."""

from __future__ import annotations

from typing import Self

_TASK, _INPUT, _AGENT, _EXPECTED, _RESULT = "Task: ", "Input: ", "\nAgent: ", "\nExpected result: ", "\nResult: "
_FINAL_ANSWER = "Final Answer:"


class QuestionAndAnswer(str):
    """A text that CrewAI built: a question or task, and the answer of an agent.

    It stays a `str` while CrewAI passes it on. A text of the same form that a model saves is not of this class, so that
    a model cannot attribute its words to somebody else.
    """

    question: str
    role: str
    answer: str
    by_user: bool

    def __new__(cls, text: str, question: str, role: str, answer: str, *, by_user: bool) -> Self:
        self = super().__new__(cls, text)
        self.question, self.role, self.answer, self.by_user = question, role, final_answer(answer), by_user
        return self


def parse_exchange(text: str, question: str | None) -> QuestionAndAnswer | None:
    """Return the parts of a text that an executor of CrewAI built; None for another text.

    Only the `question` for which CrewAI has just asked memory is of the user: an application may also pass texts of a
    model, which may have any form.
    """
    head = f"{_INPUT}{question}{_AGENT}"
    if question is not None and text.startswith(head):
        role, _, answer = text[len(head) :].partition(_RESULT)
        return QuestionAndAnswer(text, question, role, answer, by_user=True)
    asked, agent, rest = text.partition(_AGENT)
    role, result, answer = rest.partition(_RESULT)
    start = next((start for start in (_TASK, _INPUT) if asked.startswith(start)), None)
    if start is None or not agent or not result:
        return None
    return QuestionAndAnswer(text, asked.removeprefix(start), role.partition(_EXPECTED)[0], answer, by_user=False)


def final_answer(text: str) -> str:
    """Return an answer without the thoughts that some models write before it."""
    return text.rpartition(_FINAL_ANSWER)[2].strip()
