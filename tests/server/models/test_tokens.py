"""Token counting never fails and needs no network, and cut texts stay within their budget."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold_server.text import tokens
from threefold_server.text.packaged import InstallationError, check_sha256, read_packaged
from threefold_server.text.tokens import count_tokens, head_and_tail

ANY_TEXT = st.text(st.characters(), max_size=400)  # includes lone surrogates and NUL
OFFICIAL_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("hello world", 2), ("tiktoken is great!", 6), ("こんにちは世界", 4), ("<|endoftext|>", 7)],
)
def test_counts_are_those_of_cl100k(text: str, count: int) -> None:
    assert count_tokens(text) == count


def test_packaged_ranks_are_the_published_ones() -> None:
    assert hashlib.sha256(read_packaged("cl100k_base.tiktoken.gz")).hexdigest() == OFFICIAL_SHA256


def test_altered_file_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threefold_server.text.packaged.SHA256", {"vocab.txt": "0" * 64})
    with pytest.raises(InstallationError, match="Reinstall threefold-server"):
        read_packaged("vocab.txt")
    check_sha256("same", "same", "a file", "")


@given(ANY_TEXT)
@settings(deadline=None)
def test_any_text_is_counted(text: str) -> None:
    assert 0 <= count_tokens(text) <= len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("unit", ["a", "ab", " ", "\n", "!", "é", "😀", "\u0301", "中"])
def test_repetitive_text_is_counted(unit: str) -> None:
    """A quadratic tokenizer needs minutes for these texts; this one needs 30 ms."""
    text = unit * 200_000
    assert count_tokens(text) > 1_000
    assert count_tokens(head_and_tail(text, 100)) <= 100


@given(ANY_TEXT, st.integers(0, 60))
@settings(deadline=None)
def test_cut_text_is_within_its_budget(text: str, budget: int) -> None:
    cut = head_and_tail(text, budget)
    assert count_tokens(cut) <= budget
    assert cut == text or count_tokens(text) > budget


def test_cut_text_keeps_head_and_tail_and_says_so() -> None:
    cut = head_and_tail("first " + "word " * 1_000 + "last", 50)
    assert cut.startswith("first word")
    assert cut.endswith("word last")
    assert "[… cut, 1,002 tokens in full …]" in cut
    assert count_tokens(cut) > 45


def test_cut_text_splits_no_character() -> None:
    cut = head_and_tail("🧑‍🚀" * 500, 60)
    assert "\ufffd" not in cut
    assert cut.startswith("🧑")


def test_cut_is_marked_even_with_a_tiny_budget() -> None:
    cuts = [head_and_tail("word " * 100, budget) for budget in range(25)]
    assert cuts[0] == ""
    assert cuts[1] == "…"
    assert all(cut == "…" or (cut.startswith("word") and "tokens in full" in cut) for cut in cuts[1:])


def test_concurrent_first_calls_build_one_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    together = threading.Barrier(4)
    real = read_packaged

    def read(name: str) -> bytes:
        built.append(1)
        return real(name)

    def count(_: int) -> int:
        together.wait()
        return count_tokens("hello world")

    monkeypatch.setattr(tokens, "read_packaged", read)
    tokens._load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(count, range(4))) == [2, 2, 2, 2]
    assert len(built) == 1


def test_ranks_are_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str) -> tiktoken.Encoding:
        raise AssertionError(f"{name} would be downloaded")

    monkeypatch.setattr(tiktoken, "get_encoding", download)
    tokens._load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert count_tokens("hello world") == 2
