"""Reports on duplicates: a repeated statement is stored and shown once."""

from __future__ import annotations

from threefold import MemoryClient


def test_statement_saved_in_five_sessions_is_recalled_once(memory: MemoryClient) -> None:
    """Reported: saying the same thing twice deleted it."""
    for number in range(5):
        memory.save("I live in Oslo.", session_id=f"s{number}")
    recalled = memory.recall("where do I live, Oslo?", session_id="s9")
    assert [fact.text for fact in recalled.memories] == ["I live in Oslo."]
    assert recalled.block.count("I live in Oslo.") == 1


def test_block_shows_the_same_statement_once(memory: MemoryClient) -> None:
    """Reported: near-duplicates flooded the context. Facts and turns that differ only in case and spaces count as
    the same."""
    for number, text in enumerate(["DGIA is the tax office.", "dgia is the  tax office.", "DGIA IS THE TAX OFFICE."]):
        memory.write(f"s{number}", [{"role": "user", "content": text}])
    memory.save("DGIA is the tax office.")
    memory.write("s4", [{"role": "user", "content": "I have to call DGIA on Monday."}])
    recalled = memory.recall("what is DGIA?", session_id="s9")
    said = [" ".join(fact.text.casefold().split()) for fact in recalled.memories]
    assert sorted(said) == ["dgia is the tax office.", "i have to call dgia on monday."]
