"""Pure work on text: terms, sentences, passages, token counts, redaction, and what the index keeps of a text."""
