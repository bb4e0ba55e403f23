"""Pseudonyms of owners and agents, for records that outlive an erasure: the audit and receipts.

The key of an owner is a plain hash of its name, which anybody with a list of names can compute. A pseudonym is a keyed
hash of that key. Its secret belongs to the store and is deleted with it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection
from uuid import UUID

from sqlalchemy import Connection, select

from threefold_server.rules.access import SHARED_POOL
from threefold_server.storage.engine.store_secrets import store_secret
from threefold_server.storage.engine.tables import owners

SECRET = "pseudonym_key"
"""The name of the secret. The policies of row-level security read it as well."""

Pseudonym = Callable[[UUID], UUID]


def pseudonyms(connection: Connection) -> Pseudonym:
    """Return the function that maps the key of an owner or agent to its pseudonym; the store's key stays zero."""
    secret = store_secret(connection, SECRET)

    def pseudonym(key: UUID) -> UUID:
        return key if key == SHARED_POOL else UUID(bytes=hmac.digest(secret, key.bytes, hashlib.sha256)[:16])

    return pseudonym


def known_names(connection: Connection, unnamed: Collection[UUID]) -> dict[UUID, str]:
    """Return the names behind pseudonyms, for owners whose name the store still has.

    A pseudonym cannot be reversed, so this computes the pseudonyms of all owners until it has found every one: about
    3 s for a million owners.
    """
    pseudonym, left, names = pseudonyms(connection), set(unnamed) - {SHARED_POOL}, dict[UUID, str]()
    named = select(owners.c.owner, owners.c.name).where(owners.c.name != "").execution_options(yield_per=1_000)
    if not left:
        return names
    with connection.execute(named) as rows:
        for owner, name in rows:
            if (found := pseudonym(owner)) in left:
                names[found] = name
                left.remove(found)
                if not left:
                    break
    return names
