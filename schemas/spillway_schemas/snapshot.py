"""A snapshot: what the journal comes to at one entry, as it is kept in a file.

What it says follows from the journal: one that is lost, damaged or of another format costs time
only. `spillway.protocol.snapshot` makes them of the fold's state, and the
state of them.
"""

from __future__ import annotations

from typing import Literal

from spillway_schemas.journal import (
    Carried,
    Genesis,
    Move,
    Offsets,
    Prefix,
    Record,
    Sealed,
    SealRequest,
    SlotTotals,
    Topic,
)

FORMAT: Literal[10] = 10
"""Raised when a field is added, goes, or changes its meaning, and when the fold makes another state
of the same entries: snapshots of other formats are ignored."""

PartitionSums = list[tuple[str, int, int, int]]
"""Per topic partition, in order: topic, partition, rows and digest of all that was read."""


class MarkRecord(Record):
    """Where the input stood at the end of an epoch."""

    epoch: int
    end: Offsets
    counts: PartitionSums


class ProgressRecord(Record):
    """How far the time of a session has come: per partition, in order, topic, partition, clock and
    greatest time; the watermark."""

    heard: list[tuple[str, int, int, int | None]]
    watermark_us: int


class SessionRecord(Record):
    """An open session."""

    date: str
    start: Offsets
    base: int
    recent_cuts: list[tuple[Prefix, list[int]]]
    """Each range that was cut with the epochs of its last cuts, in order of the ranges."""
    cuts: int
    results: int
    spilled_rows: int
    progress: ProgressRecord | None
    reach: list[tuple[Prefix, int]]
    """In order of the ranges."""
    carried: Carried | None


class JournalSnapshot(Record):
    """The fold of entries 0 to `n`. Lists are in order: equal states are equal texts."""

    format: Literal[10] = FORMAT
    entry: str
    """SHA-256 in hex of the text of entry `n`: a snapshot of an entry that nobody has is none."""
    n: int
    term: int
    epoch: int
    genesis: Genesis
    topics: list[Topic]
    end: Offsets
    sessions: list[SessionRecord]
    seal: SealRequest | None
    groups: list[tuple[Prefix, int]]
    assignment_version: int
    policy_epoch: int
    manifests: list[tuple[int, str | None]]
    marks: list[MarkRecord]
    counts: PartitionSums
    sealed: list[Sealed]
    seen: list[str]
    commands_n: int
    recent_input_ms: int
    reached: list[tuple[int, int]]
    totals: list[SlotTotals]
    budgets: list[tuple[int, int]]
    cores: int
    max_results: int
    moves: list[Move]
    lost_to: Offsets
    named: list[tuple[str, int]]
    """Per table, the last epoch that named files for it."""
    before: list[Genesis]
