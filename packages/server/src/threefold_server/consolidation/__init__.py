"""Background work: indexing, embedding, digests, facts from turns, and housekeeping. None of it runs in a request."""
