"""Reports on time: times are exact, keep the time zone of the writer, and are found by their date."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from threefold import MemoryClient


def said(content: str, at: datetime, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "created_at": at, **more}


def test_date_is_read_in_the_time_zone_of_the_writer(memory: MemoryClient) -> None:
    """Reported: dates were off by the UTC offset, near midnight by a day."""
    at = datetime(2024, 7, 13, 0, 30, tzinfo=timezone(timedelta(hours=8)))
    memory.write("s1", [said("I started today.", at)])
    [turn] = memory.recall("when did I start, on 13 July?", session_id="s2").memories
    assert (turn.created_at, turn.created_at.utcoffset()) == (at, timedelta(hours=8))
    assert turn.score_parts.coverage == 1.0


def test_turns_at_the_end_of_summer_time_are_in_order(memory: MemoryClient) -> None:
    """Reported: dates were off by the UTC offset. The repeated hour is told apart by its offset."""
    zone = ZoneInfo("Europe/Berlin")
    night = [datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=fold) for fold in (0, 1)]
    memory.write("s1", [said("the second half past two", night[1], id="b")])
    memory.write("s2", [said("the first half past two", night[0], id="a")])
    assert [item.id for item in memory.list(kinds=["turn"]).items] == ["b", "a"]
    offsets = [memory.turns(session).turns[0].created_at.utcoffset() for session in ("s2", "s1")]
    assert offsets == [timedelta(hours=2), timedelta(hours=1)]


def test_query_with_a_date_ranks_that_day_first(memory: MemoryClient) -> None:
    """Reported: "13 July 2024" matched all of July, and short words were parsed as weekdays."""
    for day in (12, 13, 14):
        memory.write(f"s{day}", [said("The crew met in the harbour.", datetime(2024, 7, day, 12, tzinfo=UTC))])
    found = memory.recall("What happened on 13 July 2024?", session_id="s9").memories
    assert found[0].session_id == "s13"
    assert memory.recall("what do we know about me?", session_id="s9", min_score=0.3).memories == []


def test_times_do_not_depend_on_the_time_zone_of_the_service(
    memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported: naive and aware timestamps crashed or were shifted. Times are exact to the microsecond."""
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
