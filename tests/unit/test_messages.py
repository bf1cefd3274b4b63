"""What an epoch's tasks read, shared among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.kafka import reading
from spillway.kafka.reading import TopicRange, TopicReader, _Answer
from spillway.kafka.wire import headers
from spillway.stream.messages import ROWS_WORTH_A_TASK, ranges_of, task_ranges
from tests.property.test_wire import packed, rows_of


def test_ranges_are_what_lies_between() -> None:
    """A partition that is new begins at 0; one without rows is not read."""
    assert ranges_of({"b": [3, 7]}, {"b": [5, 7, 2], "a": [1]}) == [
        TopicRange("a", 0, 0, 1),
        TopicRange("b", 0, 3, 5),
        TopicRange("b", 2, 0, 2),
    ]


@given(
    st.lists(st.integers(1, 100) | st.integers(1, 3).map(lambda n: n * 60_000), max_size=12),
    st.integers(1, 5),
)
def test_each_range_has_one_task_and_no_task_much_more_than_another(
    sizes: list[int], tasks: int
) -> None:
    ranges = [TopicRange("t", n, 10, 10 + size) for n, size in enumerate(sizes)]
    found = task_ranges(ranges, tasks)
    assert sorted((each for some in found for each in some), key=lambda r: r.partition) == ranges
    fewest = next(n for n in range(1, 100) if sum(sizes) <= n * ROWS_WORTH_A_TASK)
    assert len(found) == min(tasks, len(ranges), fewest)
    assert all(found)
    rows = [sum(each.end - each.begin for each in some) for some in found]
    assert max(rows, default=0) - min(rows, default=0) <= max(sizes, default=0)


def test_of_a_batch_that_begins_before_what_was_asked_for_the_first_rows_are_passed_over() -> None:
    """A broker may send more of a batch than it was asked for; the client passes over it, too."""
    data = packed(0, rows_of([b"%d" % n for n in range(20)]))
    reader = TopicReader.__new__(TopicReader)
    reader._record_bytes, reader._batch_bytes = {}, {}
    wanted = TopicRange("t", 0, 0, 18)
    for begin, expected in ((0, range(18)), (10, range(10, 18))):
        answer = _Answer(19, begin, data, list(headers(data)))
        found = [n for part in reader._parts(wanted, answer) for n in part.offsets.tolist()]
        assert found == list(expected)


def test_the_first_row_that_is_asked_for_may_be_the_last_of_its_batch() -> None:
    data = packed(0, rows_of([b"%d" % n for n in range(20)]))
    reader = TopicReader.__new__(TopicReader)
    reader._record_bytes, reader._batch_bytes = {}, {}
    answer = _Answer(19, 19, data, list(headers(data)))
    [part] = reader._parts(TopicRange("t", 0, 19, 30), answer)
    assert part.offsets.tolist() == [19]


def test_a_reader_takes_committed_messages_and_begins_nowhere_else_than_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where Kafka holds an offset no more it must say so: rows from elsewhere would be joined."""
    made: dict[str, Any] = {}

    class Consumer:
        def __init__(self, **config: Any) -> None:
            made.update(config)
            self._fetcher = SimpleNamespace()

    monkeypatch.setattr(reading, "KafkaConsumer", Consumer)
    TopicReader("h:1", {"isolation.level": "read_uncommitted"})
    assert made["isolation_level"] == "read_committed"
    assert made["auto_offset_reset"] == "none"
    assert not made["allow_auto_create_topics"]
    assert not made["enable_auto_commit"]
