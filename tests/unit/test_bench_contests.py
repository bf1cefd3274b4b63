"""What is compared side by side: both programs are asked for the same join."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.side_by_side.contests import CONTESTS, PAIR_WINDOW, SYMBOL_WINDOW, Contest
from spillway_schemas.query import load_query

ALL = pytest.mark.parametrize("contest", CONTESTS.values(), ids=list(CONTESTS))


@ALL
def test_spark_joins_what_the_query_joins(contest: Contest) -> None:
    query = load_query(contest.query)
    assert sorted(contest.fields) == sorted(query.topics)
    times = query.event_time
    assert contest.lateness_s * 1_000_000 == (0 if times is None else times.lateness_us)
    widths = {None if span is None else span.width_us for span in query.spans}
    assert widths == {None if contest.window_s is None else contest.window_s * 1_000_000}


@ALL
def test_each_input_but_the_first_is_joined(contest: Contest) -> None:
    _, *others = contest.fields
    assert list(contest.on) == others
    columns = {f"{topic}_{name}" for topic, fields in contest.fields.items() for name in fields}
    assert {column for pair in contest.on.values() for column in pair} <= columns


def test_only_the_contests_streams_are_sent_in_proportion() -> None:
    pair, all_three = PAIR_WINDOW.resized(600_000, None), SYMBOL_WINDOW.resized(600_000, None)
    assert list(pair.streams) == ["stock", "volume"]
    assert list(all_three.streams) == ["stock", "volume", "review"]
    for each in (pair, all_three):
        assert each.keys is not None
        assert (each.rows, each.keys.count) == (600_000, 75_000)
    assert PAIR_WINDOW.resized(600_000, 7).keys.count == 7  # type: ignore[union-attr]


def test_a_query_that_is_not_shipped_is_named_by_its_path() -> None:
    assert SYMBOL_WINDOW.query == "symbol_window"
    assert Path(PAIR_WINDOW.query).is_absolute()
