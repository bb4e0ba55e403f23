"""Which text of a turn is searchable: everything that was said, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from threefold.contract import Role
from threefold.render import join_block
from threefold_server.text.indexed import fact_passages, own_words, turn_passages

NOON = datetime(2023, 3, 23, 12, tzinfo=UTC)


@dataclass
class Row:
    """The columns that the tests need."""

    content: str
    role: Role = "user"
    name: str | None = None
    created_at: int = int(NOON.timestamp()) * 1_000_000
    utc_offset: int = 0


def test_turn_is_indexed_with_its_day_and_embedded_with_its_speaker() -> None:
    [passage] = turn_passages(Row("I sold the boat, the old boat.", name="Ana"), str)
    assert passage.text == "Ana: I sold the boat, the old boat."
    assert passage.tf["boat"] == 2
    assert {"ana", "23", "march", "2023"} <= passage.tf.keys()
    assert passage.length == sum(passage.tf.values())
    assert (passage.part, passage.speaker) == (0, "Ana")


def test_role_is_the_speaker_if_there_is_no_name() -> None:
    [passage] = turn_passages(Row("Noted.", role="assistant"), str)
    assert passage.text == "assistant: Noted."


def test_day_is_in_the_time_zone_of_the_writer() -> None:
    [passage] = turn_passages(Row("Good night.", created_at=int(NOON.timestamp()) * 1_000_000, utc_offset=13 * 60), str)
    assert "24" in passage.tf


@pytest.mark.parametrize(
    "content", ["", "   \n", "...", "-", "👍 !?", "A" * 5_000, "data:image/png;base64," + "iVBO" * 99]
)
def test_turn_without_words_has_no_passages(content: str) -> None:
    """Users reported that one empty text broke the whole background job."""
    assert turn_passages(Row(content), str) == []


def test_system_prompts_have_no_passages() -> None:
    assert turn_passages(Row("You are a helpful assistant.", role="system"), str) == []


def test_recalled_memory_is_not_indexed_again() -> None:
    block = join_block([], ["- [2023-03-23, user] The safe is behind the painting."], [])
    [passage] = turn_passages(Row(f"{block}\nWhere is the key?"), str)
    assert "safe" not in passage.tf
    assert "key" in passage.tf


def test_encoded_data_is_dropped_and_the_words_around_it_stay() -> None:
    assert own_words("before " + "Zm9v" * 100 + " after", str).split() == ["before", "after"]


def test_long_turn_has_several_parts() -> None:
    sentences = [f"Point {number} concerns the harbour and its wall." for number in range(60)]
    passages = turn_passages(Row(" ".join(sentences), name="Ana"), str)
    assert [passage.part for passage in passages] == list(range(len(passages)))
    assert len(passages) > 1
    assert all(passage.text.startswith("Ana: ") for passage in passages)


def test_every_word_of_the_longest_turns_is_indexed() -> None:
    words = [f"w{number}x" for number in range(6_000)]
    passages = turn_passages(Row(" ".join(words)), str)
    assert len(passages) == 64
    assert set(words) <= {term for passage in passages for term in passage.tf}


def test_fact_has_no_speaker_and_no_date() -> None:
    [passage] = fact_passages("The boat is sold.")
    assert passage.text == "The boat is sold."
    assert passage.speaker is None
    assert set(passage.tf) == {"boat", "sold"}
