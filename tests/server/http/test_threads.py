"""Threads of graphs through the contract."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from threefold import Conflict, InvalidRequest, MemoryClient
from threefold.contract import (
    BlobIn,
    ChannelHistoryRequest,
    CheckpointPage,
    CopyThreadRequest,
    DeleteRunsRequest,
    PruneThreadsRequest,
    PutCheckpointRequest,
    PutWritesRequest,
    QueryCheckpointsRequest,
    WriteIn,
)
from threefold_server.local import LocalService
from threefold_server.storage.threads import checkpoints, pruning

HOSTILE = ["../x", "a/b/checkpoints", "query", "%2F", "' OR 1=1 --", "é" * 512, "a\nb", ".", "..", "😀", "prune"]


def checkpoint(checkpoint_id: str, parent_id: str | None = None, **fields: Any) -> PutCheckpointRequest:
    """Return a checkpoint whose body is its id."""
    body = {"checkpoint_id": checkpoint_id, "parent_id": parent_id, "type": "t", "data": checkpoint_id.encode()}
    return PutCheckpointRequest.model_validate(body | fields)


def valued(checkpoint_id: str, parent_id: str | None = None, **fields: Any) -> PutCheckpointRequest:
    """Return a checkpoint with one channel value of its own."""
    blob = BlobIn(channel="c", version=checkpoint_id, type="t", data=b"value of " + checkpoint_id.encode())
    return checkpoint(checkpoint_id, parent_id, versions={"c": checkpoint_id}, blobs=[blob], **fields)


def writes_of(task: str, *writes: WriteIn, path: str = "") -> PutWritesRequest:
    """Return writes of a task for the checkpoint `1`."""
    return PutWritesRequest(checkpoint_id="1", task_id=task, task_path=path, writes=list(writes))


def write(idx: int, value: str, channel: str = "c") -> WriteIn:
    return WriteIn(idx=idx, channel=channel, type="t", data=value.encode())


def read(memory: MemoryClient, thread_id: str | None = "t", **query: Any) -> CheckpointPage:
    return memory.threads.query(QueryCheckpointsRequest(thread_id=thread_id, **query))


def ids(memory: MemoryClient, thread_id: str | None = "t", **query: Any) -> list[str]:
    return [found.checkpoint_id for found in read(memory, thread_id, **query).checkpoints]


def values(page: CheckpointPage) -> dict[str, bytes]:
    return {str(blob.version): blob.data for blob in page.blobs}


def test_checkpoint_is_returned_byte_for_byte(memory: MemoryClient) -> None:
    every_byte = bytes(range(256))
    blob = BlobIn(channel="c", version=1, type="msgpack", data=every_byte)
    metadata = '{ "step": 1,  "note": "\\u0000\\ud800" }'
    memory.threads.put_checkpoint(
        "t",
        checkpoint("1", data=every_byte, metadata=metadata, versions={"c": 1, "none": "1"}, blobs=[blob]),
    )
    [found] = read(memory).checkpoints
    assert (found.data, found.metadata, found.versions) == (every_byte, metadata, {"c": 1, "none": "1"})
    [value] = read(memory).blobs
    assert (value.channel, value.version, value.type, value.data) == ("c", 1, "msgpack", every_byte)


def test_versions_of_different_types_differ(memory: MemoryClient) -> None:
    blobs = [BlobIn(channel="c", version=version, type="t", data=b"x") for version in (1, "1")]
    memory.threads.put_checkpoint("t", checkpoint("1", versions={"c": "1"}, blobs=blobs))
    assert [blob.version for blob in read(memory).blobs] == ["1"]


def test_repeated_checkpoint_replaces_the_stored_one(memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", valued("1"))
    memory.threads.put_checkpoint("t", valued("1", metadata='{"again": 1}'))
    [found] = read(memory).checkpoints
    assert found.metadata == '{"again": 1}'


def test_first_write_at_an_index_stays_and_the_last_at_a_negative_index(memory: MemoryClient) -> None:
    for value in ("first", "last"):
        memory.threads.put_writes("t", writes_of("a", write(0, value), write(-4, value, "resume")))
    memory.threads.put_checkpoint("t", checkpoint("1"))  # stored after its writes, as either may arrive first
    [found] = read(memory).checkpoints
    assert [(item.channel, item.data) for item in found.writes] == [("resume", b"last"), ("c", b"first")]


def test_writes_are_in_the_order_of_their_tasks(memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", checkpoint("1"))
    for task, path in (("a", "2"), ("b", "1"), ("c", "1")):
        request = PutWritesRequest(
            checkpoint_id="1", task_id=task, task_path=path, writes=[write(1, "1"), write(0, "0")]
        )
        memory.threads.put_writes("t", request)
    [found] = read(memory).checkpoints
    order = [item.task_id + item.data.decode() for item in found.writes]
    assert order == ["b0", "b1", "c0", "c1", "a0", "a1"]


def test_pages_contain_every_checkpoint_once(memory: MemoryClient) -> None:
    for thread, ns in (("t", ""), ("t", "sub"), ("u", "")):
        for number in range(4):
            memory.threads.put_checkpoint(thread, checkpoint(str(number), ns=ns))
    seen: list[tuple[str, str, str]] = []
    page = read(memory, None, limit=5)
    while True:
        seen += [(found.checkpoint_id, found.thread_id, found.ns) for found in page.checkpoints]
        if page.next_cursor is None:
            break
        page = read(memory, None, limit=5, cursor=page.next_cursor)
    assert len(seen) == len(set(seen)) == 12
    assert [item[0] for item in seen] == sorted((item[0] for item in seen), reverse=True)
    assert ids(memory, limit=0) == []
    with pytest.raises(InvalidRequest, match="cursor"):
        read(memory, cursor="WyIxIiwgIngiLCAieCJd")


def test_page_ends_early_if_values_are_large(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PAGE_BYTES", 20)
    for number in range(4):
        memory.threads.put_checkpoint("t", valued(str(number)))
    page = read(memory)
    assert [found.checkpoint_id for found in page.checkpoints] == ["3", "2", "1"]
    assert page.next_cursor is not None
    assert ids(memory, cursor=page.next_cursor) == ["0"]


def test_shared_value_is_returned_once(memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", valued("1"))
    memory.threads.put_checkpoint("t", checkpoint("2", "1", versions={"c": "1"}))
    assert values(read(memory)) == {"1": b"value of 1"}


def test_metadata_is_compared_by_value(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SCANNED_AT_ONCE", 2)
    for number in range(6):
        step = f'{{"step": {number % 2}, "source": "loop", "deep": {{"a": 1}}}}'
        memory.threads.put_checkpoint("t", checkpoint(str(number), metadata=step))
    assert ids(memory, filter={"step": 1}, limit=2) == ["5", "3"]
    assert ids(memory, filter={"step": 1, "deep": {"a": 1}}, before="3") == ["1"]
    assert ids(memory, filter={"step": "1"}) == ids(memory, filter={"missing": None}) == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_ids_with_special_characters_are_exact(memory: MemoryClient, hostile: str) -> None:
    memory.threads.put_checkpoint(hostile, valued("1", ns=hostile))
    memory.threads.put_writes(hostile, PutWritesRequest(ns=hostile, checkpoint_id="1", task_id="a", writes=[]))
    assert ids(memory, hostile, ns=hostile) == ["1"]
    assert ids(memory, "x" + hostile[1:]) == ids(memory, hostile, ns="") == []
    assert memory.threads.copy(hostile, CopyThreadRequest(target="copy")).checkpoints == 1
    assert memory.threads.delete(hostile).checkpoints == 1
    assert ids(memory, None) == ["1"]


def test_namespace_may_be_longer_than_an_index_entry(memory: MemoryClient) -> None:
    long = "|".join(f"é{number}:{'x' * 300}" for number in range(13))
    memory.threads.put_checkpoint("t", valued("1" * 128, ns=long))
    assert ids(memory, ns=long) == ["1" * 128]


def test_threads_of_users_agents_and_scopes_are_separate(service: LocalService) -> None:
    clients = [service.client(user=user, agent=agent) for user in ("ana", "ben") for agent in ("one", "two")]
    for number, client in enumerate(clients):
        client.threads.put_checkpoint("t", valued(str(number)))
        client.threads.put_checkpoint("t", valued(f"9{number % 2}", scope="agent"))
    for number, client in enumerate(clients):
        assert ids(client) == ids(client, None) == [str(number)]
        assert ids(client, scope="agent") == ids(client, None, scope="agent") == [f"9{number % 2}"]
    assert clients[0].threads.delete("t").checkpoints == 1
    assert [ids(client) for client in clients] == [[], ["1"], ["2"], ["3"]]
    assert clients[0].threads.delete("t", "agent").checkpoints == 1
    assert [ids(client, scope="agent") for client in clients] == [[], ["91"], [], ["91"]]


def test_checkpoint_of_a_deleted_thread_is_refused(memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", valued("1"))
    memory.threads.delete("t")
    late = [
        lambda: memory.threads.put_checkpoint("t", valued("1")),
        lambda: memory.threads.put_checkpoint("t", valued("2", "1")),
        lambda: memory.threads.put_checkpoint("t", valued("2", ns="s:1", metadata='{"parents": {"": "1"}}')),
        lambda: memory.threads.put_writes("t", writes_of("a", write(0, "x"))),
    ]
    late.append(lambda: memory.threads.put_checkpoint("t", valued("2.1", "2")))  # its parent was refused
    for store in late:
        with pytest.raises(Conflict, match="deleted"):
            store()
    assert ids(memory) == []
    memory.threads.put_checkpoint("t", valued("3"))
    assert ids(memory) == ["3"]


def test_copy_into_a_deleted_thread_can_be_continued(memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", valued("1"))
    memory.threads.put_writes("t", writes_of("a", write(0, "x")))
    memory.threads.copy("t", CopyThreadRequest(target="u"))
    memory.threads.delete("t")
    assert memory.threads.copy("u", CopyThreadRequest(target="t")).checkpoints == 1
    memory.threads.put_checkpoint("t", valued("2", "1"))
    page = read(memory)
    assert [found.checkpoint_id for found in page.checkpoints] == ["2", "1"]
    assert page.checkpoints[1].writes[0].data == b"x"
    assert values(page) == {"1": b"value of 1", "2": b"value of 2"}
    assert memory.threads.copy("t", CopyThreadRequest(target="t")).threads == 0
    assert memory.threads.copy("none", CopyThreadRequest(target="new")).threads == 0


def test_limits_delete_old_checkpoints_with_their_values(memory: MemoryClient) -> None:
    for number in range(1, 6):
        parent = str(number - 1) if number > 1 else None
        dropped = memory.threads.put_checkpoint("t", valued(str(number), parent, keep_last=2)).dropped
        assert dropped == (1 if number > 2 else 0)
    page = read(memory)
    assert [(found.checkpoint_id, found.parent_id) for found in page.checkpoints] == [("5", "4"), ("4", None)]
    assert memory.threads.put_checkpoint("t", valued("6", "5", max_age=1e-6)).dropped == 2
    assert values(read(memory)) == {"6": b"value of 6"}
    assert memory.threads.copy("t", CopyThreadRequest(target="all")).checkpoints == 1
    assert values(read(memory, "all")) == {"6": b"value of 6"}


def test_checkpoints_of_a_subgraph_are_pruned_with_their_parent_step(memory: MemoryClient) -> None:
    for number in (1, 2, 3):
        under = f'{{"parents": {{"": "{number}"}}}}'
        memory.threads.put_checkpoint("t", valued(str(number)))
        memory.threads.put_checkpoint("t", valued(f"{number}.1", ns=f"node:{number}", metadata=under))
        memory.threads.put_checkpoint("t", valued(f"{number}.2", ns="stateful", metadata=under))
    memory.threads.put_checkpoint(
        "t", valued("4.1", ns="node:4", metadata='{"parents": {"": "4"}}')
    )  # stored before its root
    memory.threads.prune(PruneThreadsRequest(thread_ids=["t", "unknown"]))
    assert ids(memory) == ["4.1", "3.2", "3.1", "3"]


def test_checkpoints_needed_for_delta_channels_stay(memory: MemoryClient) -> None:
    for number in range(3):
        counted = f'{{"{pruning.DELTA}": {{"c": [1, 1]}}}}'
        memory.threads.put_checkpoint("t", valued(str(number), metadata=counted, keep_last=1))
    assert ids(memory) == ["2", "1", "0"]


def test_runs_are_deleted_by_their_id(service: LocalService, memory: MemoryClient) -> None:
    with service.client(user="ben", agent="support") as ben:
        for client in (memory, ben):
            for number, run in enumerate(("a", "b", "a")):
                client.threads.put_checkpoint("t", valued(str(number), metadata=f'{{"run_id": "{run}"}}'))
        counts = memory.threads.delete_runs(DeleteRunsRequest(run_ids=["a", "unknown"]))
        assert (counts.threads, counts.checkpoints) == (1, 2)
        assert ids(memory) == ["1"]
        assert values(read(memory)) == {"1": b"value of 1"}
        assert len(ids(ben)) == 3


def test_history_of_channels_ends_at_the_stored_value(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "ANCESTORS_AT_ONCE", 2)
    for number in range(7):
        parent = None if number == 0 else str(number - 1)
        stored = valued if number == 2 else checkpoint
        memory.threads.put_checkpoint("t", stored(str(number), parent))
        writes = [write(0, f"c{number}"), write(1, f"d{number}", "d")]
        memory.threads.put_writes("t", PutWritesRequest(checkpoint_id=str(number), task_id="a", writes=writes))
    memory.threads.put_checkpoint("t", checkpoint("fork", "3"))  # 4 to 6 are not among its ancestors

    def history(checkpoint_id: str | None) -> dict[str, tuple[bytes | None, list[str]]]:
        asked = ChannelHistoryRequest(checkpoint_id=checkpoint_id, channels=["c", "d"])
        found = memory.threads.history("t", asked).channels
        return {
            name: (item.seed and item.seed.data, [entry.data.decode() for entry in item.writes])
            for name, item in found.items()
        }

    assert history("6") == {
        "c": (b"value of 2", ["c2", "c3", "c4", "c5"]),
        "d": (None, ["d0", "d1", "d2", "d3", "d4", "d5"]),
    }
    assert history(None) == history("fork")
    assert history("fork") == {"c": (b"value of 2", ["c2", "c3"]), "d": (None, ["d0", "d1", "d2", "d3"])}
    assert history("2") == {"c": (None, ["c0", "c1"]), "d": (None, ["d0", "d1"])}
    assert history("unknown") == {"c": (None, []), "d": (None, [])}


def test_history_with_a_cycle_of_ancestors_ends(memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", checkpoint("1", "2"))
    memory.threads.put_checkpoint("t", checkpoint("2", "1"))
    found = memory.threads.history("t", ChannelHistoryRequest(checkpoint_id="2", channels=["c"]))
    assert found.channels["c"].writes == []


def test_threads_are_forgotten_with_their_session_and_level(service: LocalService, memory: MemoryClient) -> None:
    with service.client(user="ana", agent="other") as other:
        for thread in ("s1", "s2"):
            memory.threads.put_checkpoint(thread, valued("1"))
        other.threads.put_checkpoint("s1", valued("1"))
        receipt = memory.forget(session_id="s1")
        assert (receipt.counts["threads"], receipt.counts["checkpoints"], receipt.not_covered) == (1, 1, [])
        assert ids(memory, None) == ids(other, None) == ["1"]
        assert memory.forget(level="agent", dry_run=True).counts["threads"] == 1
        assert memory.forget(level="agent").counts["threads"] == 1
        assert ids(memory, None) == []
        assert ids(other, None) == ["1"]
        with pytest.raises(Conflict):
            memory.threads.put_checkpoint("s1", valued("2", "1"))
        assert memory.forget(level="user").counts["threads"] == 1
        assert ids(other, None) == []


def test_receipt_names_what_it_does_not_cover(service: LocalService, memory: MemoryClient) -> None:
    memory.threads.put_checkpoint("t", valued("1"))
    memory.threads.put_checkpoint("t", valued("1", scope="agent"))
    fact = memory.save("The heron nests in May.")
    assert memory.delete_fact(fact.id).not_covered == ["threads"]
    assert memory.forget(level="user").not_covered == ["threads of scope 'agent'"]
    assert ids(memory, scope="agent") == ["1"]
    with service.client(user="ana", agent="another") as other:
        assert other.forget(level="agent").not_covered == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", "[]"),
        ("metadata", "{"),
        ("data", "no base64"),
        ("data", "é"),
        ("checkpoint_id", ""),
        ("checkpoint_id", "x" * 129),
        ("ns", "a\u0000"),
        ("versions", {"c": [1]}),
        ("user", "ben"),
        ("scope", "store"),
        ("keep_last", 0),
    ],
)
def test_invalid_input_names_the_field_and_stores_nothing(
    http: httpx.Client, memory: MemoryClient, field: str, value: Any
) -> None:
    body = {"checkpoint_id": "1", "type": "t", "data": base64.b64encode(b"x").decode(), field: value}
    answer = http.post("/v1/threads/t/checkpoints", json=body)
    assert answer.status_code == 422
    assert field in answer.json()["error"]["message"]
    assert ids(memory, None) == []


@pytest.mark.parametrize("parents", ['"x"', "[1]", '{"": 1}', "null"])
def test_metadata_may_have_unexpected_values(memory: MemoryClient, parents: str) -> None:
    metadata = f'{{"parents": {parents}, "run_id": 7}}'
    for number in range(2):
        memory.threads.put_checkpoint("t", valued(str(number), ns="a:1", metadata=metadata, keep_last=1))
    assert ids(memory) == ["1"]
