"""`ThreefoldConversationStore` behaves like the in-memory store of the framework, and conversations are memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryImage,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from fixtures.served import served
from threefold import AsyncMemoryClient, InvalidRequest, MemoryClient, Unreachable
from threefold_pydantic_ai import ThreefoldConversationStore, ThreefoldMemory
from threefold_server.local import LocalService

pytestmark = pytest.mark.anyio

OpenStore = Callable[[], ConversationStore]


@pytest.fixture
def store_of(service: LocalService) -> Callable[..., ThreefoldConversationStore]:
    """Return a function that opens a store of a user; each call makes a new one, as in another process."""

    def open_for(user: str = "ana") -> ThreefoldConversationStore:
        return ThreefoldConversationStore(service.async_client(user, "support", timeout=60.0))

    return open_for


@pytest.fixture(params=["sqlite", "postgres", "in memory"])
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Our store on each database, and the in-memory store of the framework for comparison."""
    if request.param == "in memory":
        store = InMemoryConversationStore()
        yield lambda: store
    else:
        with LocalService(database_url=request.getfixturevalue(f"{request.param}_url"), embedder="hash") as service:
            yield lambda: ThreefoldConversationStore(service.async_client("ana", "support", timeout=60.0))


def exchange(number: int) -> list[ModelMessage]:
    """Return a question and its answer."""
    return [ModelRequest([UserPromptPart(f"Question {number}")]), ModelResponse([TextPart(f"Answer {number}")])]


def words(conversation: Conversation | None) -> list[str]:
    assert conversation is not None
    return [str(part.content) for m in conversation.messages for part in m.parts if hasattr(part, "content")]  # pyright: ignore


async def saved(store: ConversationStore, rounds: int = 2, **options: Any) -> Conversation:
    """Save a conversation after each round."""
    conversation = Conversation(conversation_id="c")
    for number in range(rounds):
        conversation.messages.extend(exchange(number))
        assert len(await store.save(conversation, **options)) == 2
    return conversation


async def test_saved_conversation_is_loaded(open_store: OpenStore) -> None:
    conversation = await saved(open_store())
    conversation.usage.requests = 7
    await open_store().save(conversation)
    loaded = await open_store().load("c")
    assert loaded == conversation
    assert await open_store().load("other") is None
    assert words(await open_store().load("c", limit=1)) == ["Answer 1"]


async def test_loaded_window_is_continued(open_store: OpenStore) -> None:
    await saved(open_store())
    store = open_store()
    window = await store.load("c", limit=1)
    assert window is not None
    window.messages.extend(exchange(2))
    await store.save(window)
    assert words(await open_store().load("c")) == [f"{kind} {n}" for n in range(3) for kind in ("Question", "Answer")]


async def test_stale_copy_is_refused(open_store: OpenStore) -> None:
    await saved(open_store())
    one, two = await open_store().load("c"), await open_store().load("c")
    assert one is not None
    assert two is not None
    one.messages.extend(exchange(2))
    two.messages.extend(exchange(3))
    await open_store().save(one)
    with pytest.raises(ConversationConflict):
        await open_store().save(two)
    with pytest.raises(ConversationConflict):
        await open_store().save(Conversation(conversation_id="c", messages=exchange(4)))
    assert words(await open_store().load("c"))[-1] == "Answer 2"


async def test_branching_from_an_entry(open_store: OpenStore) -> None:
    left = await saved(open_store())
    store = open_store()
    branch = await store.branch("c", at=1, expected_revision=left.revision)
    branch.messages.append(ModelResponse([TextPart("Another answer")]))
    await store.save(branch)
    assert words(await open_store().load("c")) == ["Question 0", "Another answer"]
    record = (await open_store().list_conversations())[0]
    back = await open_store().branch("c", from_entry=record.branches[0], expected_revision=branch.revision)
    assert words(back) == words(left)
    with pytest.raises(UserError):
        await open_store().branch("c", from_entry="nowhere", expected_revision=back.revision)


async def test_fork_remains_when_the_original_is_deleted(open_store: OpenStore) -> None:
    await saved(open_store())
    store = open_store()
    fork = await store.fork("c", at=2, new_conversation_id="f")
    fork.messages.extend(exchange(9))
    await store.save(fork)
    again = await open_store().fork("f", new_conversation_id="g")
    assert words(again) == ["Question 0", "Answer 0", "Question 9", "Answer 9"]
    await open_store().delete("c")
    assert await open_store().load("c") is None
    assert words(await open_store().load("f")) == words(again)
    assert [record.conversation_id for record in await open_store().list_conversations()] == ["g", "f"]


async def test_rewritten_history_becomes_a_branch(open_store: OpenStore) -> None:
    conversation = await saved(open_store())
    copy = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(conversation))
    copy.messages[2:] = exchange(5)
    await open_store().save(copy)
    assert words(await open_store().load("c")) == ["Question 0", "Answer 0", "Question 5", "Answer 5"]
    assert len((await open_store().list_conversations())[0].branches) == 1


async def test_scopes_are_separate(open_store: OpenStore) -> None:
    await saved(open_store(), scope="web")
    assert await open_store().load("c", scope="phone") is None
    assert len(await open_store().list_conversations(scope="web")) == 1
    assert await open_store().list_conversations(scope="phone") == []
    await open_store().delete("c", scope="phone")
    assert await open_store().load("c", scope="web") is not None


