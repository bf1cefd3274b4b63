"""What an epoch's tasks read, shared among them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spillway.kafka.reading import TopicRange
from spillway.stream.messages import ranges_of, shares


def test_ranges_are_what_lies_between() -> None:
    """A partition that is new begins at 0; one without rows is not read."""
    assert ranges_of({"b": [3, 7]}, {"b": [5, 7, 2], "a": [1]}) == [
        TopicRange("a", 0, 0, 1),
        TopicRange("b", 0, 3, 5),
        TopicRange("b", 2, 0, 2),
    ]


@given(st.lists(st.integers(1, 100), max_size=12), st.integers(1, 5))
def test_each_range_has_one_task_and_no_task_much_more_than_another(
    sizes: list[int], tasks: int
) -> None:
    ranges = [TopicRange("t", n, 10, 10 + size) for n, size in enumerate(sizes)]
    found = shares(ranges, tasks)
    assert sorted((each for some in found for each in some), key=lambda r: r.partition) == ranges
    assert len(found) == min(tasks, len(ranges))
    assert all(found)
    rows = [sum(each.end - each.begin for each in some) for some in found]
    assert max(rows, default=0) - min(rows, default=0) <= max(sizes, default=0)
