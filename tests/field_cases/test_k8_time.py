"""Field cases K8, time: moments are exact, in the zone they were said in, and found by their date."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from threefold import MemoryClient


def said(content: str, at: datetime, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "created_at": at, **more}


def test_a_day_is_the_writers_own(memory: MemoryClient) -> None:
    """Field case 802: half past midnight at +08:00 is still yesterday in UTC."""
    at = datetime(2024, 7, 13, 0, 30, tzinfo=timezone(timedelta(hours=8)))
    memory.write("s1", [said("I started today.", at)])
    [episode] = memory.recall("when did I start, on 13 July?", session_id="s2").facts
    assert (episode.created_at, episode.created_at.utcoffset()) == (at, timedelta(hours=8))
    assert episode.score_parts.coverage == 1.0


def test_the_night_when_clocks_change_is_in_order(memory: MemoryClient) -> None:
    """Field case 802: the hour that comes twice is told apart."""
    zone = ZoneInfo("Europe/Berlin")
    night = [datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=fold) for fold in (0, 1)]
    memory.write("s1", [said("the second half past two", night[1], id="b")])
    memory.write("s2", [said("the first half past two", night[0], id="a")])
    assert [item.id for item in memory.list(kinds=["episode"]).items] == ["b", "a"]
    offsets = [memory.turns(session).turns[0].created_at.utcoffset() for session in ("s2", "s1")]
    assert offsets == [timedelta(hours=2), timedelta(hours=1)]


def test_a_question_for_a_date_finds_that_day_first(memory: MemoryClient) -> None:
    """Field case 805: not the day before, not the day after, and no date where none is meant."""
    for day in (12, 13, 14):
        memory.write(f"s{day}", [said("The crew met in the harbour.", datetime(2024, 7, day, 12, tzinfo=UTC))])
    found = memory.recall("What happened on 13 July 2024?", session_id="s9").facts
    assert found[0].session_id == "s13"
    assert memory.recall("what do we know about me?", session_id="s9", min_score=0.3).facts == []


def test_moments_do_not_depend_on_where_the_service_runs(memory: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case 807: equal to the microsecond, with a zone, whatever the zone of the process is."""
    at = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=ZoneInfo("Asia/Kolkata"))
    with monkeypatch.context() as process:
        process.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        memory.write("s1", [said("the last moment", at)])
        before = datetime.now(UTC)
        fact = memory.save("a fact")
    time.tzset()
    assert memory.turns("s1").turns[0].created_at == at
    assert abs(memory.get_fact(fact.id).created_at - before) < timedelta(hours=1)
