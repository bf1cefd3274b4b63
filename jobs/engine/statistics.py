"""Figures per partition group: what policies decide from, and the `statistics` table.

Sizes come from the run files themselves. What no file holds (results of the current generation,
the last use) travels in the manifest as one row per group with rows; when groups were split or
merged since, a group's figures are shared out by the hashes that it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from jobs.engine.arrangement import Segments, Session
from jobs.engine.groups import I64, GroupMap, range_index
from jobs.engine.statefiles import FIGURES_SCHEMA
from schemas.journal import Prefix

STATISTICS_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("session_date", pa.string(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.list_(pa.int64()), nullable=False),
        pa.field("results", pa.int64(), nullable=False),
        pa.field("last_used_ms", pa.int64(), nullable=False),
        pa.field("resident", pa.bool_(), nullable=False),
        pa.field("written_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""One row per session and group: its state at the end of the epoch, or, with `resident` false,
what was spilled of it in this epoch. `rows` has one number per input; `results` are those of
the current generation (the spilled one); `value` is the prefix's bits as a number."""


@dataclass
class Figures:
    """One session's figures per group of the assignment: all int64, (g,) but `rows` (m, g)."""

    rows: I64
    bytes: I64
    intake_bytes: I64
    """Bytes that came in this epoch and are in no file yet."""
    results: I64
    last_used_ms: I64


def carried(table: pa.Table, session: str, groups: GroupMap) -> tuple[I64, I64]:
    """(results, last_used_ms) of every group, int64 (g,), from a manifest's figures."""
    results = np.zeros(len(groups), dtype=np.int64)
    last_used = np.zeros(len(groups), dtype=np.int64)
    mine = table.filter(pa.array(np.array(table["session"].to_pylist()) == session))
    if not mine.num_rows:
        return results, last_used
    values: I64 = mine["results"].to_numpy()
    used: I64 = mine["last_used_ms"].to_numpy()
    depth = mine["depth"].to_numpy().astype(np.uint64)
    start = _starts(depth, mine["value"].to_numpy())
    at = np.searchsorted(groups.starts, start, side="right") - 1
    group_depth = np.array([p.depth for p in groups.prefixes], dtype=np.int64)
    same = (groups.starts[at] == start) & (group_depth[at] == depth.astype(np.int64))
    np.add.at(results, at[same], values[same])
    np.maximum.at(last_used, at[same], used[same])
    for row in np.flatnonzero(~same).tolist():
        first = int(at[row])
        split = int(group_depth[first]) > int(depth[row])
        last = int(start[row]) + (1 << (64 - int(depth[row]))) - 1
        stop = int(np.searchsorted(groups.starts, np.uint64(last), side="right"))
        for group in range(first, stop):
            share = int(group_depth[group]) - int(depth[row]) if split else 0
            results[group] += int(values[row]) >> share
            last_used[group] = max(last_used[group], int(used[row]))
    return results, last_used


def range_of(table: pa.Table, ranges: Sequence[Prefix]) -> I64:
    """Index of the range (disjoint, in hash order) that each row's group lies in; -1: none."""
    return range_index(_starts(table["depth"].to_numpy(), table["value"].to_numpy()), ranges)


def _starts(depth: np.ndarray, value: np.ndarray) -> np.ndarray:
    # A shift by 64 is undefined: depth 0 has the value 0 anyway.
    shift = np.where(depth == 0, 0, 64 - depth.astype(np.int64)).astype(np.uint64)
    starts: np.ndarray = value.astype(np.uint64) << shift
    return starts


def measure(session: Session, segments: Segments, inputs: int) -> tuple[I64, I64, I64]:
    """(rows (m, b), bytes (b,), bytes in no file (b,)) that live in each bucket."""
    rows = np.zeros((inputs, segments.buckets), dtype=np.int64)
    sizes = np.zeros(segments.buckets, dtype=np.int64)
    intake = np.zeros(segments.buckets, dtype=np.int64)
    for input_ in range(inputs):
        for part in session.parts[input_]:
            counted, sized = segments.tally(part.rows, part.file.born)
            rows[input_] += counted
            sizes += sized
        for fresh in (*session.installed[input_], *session.new[input_]):
            counted, sized = segments.tally(fresh, fresh.born)
            rows[input_] += counted
            intake += sized
    return rows, sizes + intake, intake


def figures_table(groups: GroupMap, figures: dict[str, Figures]) -> pa.Table:
    """What the manifest keeps: one row per session and group that has rows."""
    tables = [FIGURES_SCHEMA.empty_table()]
    for session, each in figures.items():
        held = np.flatnonzero(each.rows.sum(axis=0))
        tables.append(
            pa.table(
                [
                    pa.repeat(session, len(held)),
                    *_prefixes(groups, held, pa.uint64()),
                    pa.array(each.results[held]),
                    pa.array(each.last_used_ms[held]),
                ],
                schema=FIGURES_SCHEMA,
            )
        )
    return pa.concat_tables(tables).combine_chunks()


def statistics_table(
    groups: GroupMap,
    figures: dict[str, Figures],
    *,
    epoch: int,
    slot: int,
    resident: bool,
    written_at_us: int,
) -> pa.Table:
    """Rows of the `statistics` table for the groups that have rows."""
    tables = [STATISTICS_SCHEMA.empty_table()]
    for session, each in figures.items():
        held = np.flatnonzero(each.rows.sum(axis=0))
        n, inputs = len(held), len(each.rows)
        counts = pa.array(each.rows[:, held].T.reshape(-1))
        offsets = pa.array(np.arange(n + 1, dtype=np.int32) * inputs)
        tables.append(
            pa.table(
                [
                    pa.repeat(pa.scalar(epoch, pa.int64()), n),
                    pa.repeat(session, n),
                    pa.repeat(pa.scalar(slot, pa.int32()), n),
                    *_prefixes(groups, held, pa.int64()),
                    pa.array(each.bytes[held]),
                    pa.ListArray.from_arrays(offsets, counts),
                    pa.array(each.results[held]),
                    pa.array(each.last_used_ms[held]),
                    pa.repeat(resident, n),
                    pa.repeat(pa.scalar(written_at_us, pa.timestamp("us", tz="UTC")), n),
                ],
                schema=STATISTICS_SCHEMA,
            )
        )
    return pa.concat_tables(tables)


def _prefixes(groups: GroupMap, held: I64, value_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    prefixes = [groups.prefixes[g] for g in held.tolist()]
    depth = pa.array([p.depth for p in prefixes], pa.int32())
    return depth, pa.array([p.value for p in prefixes], value_type)
