"""Reading of conversation files, as JSON lines or in the format of LoCoMo.

Each reading of a file gives a turn the same id.

JSON lines: one turn per line, as in `{"session_id": "s1", "role": "user", "content": "Hello."}`, with any other field
of a turn, such as `name`, `created_at` or `id`. LoCoMo: one JSON object with `speaker_a`, `speaker_b` and, for each N,
`session_N` (a list of `{speaker, dia_id, text, blip_caption?}`) and `session_N_date_time`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from threefold.checks import problem
from threefold.contract import TurnIn
from threefold.contract.common import Id

LOCOMO_DATE = "%I:%M %p on %d %B, %Y"
LOCOMO_DATE_EXAMPLE = "1:56 pm on 8 May, 2023"


@dataclass(frozen=True)
class FileTurn:
    """One turn of a file, with its location for messages (`talk.jsonl:2`)."""

    location: str
    session_id: str
    turn: TurnIn


@dataclass(frozen=True)
class Unreadable:
    """An entry that is no valid turn, with the reason. Its content is not quoted, as messages may be logged."""

    location: str
    problem: str


@dataclass(frozen=True)
class Conversation:
    """A file: its number of entries, and an iterator that reads them."""

    length: int
    entries: Iterator[FileTurn | Unreadable]


class Line(TurnIn):
    """One line of a JSON-lines file."""

    session_id: Id


class LocomoTurn(BaseModel):
    """The fields of a LoCoMo turn that are used."""

    speaker: Id
    dia_id: Id
    text: str
    blip_caption: str | None = None

    @property
    def content(self) -> str:
        """The text, with the caption of a shared photo."""
        return f"{self.text} [shares a photo: {self.blip_caption}]" if self.blip_caption else self.text


def open_conversation(path: Path) -> Conversation:
    """Open a file of either format. A .json file that is no LoCoMo document is read as JSON lines."""
    document = _locomo_document(path) if path.suffix == ".json" else None
    if document is not None:
        return Conversation(sum(map(len, _sessions(document).values())), locomo_entries(document, path.stem))
    with path.open("rb") as file:
        return Conversation(sum(1 for _ in file), line_entries(path))


def line_entries(path: Path) -> Iterator[FileTurn | Unreadable]:
    """Yield the turns of a JSON-lines file. Empty lines are skipped."""
    seen: Counter[str] = Counter()
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if text.strip():
                yield _read_line(text, f"{path}:{number}", seen)


def locomo_entries(document: Mapping[str, Any], stem: str) -> Iterator[FileTurn | Unreadable]:
    """Yield the turns of a LoCoMo document: speaker_a as user, speaker_b as assistant, one second apart."""
    for name, turns in _sessions(document).items():
        date = str(document.get(f"{name}_date_time"))
        try:
            start = datetime.strptime(date, LOCOMO_DATE).replace(tzinfo=UTC)
        except ValueError:
            yield Unreadable(f"{stem}:{name}", f"{name}_date_time is not like {LOCOMO_DATE_EXAMPLE!r}")
            continue
        for number, turn in enumerate(turns):
            location = f"{stem}:{name}:{number + 1}"
            yield _read_locomo_turn(turn, location, f"{stem}/{name}", document, start + timedelta(seconds=number))


def _read_line(text: bytes, location: str, seen: Counter[str]) -> FileTurn | Unreadable:
    try:
        line = Line.model_validate(json.loads(text))
    except ValidationError as error:
        return Unreadable(location, _problem(error))
    except RecursionError:
        return Unreadable(location, "the JSON is nested too deeply")
    except ValueError as error:
        return Unreadable(location, f"not valid JSON: {error}")
    turn = TurnIn.model_validate(line.model_dump(exclude={"session_id"}, exclude_unset=True))
    if turn.id is None:
        turn = turn.model_copy(update={"id": _stable_id(line, seen)})
    return FileTurn(location, line.session_id, turn)


def _stable_id(line: Line, seen: Counter[str]) -> str:
    """Return the hash of the line and its occurrence number, so that ids stay the same when other lines change."""
    digest = hashlib.sha256(line.model_dump_json().encode()).hexdigest()[:32]
    seen[digest] += 1
    return f"{digest}-{seen[digest]}"


def _locomo_document(path: Path) -> Mapping[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any]", document) if isinstance(document, dict) and "speaker_a" in document else None


def _sessions(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [name for name, value in document.items() if re.fullmatch(r"session_\d+", name) and isinstance(value, list)]
    return {name: document[name] for name in names}


def _read_locomo_turn(
    value: object, location: str, session_id: str, document: Mapping[str, Any], at: datetime
) -> FileTurn | Unreadable:
    try:
        spoken = LocomoTurn.model_validate(value)
        turn = TurnIn(
            role="user" if spoken.speaker == document["speaker_a"] else "assistant",
            name=spoken.speaker,
            content=spoken.content,
            id=spoken.dia_id,
            created_at=at,
        )
    except ValidationError as error:
        return Unreadable(location, _problem(error))
    return FileTurn(location, session_id, turn)


def _problem(error: ValidationError) -> str:
    items = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'turn'}: {problem(item['msg'])}" for item in items[:5])
