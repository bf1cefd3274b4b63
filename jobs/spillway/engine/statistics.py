"""Figures per partition group: what policies decide from, and the `statistics` table.

Sizes come from the run files themselves. What no file holds travels in the manifest, one row per
session and group, and along with a group that moves; when groups were split or merged since, a
group's figures are shared out by the hashes that it covers (a split rounds down).

Counts of what came and was given go up only, so whoever reads two moments of one group knows what
happened in between; a slot whose state was lost begins to count anew. Time is the stream's own
clock (the Kafka time of the newest row), so that a replay gives the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, Bool, GroupMap, range_index
from spillway.engine.state.arrangement import Segments, SessionState
from spillway.engine.state.kept import KeptGenerations
from spillway.engine.state.statefiles import FIGURES_SCHEMA
from spillway.policy.arrivals import ARRIVALS_HALF_LIFE_MS, HORIZONS_MS, TAU_MS, looked_back
from spillway.policy.expected import Gain, met, reunited
from spillway.policy.sampling import SlotFigures
from spillway_schemas.journal import Prefix

F64 = npt.NDArray[np.float64]

HALF_LIFE_MS = 60_000
"""After this time a result counts half in `rate`."""

HALF_LIVES_MS = {"recent_results": HALF_LIFE_MS, "recent_rows": ARRIVALS_HALF_LIFE_MS}
"""Of the counters that forget."""

EVERY_S = 5.0
EVERY_GROUPS = 4_096

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
        pa.field("session_results", pa.int64()),
        pa.field("rate", pa.float64()),
        pa.field("rows_in", pa.int64()),
        pa.field("generations", pa.int64()),
        pa.field("spilled_bytes", pa.int64()),
        pa.field("hot_key", pa.string()),
        pa.field("hot_rows", pa.int64()),
        pa.field("expected_loss", pa.float64()),
        pa.field("slot_bytes", pa.int64()),
        pa.field("slot_budget_bytes", pa.int64()),
        *(pa.field(f"slot_{each.name}", pa.float64()) for each in fields(SlotFigures)),
    ]
)
"""One row per session and group: its state at the end of the epoch, or, with `resident` false,
what was spilled of it in this epoch. `rows` has one number per input; `results` are those of
the current generation (the spilled one); `value` is the prefix's bits as a number. What begins
with `slot_` is the slot's own, the same in each of its rows of one epoch: its memory at the end of
that epoch, and what it did in the epochs before it since statistics were last due."""


SLOT_COLUMNS = 2 + len(fields(SlotFigures))
"""How many columns, the last ones, are the slot's own."""


