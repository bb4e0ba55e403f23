"""Checks of archived rows by the rules of writes: a changed archive must not add what no caller could write.

Each row is validated by the request of the contract that would have created it. Values that the service computes itself
(tokens, the columns of an erased turn, trust) are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json
from sqlalchemy import Table

from threefold.checks import checked, checked_id
from threefold.contract import PutCheckpointRequest, PutItem, PutWritesRequest, SaveFactRequest, TurnIn, WriteRequest
from threefold.contract.admin import ArchiveRow
from threefold.contract.beliefs import (
    CloseExperimentRequest,
    OpenExperimentRequest,
    RecordBeliefRequest,
    ReverifyRequest,
)
from threefold.contract.common import MAX_CONTENT_CHARS, MAX_ID_CHARS
from threefold.contract.threads import BlobIn
from threefold.errors import InvalidRequest
from threefold_server.rules.access import Principal, Reach
from threefold_server.rules.trust import imported_trust
from threefold_server.storage.engine.tables import (
    belief_events,
    beliefs,
    checkpoint_blobs,
    checkpoint_writes,
    checkpoints,
    digests,
    experiments,
    facts,
    items,
    sessions,
    threads,
    turns,
)
from threefold_server.storage.memories.items import to_labels, to_path
from threefold_server.storage.store import archive_rows
from threefold_server.storage.store.archive_rows import Values
from threefold_server.text.redaction import Redact, redact_json
from threefold_server.text.tokens import count_tokens


@dataclass(frozen=True)
class Rules:
    """The rules for the rows of one import."""

    owner: Principal
    redact: Redact
    """Redacts facts and what the service derives."""
    redact_said: Redact
    """Redacts turns and session states. Secrets stay in these unless the store redacts everything."""
    now: int
    trusted: bool
    """Whether to keep origin, trust and pins as exported."""


def prepare(row: ArchiveRow, table: Table, rules: Rules, where: str) -> Values:
    """Return the columns of one row as they are stored; raise InvalidRequest that names the row."""
    values = archive_rows.decode(table, row.row, where)
    try:
        changes = _CHECKS[table](values, rules) if table in _CHECKS else {}
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}.{error.message}") from error
    except (ValidationError, ValueError, RecursionError):
        raise InvalidRequest(f"{where}: a value does not fit its column") from None
    archive_rows.check_keys(table, values, rules.owner, where)
    return {"owner": rules.owner.owner, **values, **_not_ahead(values, rules.now), **changes}


def _not_ahead(row: Values, now: int) -> Values:
    """Return the times limited to now: a clock that runs ahead must not rank above the present."""
    return {name: min(row[name], now) for name in ("event_at", "updated_at") if name in row}


def _session(row: Values, rules: Rules) -> Values:
    checked_id("agent", row["agent"])
    state = row.get("state")
    checked(WriteRequest, session_id=row["session_id"], turns=[], state=state)
    return {"state": None if state is None else redact_json(state, rules.redact_said)}


def _turn(row: Values, rules: Rules) -> Values:
    imported = {} if rules.trusted else {"imported": True}
    if row.get("erased"):
        return {**dict.fromkeys(("turn_id", "name", "turn_group", "payload")), "content": "", "tokens": 0, **imported}
    checked_id("turn_id", row.get("turn_id") or "")
    checked(
        TurnIn,
        **{name: row.get(name) for name in ("role", "content", "name", "kind", "payload", "noted_by")},
        id=row["turn_id"],
        group=row.get("turn_group"),
    )
    name, payload = row.get("name"), row.get("payload")
    content = rules.redact_said(row["content"])
    return {
        "content": content,
        "name": name and rules.redact_said(name),
        "payload": None if payload is None else redact_json(payload, rules.redact_said),
        "tokens": count_tokens(content),
        **imported,
    }


def _digest(row: Values, rules: Rules) -> Values:
    _check_length(row, "text", MAX_CONTENT_CHARS)
    _check_length(row, "model", MAX_ID_CHARS)
    _check_length(row, "prompt", MAX_ID_CHARS)
    text = rules.redact(row["text"])
    trust = row.get("trust", 0.0)
    return {"text": text, "tokens": count_tokens(text), "trust": trust if rules.trusted else imported_trust(trust)}


def _fact(row: Values, rules: Rules) -> Values:
    checked_id("agent", row["agent"])
    _check_length(row, "extracted_by", MAX_ID_CHARS)
    checked(
        SaveFactRequest,
        **{name: row[name] for name in ("text", "session_id", "shared", "pinned") if row.get(name) is not None},
        visibility=Reach(row["visibility"]).name,
        metadata=_json(row.get("metadata", "{}")),
    )
    clean = {"text": rules.redact(row["text"]), "metadata": redact_json(row.get("metadata", "{}"), rules.redact)}
    if rules.trusted:
        return clean
    return {**clean, "origin": "import", "trust": imported_trust(row["trust"]), "pinned": False}


def _item(row: Values, _: Rules) -> Values:
    checked_id("agent", row["agent"])
    labels = to_labels(row["path"])
    if to_path(labels) != row["path"]:
        raise ValueError
    put = {"op": "put", "namespace": labels, "key": row["key"], "ttl": row.get("ttl")}
    checked(PutItem, **put, value=_json(row["value"]), index=_json(row["fields"]))
    return {}


def _thread(row: Values, _: Rules) -> Values:
    checked_id("agent", row["agent"])
    checked_id("thread_id", row["thread_id"])
    return {}


def _checkpoint(row: Values, _: Rules) -> Values:
    names = ("ns", "checkpoint_id", "parent_id", "type", "data", "metadata")
    checked(PutCheckpointRequest, **{name: row.get(name) for name in names}, versions=_json(row["versions"]))
    run_id = from_json(row["metadata"]).get("run_id")
    return {"run_id": run_id if isinstance(run_id, str) else None}


def _blob(row: Values, _: Rules) -> Values:
    names = ("channel", "type", "data")
    checked(BlobIn, **{name: row[name] for name in names}, version=_json(row["version"]))
    return {}


def _write(row: Values, _: Rules) -> Values:
    write = {name: row[name] for name in ("idx", "channel", "type", "data")}
    names = ("checkpoint_id", "task_id", "task_path")
    checked(PutWritesRequest, **{name: row[name] for name in names}, writes=[write])
    return {}


def _belief(row: Values, rules: Rules) -> Values:
    checked_id("agent", row["agent"])
    names = ("statement", "falsification", "confidence", "session_id")
    kind = "assumption" if row["assumption"] else "hypothesis"
    visibility, context = Reach(row["visibility"]).name, _json(row["context"])
    checked(
        RecordBeliefRequest,
        **{name: row.get(name) for name in names},
        kind=kind,
        visibility=visibility,
        context=context,
    )
    clean = {**_belief_texts(row, rules), "context": redact_json(row["context"], rules.redact)}
    if rules.trusted:
        return clean
    trust, judged = row["trust"], row.get("verdict_trust")
    of_verdict = None if judged is None else imported_trust(judged)
    return {**clean, "origin": "import", "trust": imported_trust(trust), "verdict_trust": of_verdict}


def _belief_event(row: Values, rules: Rules) -> Values:
    if row.get("agent") is not None:
        checked_id("agent", row["agent"])
    checked(
        RecordBeliefRequest,
        kind="assumption",
        **{name: row.get(name) for name in ("statement", "falsification", "confidence")},
    )
    return _belief_texts(row, rules)


def _belief_texts(row: Values, rules: Rules) -> Values:
    falsification = row.get("falsification")
    return {
        "statement": rules.redact(row["statement"]),
        "falsification": None if falsification is None else rules.redact(falsification),
    }


def _experiment(row: Values, rules: Rules) -> Values:
    checked_id("agent", row["agent"])
    checked(OpenExperimentRequest, belief_id=row["belief"].hex, plan=row.get("plan"))
    if row.get("reason") is not None or row.get("changed") is not None:
        checked(ReverifyRequest, reason=row.get("reason"), changed=row.get("changed"))
    if len({row.get(name) is None for name in ("verdict", "justification", "closed_at", "trust")}) > 1:
        raise ValueError
    evidence = _json(row.get("evidence", "[]"))
    if row.get("verdict") is not None:
        judged = {name: row[name] for name in ("verdict", "justification")}
        checked(CloseExperimentRequest, **judged, evidence=evidence)
    elif evidence:
        raise ValueError
    texts = {name: row[name] for name in ("plan", "reason", "changed", "justification") if row.get(name) is not None}
    clean = {name: rules.redact(text) for name, text in texts.items()}
    trust = row.get("trust")
    return {
        **clean,
        "evidence": redact_json(row.get("evidence", "[]"), rules.redact),
        "trust": trust if rules.trusted or trust is None else imported_trust(trust),
    }


def _json(text: str) -> Any:
    """Return the value of a JSON column; raise ValueError for invalid JSON, deep nesting, or NaN."""
    return from_json(text, allow_inf_nan=False)


def _check_length(row: Values, name: str, most: int) -> None:
    if len(row.get(name) or "") > most:
        raise InvalidRequest(f"{name}: must not exceed {most} characters")


_CHECKS: Mapping[Table, Callable[[Values, Rules], Values]] = {
    sessions: _session,
    turns: _turn,
    digests: _digest,
    facts: _fact,
    items: _item,
    threads: _thread,
    checkpoints: _checkpoint,
    checkpoint_blobs: _blob,
    checkpoint_writes: _write,
    beliefs: _belief,
    belief_events: _belief_event,
    experiments: _experiment,
}
"""The sources of facts have numbers only. They are checked against their session after its turns are inserted."""
