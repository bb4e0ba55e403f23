"""Beliefs, experiments and cascades through the contract, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import Connection, event, insert

from threefold import MemoryClient
from threefold.contract import Belief
from threefold.errors import Conflict, Forbidden, InvalidRequest, NotFound, RevisionConflict
from threefold_server.local import LocalService
from threefold_server.rules.access import owner_key
from threefold_server.storage.engine.database import Database
from threefold_server.storage.engine.tables import belief_supports, beliefs
from threefold_server.storage.knowledge.belief_standing import dependents


def premise(memory: MemoryClient, statement: str, **options: Any) -> Belief:
    return memory.beliefs.record(statement, falsification="It fails.", **options)


def judge(memory: MemoryClient, belief: Belief, verdict: Any, why: str = "seen") -> Any:
    again = memory.beliefs.get(belief.id).verdict == "falsified"
    experiment = memory.beliefs.reverify(belief.id, "again").experiment if again else None
    experiment = experiment or memory.beliefs.open_experiment(belief.id)
    return memory.beliefs.close_experiment(experiment.id, verdict, why)


def standing(memory: MemoryClient, *found: Belief) -> list[str]:
    return [memory.beliefs.get(belief.id).standing for belief in found]


def test_belief_is_recorded_with_its_support(memory: MemoryClient) -> None:
    root = premise(memory, "The network is slow.", confidence=0.8, context={"env": "staging"})
    assert (root.verdict, root.standing, root.because, root.revision) == ("pending", "supported", [], 1)
    assert (root.kind, root.confidence, root.context, root.origin, root.trust) == (
        "hypothesis",
        0.8,
        {"env": "staging"},
        "user",
        1.0,
    )
    above = memory.beliefs.record("A timeout helps.", kind="assumption", support=[[root.id]])
    assert (above.standing, above.support, above.falsification) == ("supported", [[root.id]], None)
    assert memory.beliefs.get(above.id) == above
    assert [belief.id for belief in memory.beliefs.list().beliefs] == [above.id, root.id]
    assert [belief.id for belief in memory.beliefs.dependents(root.id).beliefs] == [above.id]


def test_falsified_root_makes_dependents_unsupported_and_restores_them(memory: MemoryClient) -> None:
    root, other = premise(memory, "root"), premise(memory, "other")
    left, right = (premise(memory, name, support=[[root.id]]) for name in ("left", "right"))
    top = premise(memory, "top", support=[[left.id, right.id]])
    either = premise(memory, "either", support=[[left.id], [other.id]])
    closed = judge(memory, root, "falsified")
    assert {*closed.cascade.unsupported} == {left.id, right.id, top.id}
    assert closed.cascade.restored == []
    assert standing(memory, root, left, right, top, either) == ["supported", *["unsupported"] * 3, "supported"]
    lost = memory.beliefs.get(top.id)
    assert lost.verdict == "pending"  # unsupported is not falsified
    assert [(reason.belief_id, reason.reason) for reason in lost.because] == [
        (key, "unsupported") for key in sorted([left.id, right.id])
    ]
    assert [reason.reason for reason in memory.beliefs.get(left.id).because] == ["falsified"]
    late = premise(memory, "recorded after the verdict", support=[[root.id]])
    assert late.standing == "unsupported"
    closed = judge(memory, root, "confirmed")
    assert {*closed.cascade.restored} == {left.id, right.id, top.id, late.id}
    assert standing(memory, root, left, right, top, either, late) == ["supported"] * 6


def test_experiment_is_closed_once_and_knows_earlier_attempts(memory: MemoryClient) -> None:
    belief = premise(memory, "A longer timeout mends it.")
    first = memory.beliefs.open_experiment(belief.id, plan="60 s")
    assert (first.n, first.state, first.plan, first.prior) == (1, "open", "60 s", [])
    closed = memory.beliefs.close_experiment(first.id, "falsified", "It failed at 60 s.", evidence=["log 12"])
    assert (closed.state, closed.verdict, closed.justification, closed.evidence) == (
        "closed",
        "falsified",
        "It failed at 60 s.",
        ["log 12"],
    )
    for verdict in ("confirmed", "falsified"):
        with pytest.raises(Conflict, match="was closed as falsified"):
            memory.beliefs.close_experiment(first.id, verdict, "again")
    with pytest.raises(Conflict, match="reverify"):
        memory.beliefs.open_experiment(belief.id)
    again = memory.beliefs.reverify(belief.id, "The network is new.", changed="fibre")
    assert again.clearance
    assert (again.experiment.n, again.experiment.reason, again.experiment.changed) == (
        2,
        "The network is new.",
        "fibre",
    )
    [prior] = again.experiment.prior
    assert (prior.n, prior.verdict, prior.justification, prior.evidence) == (
        1,
        "falsified",
        "It failed at 60 s.",
        ["log 12"],
    )
    assert memory.beliefs.get(belief.id).verdict == "falsified"  # until the new attempt confirms it
    assert memory.beliefs.close_experiment(again.experiment.id, "confirmed", "It holds.").prior == [prior]
    confirmed = memory.beliefs.get(belief.id)
    assert (confirmed.verdict, confirmed.valid_to) == ("confirmed", None)
    with pytest.raises(Conflict, match="not falsified"):
        memory.beliefs.reverify(belief.id, "again")


def test_history_and_as_of_tell_what_was_believed(memory: MemoryClient) -> None:
    root = premise(memory, "root", confidence=0.5)
    above = premise(memory, "above", support=[[root.id]])
    changed = memory.beliefs.update(root.id, 1, statement="the root", confidence=0.9)
    closed = judge(memory, root, "falsified")
    events = memory.beliefs.history(root.id).events
    assert [(event.revision, event.cause, event.verdict, event.statement) for event in events] == [
        (1, "recorded", "pending", "root"),
        (2, "changed", "pending", "the root"),
        (3, "verdict", "falsified", "the root"),
    ]
    assert events[2].cause_id == closed.id
    assert events[2].agent == "support"
    [_, cascade] = memory.beliefs.history(above.id).events
    assert (cascade.cause, cascade.cause_id, cascade.standing) == ("cascade", root.id, "unsupported")
    assert memory.beliefs.list(as_of=events[0].at.replace(year=2000)).beliefs == []
    [before] = memory.beliefs.list(as_of=root.created_at).beliefs
    assert (before.statement, before.confidence, before.verdict, before.revision) == ("root", 0.5, "pending", 1)
    [then_above, between] = memory.beliefs.list(as_of=changed.updated_at).beliefs
    assert (between.statement, between.verdict, between.valid_to) == ("the root", "pending", None)
    assert (then_above.standing, then_above.because) == ("supported", [])
    [now_above, now] = memory.beliefs.list(as_of=closed.closed_at).beliefs
    assert (now.verdict, now.valid_to) == ("falsified", closed.closed_at)
    assert [reason.reason for reason in now_above.because] == ["falsified"]
    assert memory.beliefs.list(as_of=changed.updated_at, verdict="falsified").beliefs == []
    assert [one.id for one in memory.beliefs.list(verdict="falsified").beliefs] == [root.id]
    assert [one.id for one in memory.beliefs.list(standing="unsupported").beliefs] == [above.id]


def test_change_needs_the_present_revision_and_an_open_verdict(memory: MemoryClient) -> None:
    belief = premise(memory, "first")
    changed = memory.beliefs.update(belief.id, 1, statement="second", falsification="It breaks.")
    assert (changed.statement, changed.falsification, changed.revision) == ("second", "It breaks.", 2)
    assert memory.beliefs.update(belief.id, 2, statement="second").revision == 2  # nothing changes
    with pytest.raises(RevisionConflict) as refused:
        memory.beliefs.update(belief.id, 1, statement="third")
    assert refused.value.details["revision"] == 2
    judge(memory, belief, "confirmed")
    for changes in ({"statement": "third"}, {"falsification": "never"}):
        with pytest.raises(Conflict, match="judged statement"):
            memory.beliefs.update(belief.id, 3, **changes)  # pyright: ignore[reportArgumentType]
    assert memory.beliefs.update(belief.id, 3, confidence=1.0).confidence == 1.0
    assert memory.beliefs.get(belief.id).statement == "second"


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("falsification", {"statement": "x"}),
    ("statement", {"statement": " ", "kind": "assumption"}),
    ("confidence", {"statement": "x", "kind": "assumption", "confidence": 1.5}),
    ("support", {"statement": "x", "kind": "assumption", "support": [[]]}),
    ("support", {"statement": "x", "kind": "assumption", "support": [["0" * 32]]}),
    ("support", {"statement": "x", "kind": "assumption", "support": [["not an id"]]}),
    ("session_id", {"statement": "x", "kind": "assumption", "visibility": "session"}),
    ("context", {"statement": "x", "kind": "assumption", "context": {"a": 1}}),
    ("verdict", {"statement": "x", "kind": "assumption", "verdict": "confirmed"}),
    ("user", {"statement": "x", "kind": "assumption", "user": "bob"}),
]


@pytest.mark.parametrize(("field", "body"), WRONG)
def test_wrong_belief_is_refused(http: httpx.Client, field: str, body: dict[str, Any]) -> None:
    answer = http.post("/v1/beliefs", json=body)
    assert answer.status_code == 422, answer.text
    assert field in answer.json()["error"]["message"]


def test_support_never_changes_so_that_no_circle_can_form(memory: MemoryClient, http: httpx.Client) -> None:
    root = premise(memory, "root")
    above = premise(memory, "above", support=[[root.id]])
    answer = http.patch(f"/v1/beliefs/{root.id}", json={"revision": 1, "support": [[above.id]]})
    assert (answer.status_code, "support" in answer.text) == (422, True)


def test_support_must_have_the_readers_of_the_belief(memory: MemoryClient, service: LocalService) -> None:
    narrow = premise(memory, "narrow", visibility="session", session_id="s1")
    mine = premise(memory, "of this agent", visibility="agent")
    for support, options in (
        (narrow, {}),
        (narrow, {"visibility": "session", "session_id": "s2"}),
        (mine, {"visibility": "user"}),
    ):
        with pytest.raises(InvalidRequest, match="visibility"):
            premise(memory, "wide", support=[[support.id]], **options)
    premise(memory, "same", support=[[narrow.id, mine.id]], visibility="session", session_id="s1")
    with service.client(user="ana", agent="other") as other, pytest.raises(InvalidRequest, match="no such belief"):
        premise(other, "leans on another agent", support=[[mine.id]], visibility="agent")


def test_other_users_neither_read_nor_judge_nor_lean(memory: MemoryClient, service: LocalService) -> None:
    belief = premise(memory, "ana's")
    experiment = memory.beliefs.open_experiment(belief.id)
    with service.client(user="bob", agent="support") as bob:
        attempts: list[Callable[[], object]] = [
            lambda: bob.beliefs.get(belief.id),
            lambda: bob.beliefs.update(belief.id, 1, confidence=0.1),
            lambda: bob.beliefs.history(belief.id),
            lambda: bob.beliefs.dependents(belief.id),
            lambda: bob.beliefs.delete(belief.id),
            lambda: bob.beliefs.open_experiment(belief.id),
            lambda: bob.beliefs.close_experiment(experiment.id, "falsified", "planted"),
            lambda: bob.beliefs.reverify(belief.id, "planted"),
        ]
        for attempt in attempts:
            with pytest.raises(NotFound):
                attempt()
        with pytest.raises(InvalidRequest, match="no such belief"):
            premise(bob, "leaning", support=[[belief.id]])
        assert bob.beliefs.list().beliefs == []
    assert memory.beliefs.get(belief.id) == belief


def test_forgotten_support_makes_dependents_unsupported(memory: MemoryClient) -> None:
    root = premise(memory, "quetzal root")
    above = premise(memory, "above", support=[[root.id]])
    dry = memory.forget(memory_ids=[root.id], dry_run=True).counts
    assert (dry["beliefs"], dry["unsupported_beliefs"]) == (1, 1)
    assert standing(memory, root, above) == ["supported"] * 2
    receipt = memory.beliefs.delete(root.id)
    assert receipt.complete
    assert (receipt.counts["beliefs"], receipt.counts["unsupported_beliefs"]) == (1, 1)
    lost = memory.beliefs.get(above.id)
    assert (lost.standing, lost.verdict) == ("unsupported", "pending")
    assert [(reason.belief_id, reason.reason) for reason in lost.because] == [(root.id, "forgotten")]
    assert memory.beliefs.history(above.id).events[-1].cause == "forgotten"
    with pytest.raises(NotFound):
        memory.beliefs.delete(root.id)


def test_every_selector_erases_beliefs(memory: MemoryClient) -> None:
    def count(**selector: Any) -> int:
        return memory.forget(**selector, dry_run=True).counts["beliefs"]

    belief = premise(memory, "one", session_id="s1")
    premise(memory, "two")
    assert count(session_id="s1") == 1
    assert count(session_id="s2") == 0
    assert count(level="agent") == count(level="user") == 2
    assert count(memory_ids=[belief.id]) == 1
    assert count(source={"kind": "agent", "name": "support"}) == 2
    assert count(source={"kind": "session", "name": "s1"}) == 1
    assert count(source={"kind": "agent", "name": "support"}, since=belief.created_at) == 2
    assert memory.forget(level="user").complete
    assert memory.beliefs.list().beliefs == []


def test_beliefs_come_in_pages(memory: MemoryClient) -> None:
    recorded = [premise(memory, f"belief {number}").id for number in range(5)]
    found: list[str] = []
    cursor = None
    for _ in range(3):
        page = memory.beliefs.list(limit=2, cursor=cursor)
        found += [belief.id for belief in page.beliefs]
        cursor = page.next_cursor
    assert (found, cursor) == (recorded[::-1], None)
    with pytest.raises(InvalidRequest, match="cursor"):
        memory.beliefs.list(cursor="no")
    with pytest.raises(Forbidden):
        memory.beliefs.list(level="store")


def test_secrets_are_removed(database_url: str) -> None:
    key = "sk-ant-api03-AAAABBBBCCCCDDDDEEEEFFFFGGGGHHHHIIIIJJJJ"
    with (
        LocalService(database_url=database_url, embedder="hash") as service,
        service.client(user="ana", agent="a") as memory,
    ):
        belief = memory.beliefs.record(f"The key is {key}", falsification=f"not {key}", context={"of": key})
        experiment = memory.beliefs.open_experiment(belief.id, plan=f"try {key}")
        memory.beliefs.close_experiment(experiment.id, "falsified", f"refused {key}", evidence=[f"log {key}"])
        again = memory.beliefs.reverify(belief.id, f"because {key}", changed=f"now {key}")
        answers = [memory.beliefs.get(belief.id), memory.beliefs.history(belief.id), again]
        assert not [answer for answer in answers if key in answer.model_dump_json()]


def test_concurrent_verdicts_end_as_in_some_order(memory: MemoryClient) -> None:
    roots = [premise(memory, f"root {number}") for number in range(4)]
    tops = [premise(memory, f"top {number}", support=[[one.id for one in roots]]) for number in range(3)]

    def work(number: int) -> None:
        for step in range(6):
            judge(memory, roots[number % 4], "falsified" if (step + number) % 2 else "confirmed")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    falsified = any(memory.beliefs.get(root.id).verdict == "falsified" for root in roots)
    assert standing(memory, *tops) == ["unsupported" if falsified else "supported"] * 3
    for belief in (*roots, *tops):
        events = memory.beliefs.history(belief.id).events
        assert [event.revision for event in events] == list(range(1, len(events) + 1))


def test_long_chain_follows_its_root(memory: MemoryClient, database_url: str) -> None:
    """2,000 beliefs rest on one another; the last one changes with the first."""
    root = premise(memory, "root")
    with closing(Database(database_url)) as database:
        row = database.read_sync("system", lambda c: c.execute(beliefs.select()).mappings().one())
        keys = [UUID(root.id), *(UUID(int=number) for number in range(1, 2_001))]
        rows = [{**row, "belief": key} for key in keys[1:]]
        pairs = zip(keys[1:], keys, strict=False)
        held = [{"owner": row["owner"], "belief": key, "alternative": 0, "supporter": below} for key, below in pairs]
        owner = owner_key("user", "ana")
        database.write_sync(
            owner, lambda c: (c.execute(insert(beliefs), rows), c.execute(insert(belief_supports), held))
        )
    assert len(judge(memory, root, "falsified").cascade.unsupported) == 2_000
    assert memory.beliefs.get(keys[-1].hex).standing == "unsupported"
    assert len(judge(memory, root, "confirmed").cascade.restored) == 2_000


def test_verdict_and_reverification_are_in_the_audit(database_url: str) -> None:
    with (
        LocalService(database_url=database_url, embedder="hash", allow_admin=True) as service,
        service.client(user="ana", agent="a") as memory,
    ):
        belief = premise(memory, "x")
        premise(memory, "above", support=[[belief.id]])
        judge(memory, belief, "falsified")
        memory.beliefs.reverify(belief.id, "again")
        entries = {entry.action: entry for entry in memory.admin.audit().entries}
        assert entries["verdict"].target == "falsified"
        assert entries["verdict"].counts == {"unsupported": 1, "restored": 0}
        assert entries["reverify"].counts == {"attempt": 2}


def test_search_for_dependents_uses_the_index_of_supporters(sqlite_url: str) -> None:
    """SQLite read all supports of the owner for each belief on the way."""
    sent: list[str] = []
    with closing(Database(sqlite_url)) as database:

        def explained(connection: Connection) -> str:
            event.listen(connection, "before_cursor_execute", lambda *call: sent.append(call[2]))
            dependents(connection, UUID(int=1), [UUID(int=2)])
            values = [b""] * sent[0].count("?")
            return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent[0]}", tuple(values)).all())

        plan = database.read_sync(UUID(int=1), explained)
    assert plan.count("belief_supports_by_supporter (owner=? AND supporter=?)") == 2