def statistics_every_s(groups: int) -> float:
    """Seconds (of the wall clock: it is people and controllers who wait for them) between two
    writings of all groups' statistics; those of a slot that spills are written at once."""
    return EVERY_S * max(1, groups // EVERY_GROUPS)


@dataclass
class Counters:
    """What no file holds of a session's groups; arrays (g,), or (g, h) with a column for each of
    `HORIZONS_MS`."""

    results: I64
    """Of the current generation: since the group was last spilled."""
    session_results: I64
    rows_in: I64
    """New rows that came, all inputs, since the session began."""
    recent_results: F64
    """Results, each counting half as much after every `HALF_LIFE_MS`: for people."""
    recent_rows: F64
    """New rows likewise, after every `ARRIVALS_HALF_LIFE_MS`."""
    exposure_norm: F64
    """The m-th root of what rows have met, for a join of m inputs (`spillway.policy.expected.met`).
    """
    spilled_bytes: I64
    """Less what has come back."""
    last_used_ms: I64
    """When the last new row came."""
    generations: I64
    """How often it was spilled."""
    first_ms: I64
    """When the first row came; 0: not known."""
    then_ms: I64
    """(g, h): when a horizon last began; 0: none has."""
    then_rows: F64
    """(g, h): `rows_in` then."""
    then_recent: F64
    """(g, h): `recent_rows` then."""
    final_results: F64
    """Results of the query that came through the group since it was last spilled, whichever
    generation's rows they came of, those of other slots an epoch later; 0 unless the policy asks
    for them."""
    downstream_bytes: F64
    """What joins above have stored because of the group since then, whichever generation's rows it
    came of, and whether or not they still hold it; 0 likewise."""

    @classmethod
    def zeros(cls, groups: int) -> Counters:
        """Nothing counted yet."""
        kinds: dict[str, Any] = {f.name: float if f.name in REAL else np.int64 for f in fields(cls)}
        shapes = {name: (groups, len(HORIZONS_MS)) if name in THEN else groups for name in kinds}
        nothing: dict[str, Any] = {name: np.zeros(shapes[name], kinds[name]) for name in kinds}
        return cls(**nothing)

    def known(self) -> Bool:
        """Groups that anything was counted of, bool (g,)."""
        found: Bool = (self.rows_in > 0) | (self.results > 0) | (self.generations > 0)
        return found


THEN = ("then_ms", "then_rows", "then_recent")
REAL = (
    "recent_results",
    "recent_rows",
    "exposure_norm",
    "final_results",
    "downstream_bytes",
    "then_rows",
    "then_recent",
)
"""Those that are float64; the others are int64."""

SUMMED = (
    "results",
    "session_results",
    "rows_in",
    "recent_results",
    "recent_rows",
    "exposure_norm",
    "spilled_bytes",
    "final_results",
    "downstream_bytes",
    "then_rows",
    "then_recent",
)
NEVER = np.iinfo(np.int64).max
GREATEST = ("last_used_ms", "generations", "then_ms")
LEAST = ("first_ms",)
"""What a merge adds up and a split shares out, and what both keep: of several the greatest, or the
least that is known."""


@dataclass
class Figures:
    """One session's figures per group of the assignment: all (g,) but `rows` (m, g)."""

    rows: I64
    bytes: I64
    intake_bytes: I64
    """Bytes that came in this epoch and are in no file yet."""
    counters: Counters
    loss: F64
    """Results that the session would have fewer at run time were the group spilled now."""
    kept: KeptGenerations = field(default_factory=KeptGenerations.none)
    """Spilled generations that may come back."""
    gains: Sequence[Gain] = ()
    """What they bring were they brought back now, newest first, each once those after it are back;
    none: nothing may come back."""
    hot: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Of the largest groups, the key with the most rows, and how many."""

    @property
    def held(self) -> Bool:
        """Groups that have rows, bool (g,)."""
        found: Bool = self.rows.sum(axis=0) > 0
        return found

    def only(self, wanted: Bool) -> Figures:
        """Of the wanted groups (g,) what they have; of the others no row."""
        mine = replace(self.counters, results=self.counters.results * wanted)
        rows, size = self.rows * wanted, self.bytes * wanted
        intake = self.intake_bytes * wanted
        return Figures(rows, size, intake, mine, self.loss * wanted, hot=self.hot)

    def after_spill(self, spilled: Bool, kept: KeptGenerations) -> Figures:
        """The figures once some groups (g,) have left memory: their next generation begins.

        `kept`: with what was spilled.
        """
        counters = replace(
            self.counters,
            results=self.counters.results * ~spilled,
            final_results=self.counters.final_results * ~spilled,
            downstream_bytes=self.counters.downstream_bytes * ~spilled,
            spilled_bytes=self.counters.spilled_bytes + self.bytes * spilled,
            generations=self.counters.generations + spilled,
        )
        rows, size = self.rows * ~spilled, self.bytes * ~spilled
        return Figures(rows, size, self.intake_bytes, counters, self.loss * ~spilled, kept)

    def after_return(self, returned: Bool, came: Sizes, results: I64, inputs: I64) -> Figures:
        """The figures once the newest spilled generation of some groups (g,) is in memory again.

        `came`: what of it is there: with a window, some of it may have expired. `results`: what it
        gave with the rows that were there, int64 (g,). `inputs`: of each group's join, int64 (g,).
        """
        newest = self.kept.newest(len(returned))
        before, held = self.counters, self.rows.sum(axis=0)
        # What has expired met only a part of what is here, and what has not, all of it: of rows
        # that came evenly, as many as the mean of both have met everything.
        back = (newest.rows * returned + came.rows.sum(axis=0)) / 2
        loss = self.loss
        if self.gains:
            loss = loss + (self.gains[0].results - self.gains[0].at_once) * returned
        counters = replace(
            before,
            results=before.results + newest.results * returned + results,
            session_results=before.session_results + results,
            spilled_bytes=np.maximum(before.spilled_bytes - newest.bytes * returned, 0),
            exposure_norm=reunited(before.exposure_norm, held, back, inputs),
        )
        return replace(
            self,
            rows=self.rows + came.rows,
            bytes=self.bytes + came.bytes,
            intake_bytes=self.intake_bytes + came.bytes,
            counters=counters,
            loss=loss,
            kept=self.kept.without_newest(returned),
        )


@dataclass(frozen=True)
class Sizes:
    """What lives in each bucket of a session, int64 (b,) but `rows` (m, b)."""

    rows: I64
    bytes: I64
    intake_bytes: I64
    new_rows: I64
    """Of the epoch's new rows, all inputs."""


def carried(table: pa.Table, session: str, groups: GroupMap, now_ms: int) -> Counters:
    """Every group's counters before this epoch, from manifests' figures, decayed to `now_ms`."""
    counters = Counters.zeros(len(groups))
    mine = table.filter(pc.equal(table["session"], session)) if table.num_rows else table
    if not mine.num_rows:
        return counters
    columns = {name: _numbers(mine[name]) for name in (*SUMMED, *GREATEST, *LEAST)}
    at_ms = mine["at_ms"].to_numpy()
    for name, half_life_ms in HALF_LIVES_MS.items():
        columns[name] = columns[name] * _left(at_ms, now_ms, half_life_ms)
    rows, at, share = shares_of(mine["depth"].to_numpy(), mine["value"].to_numpy(), groups)
    for name in SUMMED:
        target = getattr(counters, name)
        each = share if target.ndim == 1 else share[:, None]
        np.add.at(target, at, (columns[name][rows] * each).astype(target.dtype))
    for name in GREATEST:
        np.maximum.at(getattr(counters, name), at, columns[name][rows])
    for name in LEAST:
        found = np.where(columns[name] > 0, columns[name], NEVER)
        target = np.full(len(groups), NEVER)
        np.minimum.at(target, at, found[rows])
        setattr(counters, name, np.where(target == NEVER, 0, target))
    return counters


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """A column as (n,), or as (n, h) where it has a list in each row."""
    width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else None
    flat: np.ndarray = (column.combine_chunks().flatten() if width else column).to_numpy()
    return flat.reshape(-1, width) if width else flat


def _column(values: np.ndarray) -> pa.Array:
    """The inverse of `_numbers`."""
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def shares_of(depth: np.ndarray, value: np.ndarray, groups: GroupMap) -> tuple[I64, I64, F64]:
    """Where figures of prefixes (n,) belong in an assignment: (row, group, share), each (k,).

    A prefix that is a group, or that lies in one, has one place and the share 1; one that was
    split has one place for each of its groups, with their shares of its hashes.
    """
    depth = depth.astype(np.int64)
    start = _starts(depth, value)
    at = np.searchsorted(groups.starts, start, side="right") - 1
    rows = np.arange(len(at), dtype=np.int64)
    share = np.ones(len(at))
    split = np.flatnonzero(groups.depths[at] > depth)
    if len(split):
        last = start[split] + ((np.uint64(1) << (64 - depth[split]).astype(np.uint64)) - 1)
        count = np.searchsorted(groups.starts, last, side="right") - at[split]
        more = np.repeat(split, count)
        step = np.arange(len(more)) - np.repeat(np.cumsum(count) - count, count)
        rows = np.concatenate([np.delete(rows, split), more])
        at = np.concatenate([np.delete(at, split), at[more] + step])
        share = 0.5 ** np.maximum(groups.depths[at] - depth[rows], 0)
    return rows, at, share


def _left(at_ms: I64, now_ms: int, half_life_ms: int) -> F64:
    """What is left of a count of what is recent; before the clock has begun, all of it."""
    passed = np.where(at_ms > 0, np.maximum(now_ms - at_ms, 0), 0)
    left: F64 = 0.5 ** (passed / half_life_ms)
    return left


def epoch_ms_of(table: pa.Table, now_ms: int) -> int:
    """How long the stream's clock has gone on since manifests' figures; 0: not known, or so long
    that the stream has stood still."""
    at_ms = pc.max(table["at_ms"]).as_py() or 0
    passed_ms = max(now_ms - at_ms, 0) if at_ms else 0
    return passed_ms if passed_ms <= HORIZONS_MS[0] else 0


def _spread(epoch_ms: int) -> float:
    """What a row of an epoch counts at its end as a recent one, when rows come evenly in it: so a
    count of recent rows does not depend on how long epochs are."""
    gone = np.log(2) * epoch_ms / ARRIVALS_HALF_LIFE_MS
    return float(-np.expm1(-gone) / gone) if gone else 1.0


@dataclass
class Given:
    """What an epoch's joins gave by group, all (g,)."""

    results: I64
    final_results: F64
    downstream_bytes: F64

    @classmethod
    def nothing(cls, groups: int) -> Given:
        """Nothing yet."""
        return cls(np.zeros(groups, dtype=np.int64), np.zeros(groups), np.zeros(groups))


def counted(
    before: Counters, sizes: Sizes, given: Given, inputs: I64, now_ms: int, epoch_ms: int = 0
) -> Counters:
    """The counters with the new rows of an epoch of `epoch_ms`, and what they gave, added.

    `inputs`: of each group's join, int64 (g,). Rows whose last use is not known (they were
    restored) count as used now.
    """
    held = sizes.rows.sum(axis=0)
    # The clock is that of the epoch before: in a session's first one it may be yesterday's.
    first = (before.rows_in > 0) & (before.first_ms == 0)
    used = (sizes.new_rows > 0) | ((held > 0) & (before.last_used_ms == 0))
    return replace(
        before,
        results=before.results + given.results,
        session_results=before.session_results + given.results,
        rows_in=before.rows_in + sizes.new_rows,
        recent_results=before.recent_results + given.results,
        recent_rows=before.recent_rows + sizes.new_rows * _spread(epoch_ms),
        exposure_norm=met(before.exposure_norm, held - sizes.new_rows, sizes.new_rows, inputs),
        final_results=before.final_results + given.final_results,
        downstream_bytes=before.downstream_bytes + given.downstream_bytes,
        last_used_ms=np.where(used, now_ms, before.last_used_ms),
        first_ms=np.where(first, now_ms - epoch_ms, before.first_ms),
    )


def rates(
    rows_in: I64 | F64, recent_rows: F64, first_ms: I64, now_ms: I64 | int
) -> tuple[F64, F64]:
    """The present and the usual rate of each group, rows a ms, float64 (g,) each."""
    known_ms = np.maximum(now_ms - first_ms, TAU_MS)
    return recent_rows / TAU_MS, np.where(first_ms > 0, rows_in / known_ms, 0.0)


def looked_at(counters: Counters, evidence: F64, now_ms: int) -> tuple[Counters, F64]:
    """At the end of an epoch: the counters where a horizon begins anew, and the evidence of those
    that have passed (`spillway.policy.arrivals`).

    Horizons begin at multiples of their lengths on the stream's clock, so all slots' do at once.
    """
    then = {name: getattr(counters, name).copy() for name in THEN}
    for number, length_ms in enumerate(HORIZONS_MS):
        began_ms, rows, recent = (each[:, number] for each in then.values())
        if now_ms // length_ms == int(began_ms.max(initial=0)) // length_ms:
            continue
        passed_ms = now_ms - began_ms
        # Nothing is learned of a first part, and of a time in which the stream stood still.
        about = abs(passed_ms - length_ms) <= length_ms // 2
        seen = (began_ms > 0) & about & (counters.first_ms > 0)
        present, usual = rates(rows, recent, counters.first_ms, began_ms)
        came = (counters.rows_in - rows) / np.maximum(passed_ms, 1)
        evidence = looked_back(evidence, number, present[seen], usual[seen], came[seen])
        then["then_ms"][:, number] = now_ms
        then["then_rows"][:, number] = counters.rows_in
        then["then_recent"][:, number] = counters.recent_rows
    return replace(counters, **then), evidence


def skew(work: I64) -> float:
    """The largest group's share of the work (new rows and results, (g,)) of an epoch, 0 to 1."""
    whole = int(work.sum())
    return int(work.max()) / whole if whole else 0.0


def range_of(table: pa.Table, ranges: Sequence[Prefix]) -> I64:
    """Index of the range (disjoint, in hash order) that each row's group lies in; -1: none."""
    return range_index(_starts(table["depth"].to_numpy(), table["value"].to_numpy()), ranges)


def _starts(depth: np.ndarray, value: np.ndarray) -> np.ndarray:
    # A shift by 64 is undefined: depth 0 has the value 0 anyway.
    shift = np.where(depth == 0, 0, 64 - depth.astype(np.int64)).astype(np.uint64)
    starts: np.ndarray = value.astype(np.uint64) << shift
    return starts


def measure(session: SessionState, segments: Segments, inputs: int) -> Sizes:
    """Rows and bytes that live in each bucket."""
    rows = np.zeros((inputs, segments.buckets), dtype=np.int64)
    new = np.zeros(segments.buckets, dtype=np.int64)
    sizes = np.zeros(segments.buckets, dtype=np.int64)
    intake = np.zeros(segments.buckets, dtype=np.int64)
    for input_ in range(inputs):
        for part in session.parts[input_]:
            counts, sized = segments.tally(part.rows, part.file.born)
            rows[input_] += counts
            sizes += sized
        for fresh in session.installed[input_]:
            counts, sized = segments.tally(fresh, fresh.born)
            rows[input_] += counts
            intake += sized
        for fresh in session.new[input_]:
            counts, sized = segments.tally(fresh, fresh.born)
            rows[input_] += counts
            new += counts
            intake += sized
    return Sizes(rows, sizes + intake, intake, new)


def figures_table(
    groups: GroupMap, slot: int, figures: dict[str, Figures], now_ms: int
) -> pa.Table:
    """What the manifest keeps: one row per session and group of the slot that has anything."""
    tables = [FIGURES_SCHEMA.empty_table()]
    own = groups.slots == slot
    for session, each in figures.items():
        shown = np.flatnonzero(own & (each.held | each.counters.known()))
        columns = [
            _column(getattr(each.counters, of.name)[shown]).cast(of.type)
            for of in list(FIGURES_SCHEMA)[3:-2]
        ]
        tables.append(
            pa.table(
                [
                    pa.repeat(session, len(shown)),
                    pa.array(groups.depths[shown].astype(np.int32)),
                    pa.array(groups.values[shown]),
                    *columns,
                    pa.repeat(now_ms, len(shown)),
                    each.kept.column(shown),
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
    state_bytes: int = 0,
    budget_bytes: int = 0,
    recent: SlotFigures | None = None,
) -> pa.Table:
    """Rows of the `statistics` table: the slot's groups that have anything; or were spilled."""
    own_kinds = STATISTICS_SCHEMA.types[-SLOT_COLUMNS:]
    own_values: list[float | None] = [state_bytes, budget_bytes]
    own_values += [getattr(recent, each.name, None) for each in fields(SlotFigures)]
    of_slot = [pa.scalar(v, kind) for v, kind in zip(own_values, own_kinds, strict=True)]
    tables = [STATISTICS_SCHEMA.empty_table()]
    own = groups.slots == slot
    for session, each in figures.items():
        counters = each.counters
        shown = np.flatnonzero(own & (each.held | counters.known()) if resident else each.held)
        n, inputs = len(shown), len(each.rows)
        counts = pa.array(each.rows[:, shown].T.reshape(-1))
        offsets = pa.array(np.arange(n + 1, dtype=np.int32) * inputs)
        hot = [each.hot.get(g) for g in shown.tolist()] if each.hot else [None] * n
        rate = counters.recent_results[shown] * (np.log(2) / (HALF_LIFE_MS / 1000))
        tables.append(
            pa.table(
                [
                    pa.repeat(pa.scalar(epoch, pa.int64()), n),
                    pa.repeat(session, n),
                    pa.repeat(pa.scalar(slot, pa.int32()), n),
                    pa.array(groups.depths[shown].astype(np.int32)),
                    pa.array(groups.values[shown].astype(np.int64)),
                    pa.array(each.bytes[shown]),
                    pa.ListArray.from_arrays(offsets, counts),
                    pa.array(counters.results[shown]),
                    pa.array(counters.last_used_ms[shown]),
                    pa.repeat(resident, n),
                    pa.repeat(pa.scalar(written_at_us, pa.timestamp("us", tz="UTC")), n),
                    pa.array(counters.session_results[shown]),
                    pa.array(rate),
                    pa.array(counters.rows_in[shown]),
                    pa.array(counters.generations[shown]),
                    pa.array(counters.spilled_bytes[shown]),
                    pa.array([each and each[0] for each in hot], pa.string()),
                    pa.array([each and each[1] for each in hot], pa.int64()),
                    pa.array(each.loss[shown]) if resident else pa.nulls(n, pa.float64()),
                    *(pa.repeat(value, n) for value in of_slot),
                ],
                schema=STATISTICS_SCHEMA,
            )
        )
    return pa.concat_tables(tables)
