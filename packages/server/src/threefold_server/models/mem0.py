"""Extraction of facts by a chat model with Mem0's extraction prompt.

No other code of Mem0 runs. Needs the extra `threefold-server[mem0]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

from anyio import to_thread
from pydantic import BaseModel, ValidationError

from threefold_server.models.instructions import read_both, read_instructions
from threefold_server.models.ports import Candidate, Comparison, ExtractionInput, ModelError, Statement, Verdict
from threefold_server.rules.statements import Relation
from threefold_server.text.packaged import InstallationError

Answer = TypeVar("Answer", bound=BaseModel)


class Chat(Protocol):
    """The part of `ChatModel` that the extractor uses."""

    @property
    def name(self) -> str: ...

    async def ask(self, instructions: str, material: str, *, json: bool = False) -> str: ...


class Mem0Prompts(Protocol):
    """The names of Mem0's prompts module that the extractor uses."""

    ADDITIVE_EXTRACTION_PROMPT: str
    generate_additive_extraction_prompt: Callable[..., str]


class _Memory(BaseModel):
    text: str
    sources: list[int] = []
    attributed_to: Literal["user", "assistant"] = "user"


class _Memories(BaseModel):
    memory: list[_Memory]


class _Verdict(BaseModel):
    new: str
    relation: Relation
    known: str | None = None


class _Verdicts(BaseModel):
    verdicts: list[_Verdict]


class Mem0Extractor:
    """Extracts facts from turns and compares them with known ones, with one call of the chat model each."""

    def __init__(self, chat: Chat, prompts: Path | None = None) -> None:
        own = read_both("facts", prompts)
        self.name = f"openai-{chat.name}-mem0-{version('mem0ai')}-{own.version}"
        self._chat, self._prompts, self._instructions = chat, mem0_prompts(), own.text
        self._compare = read_instructions("compare", prompts).text

    async def extract(self, source: ExtractionInput) -> list[Candidate]:
        """Return the facts that the model proposes, unchecked."""
        material = await to_thread.run_sync(self._material, source)
        reply = await self._chat.ask(self._prompts.ADDITIVE_EXTRACTION_PROMPT, material, json=True)
        memories = parse(reply, _Memories).memory
        shown = {turn.seq for turn in source.turns}
        if memories and all(shown.isdisjoint(memory.sources) for memory in memories):
            raise ModelError("no memory in the model's answer cites a turn that it was shown")
        return [Candidate(memory.text, tuple(memory.sources), memory.attributed_to) for memory in memories]

    async def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return the model's verdicts. Raise ModelError if one is missing or names a statement that was not shown."""
        rows = [{"new": _row(item.new), "known": list(map(_row, item.known))} for item in comparisons]
        material = json.dumps({"comparisons": rows}, ensure_ascii=False)
        reply = await self._chat.ask(self._compare, material, json=True)
        given = {verdict.new: verdict for verdict in parse(reply, _Verdicts).verdicts}
        return [_to_verdict(item, given.get(item.new.name)) for item in comparisons]

    def _material(self, source: ExtractionInput) -> str:
        """Return the material for the prompt, as JSON and single lines only.

        Mem0's layout separates its parts by plain headings, so a line break in a text could fake a heading.
        """
        date = source.turns[-1].said_at.date().isoformat()
        return self._prompts.generate_additive_extraction_prompt(
            summary=json.dumps(source.digest, ensure_ascii=False) if source.digest else "",
            last_k_messages=[
                {"role": turn.role, "content": " ".join(f"{turn.speaker}: {turn.text}".split())}
                for turn in source.before
            ],
            new_messages=[
                {
                    "seq": turn.seq,
                    "role": turn.role,
                    "name": turn.speaker,
                    "date": _date(turn.said_at),
                    "content": turn.text,
                }
                for turn in source.turns
            ],
            timestamp=date,
            current_date=date,  # not today, from which the model could count "yesterday"
            custom_instructions=self._instructions,
        )


@lru_cache(maxsize=1)
def mem0_prompts() -> Mem0Prompts:
    """Load Mem0's prompts from their file, without importing the package.

    Importing it would start its telemetry, write a file into the home directory, and take 1.5 s and 60 MB for clients
    of other services.
    """
    package = find_spec("mem0")
    if package is None or package.origin is None:
        raise InstallationError("extracting facts needs an extra: pip install 'threefold-server[mem0]'")
    path = Path(package.origin).parent / "configs" / "prompts.py"
    loader = SourceFileLoader("threefold_server.models._mem0_prompts", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return cast("Mem0Prompts", module)


def parse(reply: str, form: type[Answer]) -> Answer:
    """Return the first JSON object in a reply that fits `form`. Raise ModelError if the reply has no such object."""
    problem = "has no JSON object"
    for value in _objects(reply):
        try:
            return form.model_validate(value)
        except ValidationError as error:
            problem = f"has no usable {'.'.join(map(str, error.errors()[0]['loc']))}"
    raise ModelError(f"the model's answer {problem}")


def _objects(text: str) -> Iterator[object]:
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
            yield value
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)


def _to_verdict(comparison: Comparison, verdict: _Verdict | None) -> Verdict:
    if verdict is None:
        raise ModelError(f"the model gave no verdict on {comparison.new.name}")
    if verdict.relation == "new":
        return Verdict("new")
    if verdict.known not in {known.name for known in comparison.known}:
        raise ModelError(f"the model compared {comparison.new.name} with a statement it was not shown")
    return Verdict(verdict.relation, verdict.known)


def _row(statement: Statement) -> dict[str, str]:
    return {"name": statement.name, "date": _date(statement.at), "text": statement.text}


def _date(moment: datetime) -> str:
    return moment.strftime("%A, %d %B %Y, %H:%M")
