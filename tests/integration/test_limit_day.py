"""A day with a limit of results: intake stops, the day ends there, what is left is the next's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.day import STREAMS, Day, accepted, messages, running, wait_for

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
        groups=8,  # so few that of each the key with the most rows is known
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
        check_hottest(day, held["hot_keys"], epochs)
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


def check_hottest(day: Day, shown: list[dict[str, Any]], epochs: list[dict[str, Any]]) -> None:
    """The keys that `status` names have as many rows as they had after one epoch, the last one
    with statistics, and none had more than the first."""
    read = day.read_topics()
    after = []
    for epoch in epochs:
        rows: Counter[str] = Counter()
        for stream, values in read.items():
            ends = epoch["end"][day.topics[stream]]
            kept = [accepted(stream, v) for p, offset, v in values if offset < ends[p]]
            rows.update(body["symbol"] for body in kept if body)
        after.append(rows)
    named = {each["key"]: each["rows"] for each in shown}
    assert len(named) == len(shown) > 3
    assert any(
        named == {key: rows[key] for key in named} and shown[0]["rows"] == max(rows.values())
        for rows in after
    ), (named, [rows.most_common(8) for rows in after])
