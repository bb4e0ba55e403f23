"""Freshness: how soon another session recalls what one session wrote, by its words and by its meaning.

By words a turn must be found as soon as its write is acknowledged. By meaning it is found once its vector is computed:
each sentence is asked for in other words until an answer holds it with a cosine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness import machine, running_service
from rich.console import Console
from seeding import Words
from stores import add_engine_options, chosen_engines, stores_of

from threefold import MemoryClient
from threefold.contract import RecalledMemory, TurnIn

WORDS = 100
GOAL_SECONDS = 1.0
GIVE_UP_SECONDS = 10.0
PAUSE_SECONDS = 0.005

console = Console(width=110)

PARAPHRASES = (
    ("My daughter is allergic to peanuts.", "Which food makes the child ill?"),
    ("We moved to Lisbon last spring.", "Where do they live now?"),
    ("I take the train to the office every morning.", "How does she commute?"),
    ("The dog had to see the vet after eating chocolate.", "Which pet was sick?"),
    ("He proposed to her on top of the lighthouse.", "Where did the couple get engaged?"),
    ("I quit smoking three years ago.", "Has he given up cigarettes?"),
    ("Our kitchen is being renovated this month.", "What home improvement is under way?"),
    ("She plays the cello in a quartet.", "Which musical instrument does the woman perform on?"),
    ("The car broke down on the motorway.", "What vehicle trouble happened?"),
    ("I prefer tea without sugar.", "How does he like his hot drink?"),
    ("My brother works as a nurse at the children's hospital.", "What job does the sibling have in medicine?"),
    ("We are saving up for a house with a garden.", "What property do they want to buy?"),
    ("The flight was cancelled because of the storm.", "Why couldn't the plane leave?"),
    ("I have been learning Japanese for two years.", "Which foreign language does she study?"),
    ("The twins start school in September.", "When do the kids begin classes?"),
    ("I broke my wrist while skiing.", "What winter sports injury occurred?"),
    ("He collects old postage stamps.", "What is his hobby?"),
    ("Grandmother turns ninety on Sunday.", "Which elderly relative has a birthday soon?"),
    ("I never eat meat or fish.", "Is she a vegetarian?"),
    ("The laptop was stolen from the cafe.", "Which computer got lost to a thief?"),
    ("We watched a documentary about whales.", "What film on ocean animals did they see?"),
    ("My landlord raised the rent again.", "Did the cost of the apartment go up?"),
    ("She finished the marathon in under four hours.", "How fast was her long run?"),
    ("The baby woke up five times last night.", "Why are the parents so tired?"),
    ("I sold my motorbike to a neighbour.", "Who bought the two-wheeler?"),
    ("He is afraid of heights.", "Which phobia does the man have?"),
    ("The roof leaks whenever it rains.", "Where does water get into the building?"),
    ("I grew tomatoes and basil on the balcony.", "Which vegetables were planted at home?"),
    ("Our team won the chess tournament.", "Who took first place in the board game contest?"),
    ("My phone screen is cracked.", "What is wrong with the mobile device?"),
    ("She wrote her thesis on coral reefs.", "What was the topic of her dissertation?"),
    ("We adopted a cat from the shelter.", "Where did their kitten come from?"),
    ("The doctor told me to lower my blood pressure.", "What medical advice about hypertension was given?"),
    ("He bakes sourdough bread at weekends.", "What does he make in the oven on Saturdays?"),
    ("I lost my passport in Madrid.", "Which travel document went missing in Spain?"),
    ("The company offered her a promotion.", "Did she get a better position at work?"),
    ("They met at a salsa class.", "How did the pair first get to know each other through dancing?"),
    ("I cannot stand loud music in restaurants.", "What annoys him about noisy dining places?"),
    ("The bakery closes at noon on Mondays.", "Until when can you buy rolls at the start of the week?"),
    ("My glasses need stronger lenses.", "Has her eyesight become worse?"),
)


def main() -> None:
    """Measure on each database, and print two lines for each."""
    options = _options()
    kept: dict[str, object] = {"machine": machine(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    for engine in chosen_engines(options):
        with (
            stores_of(engine, options.database_url) as stores,
            running_service(stores.create()) as url,
            MemoryClient(url, user="ana", agent="bench", timeout=60.0) as memory,
        ):
            found = sum(by_words(memory, options.words))
            seconds = [by_meaning(memory, turn, question) for turn, question in PARAPHRASES[: options.pairs]]
        report(engine, found, options.words, seconds)
        kept[engine] = {"found_by_words": found, "of": options.words, "seconds_by_meaning": seconds}
    console.print(f"{machine()}, {datetime.now(UTC).date()}; embedder minilm")
    if options.json:
        Path(options.json).write_text(json.dumps(kept, indent=1))


def report(engine: str, found: int, times: int, seconds: Sequence[float | None]) -> None:
    """Print both results with their goals."""
    taken = [GIVE_UP_SECONDS if value is None else value for value in seconds]
    median, slow = statistics.median(taken), statistics.quantiles(taken, n=20)[-1]
    console.print(f"{engine}: by words at once {found} of {times} (goal: all) {_mark(found == times)}")
    console.print(
        f"{engine}: by meaning {len(seconds) - seconds.count(None)} of {len(seconds)}, p50 {median:.3f} s, "
        f"p95 {slow:.3f} s (goal: {GOAL_SECONDS:g} s) {_mark(slow <= GOAL_SECONDS)}"
    )


def by_words(memory: MemoryClient, times: int) -> Iterator[bool]:
    """Return for each turn, which has a unique word, whether it is found directly after its write."""
    words = Words(seed=4)
    for number in range(times):
        turn = f"{words.text(20)} zebra{number} {words.text(20)}"
        memory.write(f"words-{number}", [TurnIn(role="user", content=turn)])
        yield any(found.text == turn for found in _recall(memory, f"what about zebra{number}?"))


def by_meaning(memory: MemoryClient, turn: str, question: str) -> float | None:
    """Return the seconds from the acknowledged write until an answer holds the turn; None if no answer did."""
    memory.write(turn, [TurnIn(role="user", content=turn)])
    written = time.perf_counter()
    while time.perf_counter() - written < GIVE_UP_SECONDS:
        if any(found.text == turn and found.score_parts.cosine is not None for found in _recall(memory, question)):
            return time.perf_counter() - written
        time.sleep(PAUSE_SECONDS)
    return None


def _recall(memory: MemoryClient, query: str) -> list[RecalledMemory]:
    return memory.recall(query, session_id="elsewhere").memories


def _mark(good: bool) -> str:
    return "[green]✓[/]" if good else "[red]✗[/]"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    parser.add_argument("--quick", action="store_true", help="a trial with fewer turns")
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    options.words, options.pairs = (10, 5) if options.quick else (WORDS, len(PARAPHRASES))
    return options


if __name__ == "__main__":
    main()
