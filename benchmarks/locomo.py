"""Recall quality on LoCoMo: every question asked from a new session, compared with the evidence that its authors named.

Each conversation is replayed through the HTTP API as one user's sessions (speaker_a as user, speaker_b as assistant).
The score of a question is the share of its evidence turns among the sources of the first k memories. Questions of
categories 1 to 4 have answers. Those of category 5 have none, and small talk asks for nothing: for both, a good
`min_score` returns nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import machine, running_service
from rich.console import Console
from rich.progress import track
from rich.table import Table

from threefold import MemoryClient
from threefold.contract import RecalledMemory, RecallResponse
from threefold_server.cli.conversations import FileTurn, open_conversation

DEPTHS = (5, 10, 20)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6)
ANSWERABLE = ("1", "2", "3", "4")
UNANSWERABLE = "5"
EVIDENCE = re.compile(r"D:?(\d+):(\d+)")  # the data writes "D8:6; D9:17" and "D:11:26" as well
CATEGORIES = {"1": "multi-hop", "2": "temporal", "3": "open-domain", "4": "single-hop", "5": "unanswerable"}
SMALL_TALK = (
    "thanks, bye!",
    "ok great",
    "haha that's funny",
    "good morning",
    "how are you?",
    "see you later",
    "sounds good to me",
    "no worries",
    "what's up?",
    "could you repeat that please?",
    "sure, go ahead",
    "never mind",
    "have a nice day",
    "I see",
    "cool, thank you so much",
    "one moment please",
    "yes please",
    "not right now",
    "hello again",
    "that makes sense",
)


@dataclass
class Score:
    """Measurements over the questions of one category."""

    recall: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    reciprocal_rank: list[float] = field(default_factory=list[float])
    best: list[float] = field(default_factory=list[float])
    """The largest absolute score (cosine or coverage) among the memories of each question."""


def main() -> None:
    """Run the benchmark and print its tables."""
    options = _options()
    scores: dict[str, Score] = defaultdict(Score)
    latencies: list[float] = []
    started = time.perf_counter()
    with (
        facts_model(options) as model,
        running_service(options.database_url, "--embedder", options.embedder, *model) as url,
    ):
        for path in sorted(Path(options.data).glob("*.json")):
            with MemoryClient(url, user=path.stem, agent="locomo", timeout=60.0) as memory:
                replay(memory, path)
                ask_all(memory, path, scores, latencies)
    report(options, scores, latencies, time.perf_counter() - started)


@contextmanager
def facts_model(options: argparse.Namespace) -> Generator[list[str]]:
    """Yield the settings of a service that extracts LoCoMo's observations as facts; empty without `--facts`."""
    if options.facts is None:
        yield []
        return
    from observations import Observer

    observer = Observer(Path(options.data))
    observer.start()
    try:
        yield ["--model", "observations", "--model-base-url", observer.url, "--no-rolling-summary"]
    finally:
        observer.stop()


def replay(memory: MemoryClient, path: Path) -> None:
    """Write the whole conversation, then wait until all of it is indexed."""
    sessions: dict[str, list[Any]] = defaultdict(list)
    for entry in open_conversation(path).entries:
        assert isinstance(entry, FileTurn), entry
        sessions[entry.session_id].append(entry.turn)
    for session_id, turns in track(sessions.items(), f"replay {path.stem}", transient=True):
        memory.write(session_id, turns)
    for session_id in sessions:
        memory.end(session_id)
    for session_id in sessions:
        memory.wait(session_id, timeout=300)


def ask_all(memory: MemoryClient, path: Path, scores: dict[str, Score], latencies: list[float]) -> None:
    """Ask every question of a conversation, and make small talk."""
    document = json.loads(path.read_text())
    for question in track(document["qa"], f"ask {path.stem}", transient=True):
        evidence = set(evidence_of(question))
        score = scores[str(question["category"])]
        answers = {depth: _recall(memory, question["question"], latencies, depth) for depth in DEPTHS}
        score.best.append(absolute(answers[DEPTHS[-1]]))
        if not evidence:
            continue
        found: list[set[tuple[int, int]]] = []
        for depth, answer in answers.items():  # facts come first, so the first 10 of 20 are not those of a recall of 10
            found = [turns_of(fact, path.stem) for fact in answer.memories]
            score.recall[depth].append(len(evidence & set().union(*found)) / len(evidence))
        ranks = [rank for rank, turns in enumerate(found, 1) if turns & evidence]
        score.reciprocal_rank.append(1 / ranks[0] if ranks else 0.0)
    for phrase in SMALL_TALK:
        scores["small talk"].best.append(absolute(_recall(memory, phrase, latencies)))


