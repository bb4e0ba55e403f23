"""What is remembered of a text between two recalls: counts and verdicts, never the text."""

from __future__ import annotations

import gc

from hypothesis import example, given, settings
from hypothesis import strategies as st

from threefold.render import block_lines, join_block
from threefold_server.rules.assemble import count_lines
from threefold_server.text.redaction import redact, remembering
from threefold_server.text.remembered import Recent, Remembered, hash_of
from threefold_server.text.tokens import count_tokens

LINE = st.text(st.sampled_from("ab .,!?-\n\r\t  \x85 é中🙂[]()'0123"), max_size=40)


@settings(deadline=None)  # the vocabulary is loaded within the first example
@given(st.lists(LINE, max_size=3), st.lists(LINE, max_size=4), st.lists(LINE, max_size=4))
@example(["Digest", "  ", "", "  .\n"], ["a.", "  "], ["!\n\n"])
def test_counts_of_lines_add_up_to_the_count_of_the_block(
    digest: list[str], memories: list[str], turns: list[str]
) -> None:
    heads = [f"Digest of turns 1 to 2:{line}" for line in ["\n".join(digest)] if digest]
    memories, turns = [f"- [{line}" for line in memories], [f"- [{line}" for line in turns]
    assert count_lines(block_lines(heads, memories, turns), count_tokens) == count_tokens(
        join_block(heads, memories, turns)
    )


def test_a_function_is_called_once_for_each_text() -> None:
    asked: list[str] = []

    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    remembered = Remembered(length)
    assert [remembered(text) for text in ("", "a", "", "\udc80", "a", "\udc80")] == [0, 1, 0, 1, 1, 1]
    assert asked == ["", "a", "\udc80"]


def test_values_are_bounded_and_the_ones_in_use_stay() -> None:
    recent: Recent[int] = Recent(10)
    recent.put(b"used", -1)
    for number in range(1_000):
        recent.put(hash_of(str(number)), number)
        assert recent.get(b"used") == -1
        assert len(recent) <= 20
    assert recent.get(hash_of("0")) is None


def test_texts_that_are_split_elsewhere_have_another_hash() -> None:
    assert len({hash_of("ab", "c"), hash_of("a", "bc"), hash_of("abc"), hash_of("abc", "")}) == 4


def test_a_secret_is_removed_each_time() -> None:
    remembered = remembering(redact)
    secret, plain = "the password is hunter2!", "the heron is grey"
    for _ in range(3):
        assert remembered(secret) == redact(secret) != secret
        assert remembered(plain) is plain


def test_no_text_is_kept() -> None:
    remembered = Remembered(len)
    text = "".join(("the heron ", "of Lake Constance"))
    remembered(text)
    del text
    kept = gc.get_referents(remembered._recent._young)  # pyright: ignore[reportPrivateUsage]
    assert all(not isinstance(value, str) for value in kept)
