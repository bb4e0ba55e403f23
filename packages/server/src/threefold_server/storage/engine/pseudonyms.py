"""Pseudonyms of owners and agents, for records that outlive an erasure: the audit and receipts.

The key of an owner is a plain hash of its name, which anybody with a list of names can compute. A pseudonym is a keyed
hash of that key. Its secret is the store's own and goes with the store.
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
"""The name of the secret; the policies of row-level security read it, too."""

Pseudonym = Callable[[UUID], UUID]


def pseudonyms(connection: Connection) -> Pseudonym:
    """Return the function that gives an owner or agent key its pseudonym. The store's own key stays zero."""
    secret = store_secret(connection, SECRET)

    def pseudonym(key: UUID) -> UUID:
        return key if key == SHARED_POOL else UUID(bytes=hmac.digest(secret, key.bytes, hashlib.sha256)[:16])

    return pseudonym


def known_names(connection: Connection, wanted: Collection[UUID]) -> dict[UUID, str]:
    """The names behind pseudonyms, as far as the store still knows them.

    A pseudonym cannot be reversed, so this computes those of all owners until it has met every one: about 3 s for a
    million owners.
    """
    pseudonym, left, names = pseudonyms(connection), set(wanted) - {SHARED_POOL}, dict[UUID, str]()
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
