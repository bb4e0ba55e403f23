"""Outages: the agent continues and reports the degradation, and afterwards every turn is stored once."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.adapter import AGENT, Plugin, Reply, Script, Setup, Who
from conformance.conftest import Remote, Run, said
from fixtures.fake_service import Clock
from fixtures.faults import Serving
from fixtures.line import Line
from threefold import CircuitBreaker, Policy, ThreefoldError

ANA = Who("ana", "s")


def policy(clock: Clock, **options: str) -> Policy:
    """Return a policy whose breaker uses this clock."""
    return Policy(breaker=CircuitBreaker(clock=clock), **options)  # pyright: ignore[reportArgumentType]


def users_words(line: Line | Remote | Serving, session: str = "s") -> list[str]:
    """Return the texts of the user from the service."""
    client = line.client("ana", AGENT) if isinstance(line, Serving) else line.client("ana")
    return [text for text in said(client, session) if text.startswith("Day")]


def test_run_completes_in_an_outage_and_its_turns_follow(plugin: Plugin, line: Line, run: Run) -> None:
    clock = Clock()
    setup = Setup(line, policy=policy(clock))
    agent = plugin.agent(setup)
    run(agent, "Day 1.", ANA)
    line.is_cut = True
    assert run(agent, "Day 2.", ANA) == "Noted."
    assert setup.policy.stats.outages > 0
    assert setup.policy.stats.spooled > 0
    assert "Day 1." in setup.script.prompts[-1]  # in an outage the turns of this process are recalled
    line.is_cut = False
    clock.now += 30
    run(agent, "Day 3.", ANA)
    assert users_words(line) == ["Day 1.", "Day 2.", "Day 3."]
    assert setup.policy.stats.dropped == 0


def test_outage_of_30_seconds_causes_few_calls(plugin: Plugin, line: Line, run: Run) -> None:
    clock = Clock()
    setup = Setup(line, policy=policy(clock))
    agent = plugin.agent(setup)
    line.is_cut = True
    run(agent, "Day 0.", ANA)
    tried = len(line.asked)
    for second in range(1, 30):
        clock.now += 1
        run(agent, f"Day {second}.", ANA)
    assert len(line.asked) - tried <= 3 * 30 / 5  # three attempts each time the breaker allows a call
    line.is_cut = False
    clock.now += 5
    run(agent, "Day 30.", ANA)
    run(agent, "Day 31.", ANA)  # the spool may be sent in two parts
    assert users_words(line) == [f"Day {second}." for second in range(32)]


def test_strict_raises_in_an_outage(plugin: Plugin, line: Line, run: Run) -> None:
    setup = Setup(line, policy=Policy(failure_mode="strict"))
    agent = plugin.agent(setup)
    run(agent, "Day 1.", ANA)
    line.is_cut = True
    with pytest.raises(ThreefoldError):
        run(agent, "Day 2.", ANA)
    line.is_cut = False
    setup.policy.breaker.succeeded()
    run(agent, "Day 3.", ANA)
    assert users_words(line) == ["Day 1.", "Day 3."]


@pytest.mark.slow
def test_service_is_killed_while_the_model_answers(plugin: Plugin, tmp_path: Path, run: Run) -> None:
    clock, script = Clock(), Script()
    with Serving(tmp_path / "log", "--data", str(tmp_path / "data")) as serving:
        agent = plugin.agent(Setup(Remote(serving.url), script, policy(clock)))
        run(agent, "Day 1.", ANA)

        def kill(_: list[str]) -> Reply:
            serving.kill()
            return "Noted."

        script.reply = kill
        assert run(agent, "Day 2.", ANA) == "Noted."
        script.reply = lambda _: "Noted."
        serving.start()
        clock.now += 30
        run(agent, "Day 3.", ANA)
        assert users_words(serving) == ["Day 1.", "Day 2.", "Day 3."]
