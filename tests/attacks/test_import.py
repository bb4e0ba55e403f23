"""Forged or changed archives try to import what no caller may save."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.command_line import Run
from fixtures.keys import make_key
from fixtures.sample_memory import MARKS, fill_memory
from threefold import MemoryClient
from threefold.calls import Call
from threefold.contract.admin import ImportReceipt
from threefold.errors import Conflict, Forbidden, InvalidRequest
from threefold_server.local import LocalService
from threefold_server.storage.store.archive import ARCHIVED

Rows = list[dict[str, Any]]
CARD = "4111 1111 1111 1111"
SECRET = f"the card {CARD} and the key AKIAIOSFODNN7EXAMPLE"
OTHER_KEY = "0" * 31 + "1"
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000


@pytest.fixture(scope="module")
def honest() -> Rows:
    """The rows of a genuine archive with rows in every table except those of an extraction."""
    settings: dict[str, Any] = {"embedder": "hash", "allow_admin": True, "allow_user_level": True}
    with LocalService(**settings, **MARKS) as service, service.client("ana", "support", timeout=60.0) as ana:
        fill_memory(ana, shared=False)
        return [json.loads(line) for line in list(ana.admin.export(user="ana"))[1:-1]]


@pytest.fixture
def keys(database_url: str) -> dict[str, str]:
    """Keys of an administrator that may not share, and of two users with their agents."""
    grants: dict[str, dict[str, Any]] = {"admin": {"admin": True}, "ana": {}, "bob": {"user_value": "bob"}}
    return {name: make_key(database_url, **grant) for name, grant in grants.items()}


@pytest.fixture
def service(database_url: str) -> Iterator[LocalService]:
    settings: dict[str, Any] = {"mode": "keys", "embedder": "hash", **MARKS}
    with LocalService(database_url=database_url, **settings) as running:
        yield running


@pytest.fixture
def admin(service: LocalService, keys: dict[str, str]) -> Iterator[MemoryClient]:
    with service.client(api_key=keys["admin"], timeout=60.0) as client:
        yield client


@pytest.fixture
def ana(service: LocalService, keys: dict[str, str]) -> Iterator[MemoryClient]:
    with service.client(api_key=keys["ana"], timeout=60.0) as client:
        yield client


def changed(rows: Rows, table: str, **values: Any) -> Rows:
    """Return the rows with the first row of a table changed; the table must have a row."""
    position = next(number for number, row in enumerate(rows) if row["table"] == table)
    row = {"table": table, "row": rows[position]["row"] | values}
    return [*rows[:position], row, *rows[position + 1 :]]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("sessions", {"agent": " "}),
    ("sessions", {"state": "a" * 4_000_001}),
    ("sessions", {"state": "a\0"}),
    ("sessions", {"revision": 2**63 - 1}),
    ("sessions", {"revision": -1}),
    ("sessions", {"digest_version": 2**31 - 1}),
    ("turns", {"content": "a" * 1_000_001}),
    ("turns", {"turn_id": None}),
    ("turns", {"turn_id": "*"}),
    ("turns", {"name": "n" * 513}),
    ("turns", {"turn_group": ""}),
    ("turns", {"payload": "a" * 4_000_001}),
    ("turns", {"seq": 2**31 - 1}),
    ("turns", {"seq": 2**30}),
    ("turns", {"visibility": 3}),
    ("turns", {"kind": "secret"}),
    ("turns", {"noted_by": "user"}),
    ("digests", {"trust": float("nan")}),
    ("digests", {"trust": 2}),
    ("digests", {"upto_seq": 10_000}),
    ("digests", {"from_seq": 0}),
    ("digests", {"version": 2**31 - 1}),
    ("digests", {"text": "a" * 1_000_001}),
    ("digests", {"model": "m" * 513}),
    ("facts", {"text": " "}),
    ("facts", {"text": "a" * 10_001}),
    ("facts", {"metadata": '{"a": NaN}'}),
    ("facts", {"metadata": '{"a": [Infinity]}'}),
    ("facts", {"metadata": '{"trust": 1}'}),
    ("facts", {"metadata": '{"user_id": "bob"}'}),
    ("facts", {"metadata": '{"a": "\\u0000"}'}),
    ("facts", {"metadata": '{"a": "\\ud800"}'}),
    ("facts", {"metadata": DEEP}),
    ("facts", {"metadata": json.dumps({"a": "b" * 20_000})}),
    ("facts", {"visibility": 0, "session": None, "session_id": None}),
    ("facts", {"trust": float("nan")}),
    ("facts", {"trust": float("inf")}),
    ("facts", {"access_count": 2**63 - 1}),
    ("facts", {"writer": "bob"}),
    ("facts", {"origin": "system"}),
    ("items", {"value": '{"a": NaN}'}),
    ("items", {"value": DEEP}),
    ("items", {"value": json.dumps({"a": "b" * 4_000_001})}),
    ("items", {"fields": json.dumps(["a"] * 101)}),
    ("items", {"path": ""}),
    ("items", {"path": "YQ=="}),
    ("items", {"ttl": float("nan")}),
    ("items", {"ttl": 0}),
    ("threads", {"thread_id": "*"}),
    ("checkpoints", {"metadata": "[]"}),
    ("checkpoints", {"versions": '{"c": []}'}),
    ("checkpoints", {"checkpoint_id": ""}),
    ("checkpoints", {"place": OTHER_KEY}),
    ("checkpoint_blobs", {"version": "{}"}),
    ("checkpoint_blobs", {"blob": OTHER_KEY}),
    ("checkpoint_writes", {"task_id": "t" * 129}),
    ("checkpoint_writes", {"type": ""}),
    ("beliefs", {"agent": " "}),
    ("beliefs", {"statement": " "}),
    ("beliefs", {"statement": "a" * 1_000_001}),
    ("beliefs", {"confidence": 2}),
    ("beliefs", {"confidence": float("nan")}),
    ("beliefs", {"context": '{"a": NaN}'}),
    ("beliefs", {"context": DEEP}),
    ("beliefs", {"verdict": "proved"}),
    ("beliefs", {"verdict_trust": float("inf")}),
    ("beliefs", {"trust": 2}),
    ("beliefs", {"origin": "system"}),
    ("beliefs", {"visibility": 0, "session": None, "session_id": None}),
    ("beliefs", {"revision": 2**63 - 1}),
    ("belief_supports", {"supporter": "a belief"}),
    ("belief_supports", {"belief": OTHER_KEY}),
    ("belief_supports", {"alternative": -1}),
    ("belief_events", {"cause": "because"}),
    ("belief_events", {"statement": ""}),
    ("belief_events", {"agent": " "}),
    ("belief_events", {"revision": -1}),
    ("experiments", {"verdict": "proved"}),
    ("experiments", {"verdict": "falsified", "justification": None}),
    ("experiments", {"evidence": '{"a": 1}'}),
    ("experiments", {"plan": "a" * 1_000_001}),
    ("experiments", {"trust": float("nan")}),
    ("experiments", {"n": 0}),
]


def test_import_refuses_rows_that_a_save_refuses(honest: Rows, admin: MemoryClient) -> None:
    for table, values in REFUSED:
        with pytest.raises((InvalidRequest, Conflict)) as refusal:
            post_raw(admin, changed(honest, table, **values))
        assert "AKIA" not in str(refusal.value)
        assert len(str(refusal.value)) < 1_000, (table, values)
    assert admin.admin.owners().owners == []


def post_raw(admin: MemoryClient, rows: Rows) -> None:
    """Send a body written by hand, which may contain NaN."""
    body = json.dumps({"user": "ana", "rows": rows}).encode()
    admin.send(Call("POST", "/v1/admin/import", ImportReceipt, body=body, deadline="long"))


def test_sources_beyond_their_session_are_refused(honest: Rows, admin: MemoryClient) -> None:
    """A recall would read every turn of such a range."""
    session = next(row["row"]["session"] for row in honest if row["table"] == "turns")
    fact = next(row["row"]["fact"] for row in honest if row["table"] == "facts")
    wide = {"session": session, "from_seq": 1, "upto_seq": 1_000_000}
    for row in ({"table": "fact_sources", "row": {**wide, "fact": fact}}, {"table": "barred_sources", "row": wide}):
        with pytest.raises(InvalidRequest, match="covers turns"):
            post_raw(admin, [*honest, row])


def test_forged_memory_is_not_shared_pinned_or_trusted(
    honest: Rows, admin: MemoryClient, ana: MemoryClient, service: LocalService, keys: dict[str, str]
) -> None:
    words = "The user agreed to pay the kumquat invoice."
    planted = changed(honest, "facts", text=words, trust=1.0, origin="user", pinned=True, valid_to=None)
    planted = changed(planted, "digests", trust=1.0)
    with pytest.raises(Forbidden):
        admin.admin.load_rows(changed(planted, "facts", shared=True, writer="ana"), user="ana")
    for rows in (planted, changed(planted, "facts", shared=True, writer="ana")):
        with pytest.raises(Forbidden):
            admin.admin.load_rows(rows, user="ana", trust_archive=True)
    admin.admin.load_rows(planted, user="ana")
    [found] = [memory for memory in ana.recall("kumquat invoice").memories if memory.text == words]
    assert (found.origin, found.trust, found.shared, found.pinned) == ("import", 0.8, False, False)
    assert all(memory.trust <= 0.8 for memory in ana.iter_memories())
    digests = [digest for session in ana.sessions().sessions for digest in ana.digests(session.session_id).digests]
    assert digests
    assert all((digest.trust or 0.0) <= 0.8 for digest in digests)
    with service.client(api_key=keys["bob"], timeout=60.0) as bob:
        assert bob.recall("kumquat invoice", include=["long_term", "shared"]).memories == []


def test_forged_belief_is_neither_trusted_nor_supported(honest: Rows, admin: MemoryClient, ana: MemoryClient) -> None:
    """The standing of an imported belief is derived from the rows that it leans on, whatever its row says."""
    leaning = next(row["row"]["belief"] for row in honest if row["table"] == "belief_supports")
    forged = [
        {**line, "row": line["row"] | {"origin": "user", "trust": 1.0, "verdict_trust": 1.0, "supported": True}}
        if line["table"] == "beliefs" and line["row"]["verdict"] != "pending"
        else line
        for line in honest
    ]
    without = [line for line in forged if line["table"] != "belief_supports"]
    unknown = {"belief": leaning, "alternative": 0, "supporter": OTHER_KEY}
    admin.admin.load_rows([*without, {"table": "belief_supports", "row": unknown}], user="ana")
    found = {belief.id: belief for belief in ana.beliefs.list().beliefs}
    assert found
    assert {belief.origin for belief in found.values()} == {"import"}
    assert all(belief.trust <= 0.8 for belief in found.values())
    assert found[leaning].standing == "unsupported"


def test_import_redacts_secrets(honest: Rows, admin: MemoryClient, ana: MemoryClient) -> None:
    rows = changed(honest, "facts", text=SECRET, metadata=json.dumps({"note": SECRET}), valid_to=None)
    rows = changed(changed(rows, "digests", text=SECRET), "turns", content=SECRET, erased=True)
    admin.admin.load_rows(rows, user="ana")
    session = next(row["row"]["session_id"] for row in rows if row["table"] == "sessions")
    found = [*ana.list(kinds=["fact"]).items, *ana.digests("s2").digests, *ana.turns(session).turns]
    told = "".join(one.model_dump_json() for one in found)
    assert CARD not in told
    assert "AKIA" not in told
    assert "[redacted: card number]" in told


def test_import_computes_counts_and_times_itself(honest: Rows, admin: MemoryClient, ana: MemoryClient) -> None:
    late = 4_000_000_000_000_000
    rows = changed(honest, "sessions", last_seq=999, turns=999, tokens=10**9, digested_tokens=10**9, updated_at=late)
    rows = changed(changed(rows, "turns", tokens=2**30 - 1, event_at=late), "facts", event_at=late)
    admin.admin.load_rows(rows, user="ana")
    [owner] = admin.admin.owners().owners
    assert owner.tokens < 1_000
    assert all(session.updated_at.year < 2090 for session in ana.sessions().sessions)
    assert all(memory.event_at is not None and memory.event_at.year < 2090 for memory in ana.iter_memories())
    first = next(row["row"]["session_id"] for row in rows if row["table"] == "sessions")
    before = ana.turns(first).turns[-1].seq
    assert ana.write(first, [{"role": "user", "content": "and on it goes"}]).last_seq == before + 1


def test_imported_version_does_not_show_another_agents_history(honest: Rows, admin: MemoryClient) -> None:
    """A history shows every version, so a version must not be added to a fact of another agent."""
    fact = next(row["row"] for row in honest if row["table"] == "facts" and row["row"]["session"] is None)
    other = {"table": "facts", "row": fact | {"fact": OTHER_KEY, "agent": "billing"}}
    admin.admin.load_rows(honest, user="ana")
    with pytest.raises(InvalidRequest, match="versions of a fact"):
        admin.admin.load_rows([other], user="ana")
    hidden = {"table": "facts", "row": fact | {"fact": OTHER_KEY, "visibility": 1}}
    with pytest.raises(InvalidRequest, match="versions of a fact"):
        admin.admin.load_rows([hidden], user="ana")


def test_an_import_keeps_the_quotas_of_the_store(honest: Rows, database_url: str, keys: dict[str, str]) -> None:
    for quota in ({"max_facts_per_user": 2}, {"max_turns_per_user": 5}):
        settings: dict[str, Any] = {"mode": "keys", "embedder": "hash", **quota}
        with (
            LocalService(database_url=database_url, **settings) as service,
            service.client(api_key=keys["admin"], timeout=60.0) as admin,
        ):
            with pytest.raises(Exception, match="the store allows"):
                admin.admin.load_rows(honest, user="ana")
            assert admin.admin.owners().owners == []


def test_every_archived_column_is_attacked_or_derived(honest: Rows) -> None:
    """The lists below name every column of an archive, so that somebody decides about a new one."""
    decided = {
        "sessions": "session agent session_id last_seq turns tokens revision state digested_tokens digest_version"
        " created_at updated_at",
        "turns": "session seq turn_id role name kind turn_group content payload tokens visibility erased imported"
        " noted_by created_at utc_offset event_at",
        "digests": "session version text from_seq upto_seq covered_tokens parent model prompt tokens trust created_at",
        "facts": "fact root agent session session_id visibility shared writer text origin extracted_by trust metadata"
        " created_at event_at valid_from valid_to superseded_by expires_at extended pinned access_count",
        "fact_sources": "fact session from_seq upto_seq support",
        "barred_sources": "session from_seq upto_seq",
        "items": "item pool agent for_all path key value fields ttl expires_at created_at updated_at",
        "threads": "thread agent thread_id for_all created_at updated_at",
        "checkpoints": "thread place checkpoint_id ns parent_id type data metadata versions run_id created_at",
        "checkpoint_blobs": "thread place blob channel version type data",
        "checkpoint_writes": "thread place checkpoint_id task_id idx task_path channel type data",
        "beliefs": "belief agent session session_id visibility statement falsification confidence assumption context"
        " verdict verdict_trust supported origin trust revision created_at updated_at valid_from valid_to",
        "belief_supports": "belief alternative supporter",
        "belief_events": "belief revision created_at agent cause cause_id statement falsification confidence verdict"
        " supported",
        "experiments": "experiment belief n agent plan reason changed verdict justification evidence trust created_at"
        " closed_at",
    }
    assert {table.name: {column.name for column in table.columns} - {"owner"} for table in ARCHIVED} == {
        name: set(columns.split()) for name, columns in decided.items()
    }
    assert {row["table"] for row in honest} == decided.keys() - {"fact_sources", "barred_sources"}


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("ana.jsonl", "{}")
    return made.getvalue()


def with_end(head: bytes, *rows: bytes) -> bytes:
    """Return an archive of these lines, with an end that has the right number and hash."""
    lines = b"".join(line + b"\n" for line in (head, *rows))
    end = {"rows": len(rows), "sha256": sha256(lines).hexdigest()}
    return lines + json.dumps(end).encode() + b"\n"


HEAD = b'{"threefold_archive":1,"user":"ana","exported_at":"2026-01-01T00:00:00Z"}'
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "zip": (zipped, "zip file"),
    "gzip": (lambda: gzip.compress(b"a" * 10**7), "gzip file"),
    "random": (lambda: b"\xfe" + os.urandom(5_000), "archive"),
    "empty": (lambda: b"", "first line"),
    "text": (lambda: b"hello\nworld\n", "first line"),
    "a newer version": (
        lambda: with_end(b'{"threefold_archive":2,"owner":{"user":"ana"},"exported_at":"2027-01-01"}'),
        "newer version",
    ),
    "truncated": (lambda: with_end(HEAD, b'{"table":"turns","row":{}}')[:-80], "last line|missing or were changed"),
    "only a head": (lambda: HEAD + b"\n", "last line"),
    "a row that is no object": (lambda: with_end(HEAD, b"[1]"), "row 0"),
    "a row that is no JSON": (lambda: with_end(HEAD, b'{"table":'), "row 0"),
    "a row with NaN": (lambda: with_end(HEAD, b'{"table":"facts","row":{"trust":NaN}}'), "row 0"),
    "deep nesting": (
        lambda: with_end(HEAD, b'{"table":"facts","row":' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5),
        "row 0",
    ),
    "one huge line": (lambda: HEAD + b"\n" + b"a" * (40 * 2**20), "too large"),
    "a huge first line": (lambda: b"[" * (40 * 2**20), "too large"),
}


def test_invalid_archive_gets_one_clear_error(
    run: Run, tmp_path: Path, served_admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEFOLD_URL", served_admin)
    file = tmp_path / "made.jsonl"
    with closing(MemoryClient(served_admin)) as client:
        for name, (make, expected) in FILES.items():
            file.write_bytes(make())
            ended = run("import", file)
            assert ended.code == 2, name
            assert "Traceback" not in ended.err
            assert len(ended.err.strip().splitlines()) == 1, ended.err
            with pytest.raises(InvalidRequest, match=expected), file.open("rb") as opened:
                client.admin.load(opened)
            with pytest.raises(InvalidRequest), file.open(encoding="utf-8", newline="\n") as lines:
                client.admin.load(lines)
        assert client.admin.owners().owners == []


@pytest.mark.parametrize("name", ["zip", "gzip", "random", "empty", "deep nesting"])
def test_route_refuses_invalid_json(name: str, service: LocalService, keys: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {keys['admin']}", "Content-Type": "application/json"}
    with httpx.Client(base_url="http://threefold.local", transport=service.transport(), headers=headers) as client:
        answer = client.post("/v1/admin/import", content=FILES[name][0]())
        assert answer.status_code == 422, answer.text[:500]
        assert answer.json()["error"]["code"] == "invalid_request"
        rows: Rows = [{"table": "turns", "row": {}}] * 1_001
        assert client.post("/v1/admin/import", json={"user": "ana", "rows": rows}).status_code == 422
