"""Arithmetic of offsets, with partitions and topics that one side does not know yet."""

from __future__ import annotations

from jobs.protocol.offsets import greater, padded, partitions, reaches, rows_between, wider

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


def test_every_partition_is_named() -> None:
    assert list(partitions(NEW)) == [("a", 0, 7), ("a", 1, 8), ("a", 2, 1), ("b", 0, 2)]
