"""Corrections: rows for a session that is closed, as they are kept.

A row of a correction has a coordinate like any other. Its partition is the number of its revision,
below zero, and its offset its place there: so it is no coordinate of a topic's, and the identity of
a result stays what it is.
"""

from __future__ import annotations

from spillway_schemas.journal import Record


class TopicPlace(Record):
    """A topic that a correction was read from, and where that reading ended."""

    topic: str
    id: str
    end: list[int]
    """One offset for each partition, not included."""


class Revision(Record):
    """A correction that is in. Counts are of rows."""

    revision: int
    """1, 2, ...: in each session."""
    source: str
    """The name of the file or the topic."""
    reason: str
    by: str
    digest: str
    """SHA-256 of the rows, in hex."""
    rows: int
    results: int
    """How many results it has added."""


def partition_of(revision: int) -> int:
    """The partition in the coordinates of a revision's rows."""
    return -revision
