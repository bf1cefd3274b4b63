"""A day with a limit of results: intake stops, the day ends there, what is left is the next's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.day import STREAMS, Day, messages, running, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

FIRST, NEXT = "2026-01-05", "2026-01-06"


def test_a_day_that_has_as_many_results_as_it_may_have(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> None:
    """One driver reads up to the limit, obeys the seal, and goes on with the next session."""
    day = Day(
        tmp_path / "day",
        broker,
        topics(*STREAMS, partitions=2),
        spark_env,
        max_rows=600,
        extra={"RESULTS__MAX_PER_SESSION": "2000"},
    )
    day.produce(messages(1, 6_000, keys=300))
    with running(day, "stream", "--session", FIRST):
        wait_for(lambda: "no more rows are read" in day.tail(), 120, "the limit is reached")
        held = json.loads(day.output("status", "--json")[1])
        epochs = day.journal.epochs()
        given = sum(each["results"].get(FIRST, 0) for each in epochs)
        last = epochs[-1]["results"].get(FIRST, 0)
        assert given - last < 2_000 <= given, "no epoch began that had no need to"
        assert held["intake_held"].startswith(f"{FIRST} has {given:,} results, and results.max")
        assert held["lag_rows"] > 0
        day.ok("seal", "--session", FIRST, "--at", "read")
        wait_for(lambda: held["epoch"] + 2 < len(day.journal.epochs()), 60, "the next session")
        assert (
            day.journal.epochs()[held["epoch"]]["end"]
            == day.journal.epochs()[held["epoch"] + 1]["end"]
        ), "the epoch that seals reads nothing"
    # It fits into memory, so cleanup has nothing to add; the reference knows where the day ends.
    assert day.check(FIRST) == {"run-time": given}
    state = day.journal.epochs()[-1]
    assert state["session"] == NEXT
    assert sum(map(sum, state["end"].values())) <= 6_000
    day.clean()
