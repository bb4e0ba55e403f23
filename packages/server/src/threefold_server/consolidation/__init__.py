"""Background work: words and vectors of new turns, digests of old ones, and housekeeping. Never on a request's path."""
