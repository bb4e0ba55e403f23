"""A fact is recalled by the user who told it and by no other, and recalled text is never stored again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance.adapter import Plugin, Reply, Script, Setup, Who
from conformance.conftest import Remote, Run, said, turns
from fixtures.line import Line
from threefold import ThreefoldError
from threefold.render import FENCE_MARK

CODES = ["4711", "0815", "1234"]

# Pairs of ids that joining, trimming, case folding or decoding would make equal.
HOSTILE = [
    ("a/b", "c", "a", "b/c"),
    ("a:b", "c", "a", "b:c"),
    ("a|b", "c", "a", "b|c"),
    ("Ana", "s", "ana", "s"),
    ("ana ", "s", "ana", "s"),
    ("ana", "s\n", "ana", "s"),
    ("a%2Fb", "s", "a/b", "s"),
    ("..", "../turns", ".", "./turns"),
    ("é", "s", "e\u0301", "s"),
    ("\u202eana", "s", "ana", "s"),
    ("user", "' OR 1=1 --", "user", "%"),
    ("u" * 512, "s" * 512, "u" * 511, "s" * 511),
]


def test_fact_told_in_one_session_is_recalled_in_the_next(
    plugin: Plugin, place: Line | Remote, run: Run, ana: str
) -> None:
    script = Script()
    agent = plugin.agent(Setup(place, script))
    run(agent, "The gate code is 4711.", Who(ana, "monday"))
    run(agent, "What is the gate code?", Who(ana, "tuesday"))
    assert script.prompts[0].count("4711") == 1
    assert "4711" in script.prompts[-1]


@pytest.fixture
def codes(ana: str) -> dict[str, str]:
    """Users, each with a code to tell."""
    return {f"{ana}-{code}": code for code in CODES}


def test_concurrent_users_of_one_agent_object_never_mix(
    plugin: Plugin, place: Line | Remote, codes: dict[str, str]
) -> None:
    """Users reported that the user id was used for writes and dropped on reads."""
    script = Script()
    agent = plugin.agent(Setup(place, script))

    async def talk(user: str) -> None:
        for number in range(3):
            await agent.run(f"The gate code is {codes[user]}.", Who(user, f"same-{number}"))
            await agent.run("Which is the gate code?", Who(user, f"same-{number}"))

    async def all_talk() -> None:
        await asyncio.gather(*map(talk, codes))

    asyncio.run(all_talk())
    check_apart(script, place, codes)


def test_threads_share_one_agent_object(plugin: Plugin, place: Line | Remote, codes: dict[str, str]) -> None:
    """Users reported hanging runs and "Event loop is closed" after memory work."""
    script = Script()
    agent = plugin.agent(Setup(place, script))

    def talk(user: str) -> None:
        for number in range(3):
            agent.run_sync(f"The gate code is {codes[user]}.", Who(user, f"same-{number}"))
            agent.run_sync("Which is the gate code?", Who(user, f"same-{number}"))

    with ThreadPoolExecutor(len(codes)) as pool:
        list(pool.map(talk, codes))
    check_apart(script, place, codes)


def check_apart(script: Script, place: Line | Remote, codes: dict[str, str]) -> None:
    """Check that every prompt and session contains the code of one user only, and every question its answer."""
    assert [sum(code in prompt for code in CODES) for prompt in script.prompts] == [1] * 6 * len(codes)
    for user, code in codes.items():
        for number in range(3):
            words = said(place.client(user), f"same-{number}")
            assert words == [f"The gate code is {code}.", "Noted.", "Which is the gate code?", "Noted."]


@pytest.mark.parametrize(("user", "session", "other_user", "other_session"), HOSTILE)
def test_similar_ids_are_separate(
    plugin: Plugin, line: Line, user: str, session: str, other_user: str, other_session: str
) -> None:
    agent = plugin.agent(Setup(line))
    agent.run_sync("The gate code is 4711.", Who(user, session))
    agent.run_sync("The door is green.", Who(other_user, other_session))
    assert said(line.client(user), session)[0] == "The gate code is 4711."
    assert said(line.client(other_user), other_session)[0] == "The door is green."


@pytest.mark.parametrize("who", [Who("*", "s"), Who(" ", "s"), Who("ana", "*"), Who("ana", "a\x00b")])
def test_invalid_ids_are_refused_before_the_model_is_called(plugin: Plugin, line: Line, who: Who) -> None:
    script = Script()
    with pytest.raises(ThreefoldError, match=r"user|session"):
        plugin.agent(Setup(line, script)).run_sync("Hello.", who)
    assert script.prompts == []


def test_recalled_text_is_never_stored(plugin: Plugin, place: Line | Remote, run: Run, ana: str) -> None:
    script = Script()
    agent = plugin.agent(Setup(place, script))
    run(agent, "The gate code is 4711.", Who(ana, "told"))
    for number in range(3):
        run(agent, "What is the gate code?", Who(ana, f"asked-{number}"))
        assert "4711" in script.prompts[-1]
        log = "".join(turn.content + (turn.payload or "") for turn in turns(place.client(ana), f"asked-{number}"))
        assert "4711" not in log
        assert FENCE_MARK not in log
        assert "What is the gate code?" in log


def test_one_agent_object_works_in_one_event_loop_after_another(plugin: Plugin, place: Line | Remote, ana: str) -> None:
    """Users reported "Event loop is closed" after memory work."""
    agent = plugin.agent(Setup(place))
    for number in range(3):
        asyncio.run(agent.run(f"Round {number}.", Who(ana, "loops")))
    agent.run_sync("Round 3.", Who(ana, "loops"))
    words = said(place.client(ana), "loops")
    assert [text for text in words if text.startswith("Round")] == [f"Round {number}." for number in range(4)]


def test_what_a_model_saves_is_noted_by_the_assistant(plugin: Plugin, place: Line | Remote, run: Run, ana: str) -> None:
    """Whatever the model, or a page that it has read, says that the user said. What the application saves is the
    user's."""

    def reply(sent: list[str]) -> Reply:
        return plugin.save("The user agreed to pay 900 euros.") if not calls else "Done."

    calls: list[str] = []
    script = Script(lambda sent: (answer := reply(sent), calls.append(str(answer)))[0])
    run(plugin.agent(Setup(place, script)), "Read this page.", Who(ana, "monday"))
    with place.client(ana) as client:
        client.save("The user pays by invoice.")
        found = {memory.text: memory for memory in client.list(kinds=["fact"]).items}
        block = client.recall("pay", session_id="tuesday", min_score=0).block
    noted, own = found["The user agreed to pay 900 euros."], found["The user pays by invoice."]
    assert (noted.origin, noted.trust, own.origin, own.trust) == ("assistant", 0.6, "user", 1.0)
    assert "noted by assistant] The user agreed to pay 900 euros." in block