def evidence_of(question: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Return (session, turn) of each evidence turn."""
    for entry in question.get("evidence", []):
        for session, turn in EVIDENCE.findall(entry):
            yield int(session), int(turn)


def turns_of(fact: RecalledMemory, stem: str) -> set[tuple[int, int]]:
    """Return (session, turn) of the turn itself, or of every turn that a fact rests on."""
    prefix = f"{stem}/session_"
    return {
        (int(source.session_id.removeprefix(prefix)), seq)
        for source in fact.sources
        for seq in range(source.from_seq, source.upto_seq + 1)
    }


def absolute(answer: RecallResponse) -> float:
    """Return the best absolute score in an answer, which `min_score` tests."""
    parts = [fact.score_parts for fact in answer.memories]
    return max((max(part.cosine or 0.0, part.coverage) for part in parts), default=0.0)


def report(options: argparse.Namespace, scores: dict[str, Score], latencies: list[float], seconds: float) -> None:
    """Print recall and rank per category, and the share of questions that each threshold leaves without memories."""
    console = Console()
    answerable = merged([scores[name] for name in ANSWERABLE])
    engine = "SQLite" if options.database_url is None else "Postgres"
    table = Table(title=f"LoCoMo on {engine}, embedder {options.embedder}")
    for title in ("category", "questions", *(f"R@{depth}" for depth in DEPTHS), "MRR"):
        table.add_column(title, justify="left" if title == "category" else "right")
    rows = [(CATEGORIES[name], scores[name]) for name in sorted(CATEGORIES)]
    for title, score in [*rows, ("categories 1-4", answerable)]:
        table.add_row(title, str(len(score.reciprocal_rank)), *(f"{value:.3f}" for value in figures(score)))
    console.print(table)
    thresholds = Table(title="share of questions for which min_score leaves no memory")
    for title in ("min_score", "categories 1-4", "unanswerable", "small talk"):
        thresholds.add_column(title, justify="right")
    for threshold in THRESHOLDS:
        parts = (answerable, scores[UNANSWERABLE], scores["small talk"])
        thresholds.add_row(f"{threshold}", *(f"{share_below(score, threshold):.2f}" for score in parts))
    console.print(thresholds)
    median, slow = statistics.median(latencies), statistics.quantiles(latencies, n=20)[-1]
    console.print(f"recall over HTTP: median {median * 1e3:.1f} ms, p95 {slow * 1e3:.1f} ms; all in {seconds:.0f} s")
    console.print(f"{machine()}, {datetime.now(UTC).date()}")


def merged(scores: list[Score]) -> Score:
    """Combine several categories."""
    whole = Score()
    for score in scores:
        for depth in DEPTHS:
            whole.recall[depth] += score.recall[depth]
        whole.reciprocal_rank += score.reciprocal_rank
        whole.best += score.best
    return whole


def figures(score: Score) -> list[float]:
    """Return the mean recall at each k, then the mean reciprocal rank."""
    return [statistics.fmean(values) for values in (*(score.recall[depth] for depth in DEPTHS), score.reciprocal_rank)]


def share_below(score: Score, threshold: float) -> float:
    """Return the share of questions whose best memory is below a threshold."""
    return sum(best < threshold for best in score.best) / len(score.best)


def _recall(memory: MemoryClient, query: str, latencies: list[float], top_k: int = max(DEPTHS)) -> RecallResponse:
    started = time.perf_counter()
    answer = memory.recall(query, session_id="fresh", top_k=top_k)
    latencies.append(time.perf_counter() - started)
    return answer


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a directory of LoCoMo files, one JSON document each")
    parser.add_argument("--database-url", help="URL of a Postgres database (default: a temporary SQLite file)")
    parser.add_argument("--facts", choices=["observations"], help="extract LoCoMo's own observations as facts")
    parser.add_argument("--embedder", default="minilm", help="minilm (default), hash, ...")
    return parser.parse_args()


if __name__ == "__main__":
    main()
