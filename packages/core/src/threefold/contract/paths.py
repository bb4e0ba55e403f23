"""Headers and paths of version 1, as the clients send them and the routes of the service match them.

`{name:id}` is an id, percent-encoded as one segment: it may contain slashes. `{name}` is a number.
"""

from __future__ import annotations

USER_HEADER = "x-threefold-user"
AGENT_HEADER = "x-threefold-agent"

WRITE = "/v1/write"
RECALL = "/v1/recall"
LIST = "/v1/list"
FORGET = "/v1/forget"
WHOAMI = "/v1/whoami"

FACTS = "/v1/facts"
FACT = "/v1/facts/{fact_id:id}"
FACT_HISTORY = f"{FACT}/history"
FACT_RESTORE = f"{FACT}/restore"

BELIEFS = "/v1/beliefs"
BELIEF = "/v1/beliefs/{belief_id:id}"
BELIEF_HISTORY = f"{BELIEF}/history"
BELIEF_DEPENDENTS = f"{BELIEF}/dependents"
BELIEF_REVERIFY = f"{BELIEF}/reverify"
EXPERIMENTS = "/v1/experiments"
EXPERIMENT_CLOSE = "/v1/experiments/{experiment_id:id}/close"

SESSIONS = "/v1/sessions"
SESSION = "/v1/sessions/{session_id:id}"
SESSION_STATE = f"{SESSION}/state"
SESSION_TURNS = f"{SESSION}/turns"
SESSION_DIGESTS = f"{SESSION}/digests"
SESSION_DIGEST = f"{SESSION}/digests/{{version}}"
SESSION_STATUS = f"{SESSION}/status"
SESSION_END = f"{SESSION}/end"

ITEMS_BATCH = "/v1/items/batch"

THREADS_QUERY = "/v1/threads/query"
THREADS_PRUNE = "/v1/threads/prune"
THREADS_DELETE_RUNS = "/v1/threads/delete_runs"
THREAD = "/v1/threads/{thread_id:id}"
THREAD_CHECKPOINTS = f"{THREAD}/checkpoints"
THREAD_WRITES = f"{THREAD}/writes"
THREAD_HISTORY = f"{THREAD}/history"
THREAD_COPY = f"{THREAD}/copy"

ADMIN_OWNERS = "/v1/admin/owners"
ADMIN_USAGE = "/v1/admin/usage"
ADMIN_LIST = "/v1/admin/list"
ADMIN_FORGET = "/v1/admin/forget"
ADMIN_RENAME = "/v1/admin/rename"
ADMIN_EXPORT = "/v1/admin/export"
ADMIN_IMPORT = "/v1/admin/import"
ADMIN_KEYS = "/v1/admin/keys"
ADMIN_KEY = "/v1/admin/keys/{key_id:id}"
ADMIN_AUDIT = "/v1/admin/audit"
ADMIN_AUDIT_VERIFY = "/v1/admin/audit/verify"

HEALTH = "/healthz"
READY = "/readyz"