async def test_users_with_the_same_conversation_id_are_separate(store_of: Any) -> None:
    await saved(store_of())
    assert await store_of("bob").load("c") is None
    await store_of("bob").save(Conversation(conversation_id="c", messages=exchange(7)))
    assert words(await store_of("bob").load("c")) == ["Question 7", "Answer 7"]
    assert len(words(await store_of().load("c"))) == 4


async def test_conversations_are_recalled_and_forgotten(store_of: Any, memory: MemoryClient) -> None:
    await saved(store_of())
    assert "Question 1" in memory.recall("question 1", session_id="elsewhere").block
    await store_of().delete("c")
    assert memory.recall("question 1", session_id="elsewhere").block == ""
    assert memory.sessions().sessions == []
    await saved(store_of())  # the id can be used again


async def test_forgotten_message_leaves_the_rest_of_the_conversation(store_of: Any, memory: MemoryClient) -> None:
    await saved(store_of(), rounds=3)
    gone = [turn.id for turn in memory.turns("c").turns if turn.content in ("Answer 0", "Question 1")]
    memory.forget(memory_ids=gone)
    assert words(await store_of().load("c")) == ["Question 0", "Answer 1", "Question 2", "Answer 2"]


async def test_long_conversation_is_saved_in_parts(store_of: Any) -> None:
    messages = [message for number in range(600) for message in exchange(number)]
    await store_of().save(Conversation(conversation_id="c", messages=messages))
    loaded = await store_of().load("c")
    assert loaded is not None
    assert loaded.messages == messages


async def test_recalled_memory_is_not_saved_in_the_conversation(service: LocalService, store_of: Any) -> None:
    with service.client("ana", "support") as memory:
        memory.write("told", [{"role": "user", "content": "The gate code is 4711."}])
        capability = ThreefoldMemory(service.async_client("ana", "support"), record=False)
        agent = Agent(FunctionModel(fine), capabilities=[capability])
        result = await agent.run("What is the gate code?", conversation=Conversation(conversation_id="c"))
        assert "4711" in str(result.all_messages())
        await store_of().save(result)
        assert "4711" not in str(memory.turns("c", payload=True).turns)
        loaded = await store_of().load("c")
        assert [len(loaded.messages), loaded.new_message_index] == [3, 3]
        await store_of().save(await agent.run("Thanks.", conversation=loaded))
        assert [turn.content for turn in memory.turns("c").turns if turn.content] == [
            *("What is the gate code?", "Fine.", "Thanks.", "Fine.")
        ]


async def fine(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("Fine.")])


async def test_session_with_the_state_of_another_framework_is_refused(store_of: Any, memory: MemoryClient) -> None:
    memory.write("c", [], state='{"other": 1}')
    with pytest.raises(InvalidRequest, match="does not hold a conversation of Pydantic AI"):
        await store_of().load("c")


async def test_session_with_turns_becomes_a_conversation(store_of: Any, memory: MemoryClient) -> None:
    memory.write("c", [{"role": "user", "content": "Before."}])
    assert await store_of().load("c") is None
    await saved(store_of())
    assert len(words(await store_of().load("c"))) == 4


async def test_outage_raises(store_of: Any, service: LocalService) -> None:
    service.__exit__(None, None, None)
    with pytest.raises(Unreachable):
        await store_of().load("c")


OTHER_PROCESS = """
import asyncio, sys
from pydantic_ai.conversation import ConversationTypeAdapter
from threefold_pydantic_ai import ThreefoldConversationStore

async def main():
    sys.stdout.write(ConversationTypeAdapter.dump_json(await ThreefoldConversationStore(user="ana").load("c")).decode())

asyncio.run(main())
"""


@pytest.mark.slow
async def test_conversation_with_all_part_types_is_resumed_in_another_process(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [
        ModelResponse(
            [
                ThinkingPart("Two at once.", signature="s"),
                ToolCallPart("look", {"at": "it"}, tool_call_id="a"),
                ToolCallPart("delete", {"path": "x"}, tool_call_id="b"),
            ]
        ),
        ModelResponse([TextPart("Done.")]),
    ]

    async def respond(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        return replies.pop(0)

    agent = Agent(FunctionModel(respond), output_type=[str, DeferredToolRequests], instructions="Be brief.")
    agent.tool_plain(look)
    agent.tool_plain(requires_approval=True)(delete)
    with served("--data", str(tmp_path), "--embedder", "hash") as url:
        monkeypatch.setenv("THREEFOLD_URL", url)
        store = ThreefoldConversationStore(AsyncMemoryClient(url, user="ana"))
        prompt = ["Look, then delete.", BinaryImage(b"\x89PNG", media_type="image/png")]
        paused = await agent.run(prompt, conversation=Conversation(conversation_id="c"))
        await store.save(paused)
        waiting = elsewhere()
        assert waiting.messages == paused.all_messages()
        assert waiting.deferred_tool_requests == paused.output
        approved = DeferredToolResults(approvals={"b": True})
        done = await agent.run(conversation=await store.load("c"), deferred_tool_results=approved)
        await store.save(done)
        assert elsewhere().messages == done.all_messages()
        assert ModelMessagesTypeAdapter.dump_json(elsewhere().messages) == ModelMessagesTypeAdapter.dump_json(
            done.all_messages()
        )


def elsewhere() -> Conversation:
    """Load the conversation in another process."""
    done = subprocess.run([sys.executable, "-c", OTHER_PROCESS], capture_output=True, text=True, check=True)
    return ConversationTypeAdapter.validate_json(done.stdout)


def look(at: str) -> list[str]:
    return [f"a picture of {at}"]


def delete(path: str) -> str:
    return f"{path} is gone"
