"""Arithmetic of offsets, with partitions and topics that one side does not know yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spillway.protocol.offsets import (
    greater,
    padded,
    partitions,
    reaches,
    rows_between,
    towards,
    wider,
)
from spillway.protocol.state import replay
from spillway_schemas.journal import Topic
from tests.protocol_entries import claim, ends, epoch, genesis, seal

OLD = {"a": [5, 9]}
NEW = {"a": [7, 8, 1], "b": [2]}


def test_what_is_not_known_begins_at_0() -> None:
    assert padded(OLD, NEW) == {"a": [5, 9, 0], "b": [0]}
    assert padded(NEW, NEW) == NEW


def test_the_greater_of_each() -> None:
    assert greater(OLD, NEW) == greater(NEW, OLD) == {"a": [7, 9, 1], "b": [2]}


def test_the_wider_has_all_topics_and_partitions() -> None:
    for found in (wider(OLD, NEW), wider(NEW, OLD)):
        assert {topic: len(ends) for topic, ends in found.items()} == {"a": 3, "b": 1}
    # Many offsets are more partitions than large ones.
    assert wider({"a": [9]}, {"a": [1, 2]}) == wider({"a": [1, 2]}, {"a": [9]}) == {"a": [1, 2]}
    assert wider({}, {"a": []}) == wider({"a": []}, {}) == {"a": []}


def test_beyond_means_on_every_partition() -> None:
    assert reaches(NEW, NEW)
    assert reaches({"a": [7, 9, 1], "b": [2]}, OLD)
    assert not reaches(NEW, OLD)
    assert not reaches(OLD, NEW)
    assert reaches({"a": [7, 8, 1], "b": [3]}, NEW)
    assert not reaches({"a": [7, 8, 1], "b": [1]}, NEW)
    assert reaches(OLD, {"a": [5, 9, 0], "b": [0]})


def test_rows_between_are_of_all_partitions() -> None:
    assert rows_between(OLD, {"a": [7, 12, 4], "b": [10]}) == 2 + 3 + 4 + 10
    assert rows_between(NEW, NEW) == 0


def test_a_long_way_is_gone_in_epochs_of_one_size() -> None:
    start, end = {"a": [10, 0]}, {"a": [40, 10], "b": [60]}
    assert towards(start, end, 100) == end
    assert towards(start, end, 99) == {"a": [25, 5], "b": [30]}
    assert towards({"a": [25, 5], "b": [30]}, end, 99) == end
    assert towards(start, end, 34) == {"a": [20, 3], "b": [21]}
    # No way back: whoever journals it says what is wrong.
    assert towards({"a": [41, 0], "b": [0]}, end, 5) == end


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 60)), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_all_partitions_arrive_together(pairs: list[tuple[int, int]], rows: int) -> None:
    """Each epoch takes as many rows as the others, or one less; each partition is always where its
    part of the way is, or one row off for each epoch gone."""
    at = {"a": [s for s, _ in pairs[:3]], "b": [s for s, _ in pairs[3:]]}
    end = {"a": [s + n for s, n in pairs[:3]], "b": [s + n for s, n in pairs[3:]]}
    start, whole, taken = at, rows_between(at, end), list[int]()
    while at != end:
        to = towards(at, end, rows)
        taken.append(rows_between(at, to))
        at = to
        for (_, _, s), (_, _, now), (_, n) in zip(
            partitions(start), partitions(at), pairs, strict=True
        ):
            assert s <= now <= s + n
            assert abs((now - s) * whole - n * sum(taken)) <= whole * len(taken)
    assert len(taken) == -(-whole // rows)
    assert not taken or max(taken) <= min(rows, min(taken) + 1)


def test_every_partition_is_named() -> None:
    assert list(partitions(NEW)) == [("a", 0, 7), ("a", 1, 8), ("a", 2, 1), ("b", 0, 2)]


def test_a_new_partition_begins_at_0_everywhere_in_the_journals_state() -> None:
    wider_topics = [
        Topic(name="a", id="id-a", partitions=3),
        Topic(name="b", id="id-b", partitions=2),
    ]
    state = replay(
        [
            genesis(start=ends(1, 1, 1)),
            claim(1, 1),
            epoch(2, 0, ends(4, 4, 4), seal=seal(ends(6, 6, 6))),
            claim(3, 2, topics=wider_topics),
        ]
    )
    assert state is not None
    assert state.topics == tuple(wider_topics)
    assert state.end == {"a": [4, 4, 0], "b": [4, 0]}
    assert [session.start for session in state.sessions] == [
        {"a": [1, 1, 0], "b": [1, 0]},
        {"a": [6, 6, 0], "b": [6, 0]},
    ]
    assert state.seal is not None
    assert state.seal.end == {"a": [6, 6, 0], "b": [6, 0]}
    assert {number: mark.end for number, mark in state.marks.items()} == {
        -1: {"a": [1, 1, 0], "b": [1, 0]},
        0: {"a": [4, 4, 0], "b": [4, 0]},
    }
