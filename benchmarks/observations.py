"""A scripted chat model that answers with LoCoMo's observations, which people wrote about the turns, as facts."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from fixtures.openai_server import Asked, OpenAIServer, Reply, chat_reply

NEW_MESSAGES = re.compile(r"^## New Messages\n(.*)$", re.MULTILINE)
DIALOG = re.compile(r"D\d+:\d+")


class Observer(OpenAIServer):
    """Answers with observations, and says of any two that they are different."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._observed: dict[tuple[str, str], list[tuple[str, list[str]]]] = defaultdict(list)
        self._places: dict[tuple[str, str], str] = {}
        for path in sorted(directory.glob("*.json")):
            self._read(json.loads(path.read_text()))

    def answer(self, asked: Asked) -> Reply:
        """Return the reply to a request for facts or for a comparison."""
        question = asked.body["messages"][1]["content"]
        messages = NEW_MESSAGES.search(question)
        return chat_reply(json.dumps(self._verdicts(question) if messages is None else self._facts(messages[1])))

    def _read(self, document: dict[str, Any]) -> None:
        for name in (name for name in document if re.fullmatch(r"session_\d+", name)):
            turns: list[dict[str, Any]] = document[name]
            turns_by_id = {turn["dia_id"]: (turn["speaker"], turn["text"]) for turn in turns}
            self._places |= {key: place for place, key in turns_by_id.items()}
            observations: dict[str, list[Any]] = document.get(f"{name}_observation", {})
            for text, evidence in (fact for facts in observations.values() for fact in facts):
                places = DIALOG.findall(str(evidence))
                for place in places:
                    self._observed[turns_by_id[place]].append((text, places))

    def _facts(self, messages: str) -> dict[str, Any]:
        seqs: dict[str, int] = {}
        found: dict[str, list[str]] = {}
        for message in json.loads(messages):
            speaker_and_text = message["name"], message["content"].partition(" [shares a photo:")[0]
            if speaker_and_text in self._places:
                seqs[self._places[speaker_and_text]] = message["seq"]
                found |= dict(self._observed[speaker_and_text])
        rows = [
            {"text": text, "sources": [seqs[place] for place in places if place in seqs]}
            for text, places in found.items()
        ]
        return {"memory": rows}

    def _verdicts(self, question: str) -> dict[str, Any]:
        names = [item["new"]["name"] for item in json.loads(question)["comparisons"]]
        return {"verdicts": [{"new": name, "relation": "new", "known": None} for name in names]}
