"""Cleanup of hash ranges: the results that spilling has left out, each once.

Model: what was spilled of a hash range lies there in *generations* (the epoch of the cut says
which; of rows that had expired before it, `spillway.engine.spill.generations` does). Combinations
within one generation were given at run time; missing are those whose rows are not all of one
generation.

Without a window each is given with its latest generation (`spillway.engine.spill.crossing`). With
one, rows meet slice by slice (`spillway.engine.state.slices`), and would be sought again for every
later generation of their hash. So the generations of a hash, numbered from 0, are the leaves of a
binary tree. At level l those join that have the same number without its last l + 1 bits: the side
on which bit l is 0 with the other. A combination is given at the lowest level at which all its rows
are together. All pairs of a level are joined at a time: rows meet by a number that their hash and
pair have together.

Invariants:

* Every missing combination of a range is yielded exactly once, whatever the sizes below; of an
  outer join every result that lacks optional rows, too (`spillway.engine.spill.unmatched`).
* Bounded memory: rows are loaded in *pieces* of at most about `piece_bytes` (as spilled,
  uncompressed); several ranges share a piece when they are small, and a range is cut by further
  bits of the hash when it is large. Only the rows of one single hash are never cut: they are
  held, and their results leave in batches of `batch_bytes`.
* Cost is linear in the rows spilled (with a window, times the logarithm of the generations of a
  hash) and in the results missing. Rows are read once (`Straddling`), and once more where a piece
  is put down because it has more than its row groups let expect. Where hashes are not spread evenly
  within these, and in a range that is larger than a piece, hashes are read before the rows, to see
  how many each range has, and once more for each range that is cut.

Failure paths: a spill file that is missing or damaged raises `SpillDamaged`, which names it;
results that were yielded before are right, but not all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.join.batches import BATCH_BYTES, Joined
from spillway.engine.join.kernel import Rows, join_batches, picked
from spillway.engine.join.probe import distinct, first_of_each
from spillway.engine.join.spec import JoinSpec
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.crossing import InputGenerations, crossing
from spillway.engine.spill.generations import GenerationEnds, VoidedCuts
from spillway.engine.spill.spillfile import (
    RowGroups,
    SpillDamaged,
    SpillFile,
    read_rows,
    row_column,
    row_struct,
    where,
)
from spillway.engine.spill.unmatched import UnmatchedRows, unmatched_rows
from spillway.engine.state.slices import sliced
from spillway.storage import Folder
from spillway_schemas.journal import Prefix

F64 = npt.NDArray[np.float64]

PIECE_BYTES = 32 * 2**20
"""Rows loaded at a time, as spilled. When all of them join, they take some four times this in
memory (read, sorted, merged), and about 45 MiB beside: 63 MiB for pieces of 4, 112 for 16, 270 for
48, where 122 MiB of spilled rows in one piece took 528 (`tests/integration/test_cleanup_memory.py`
measures it). Of row groups that reach into the next piece as much as this may be kept beside it."""

MORE_THAN_THOUGHT = 1.25
"""A piece is put down once it has so much more than `piece_bytes`."""

LESS_THAN_THOUGHT = 0.5
"""Row groups are not believed any more once a piece has less than this part of what they say."""

HASH_END = 1 << 64
"""The end of all hashes."""

CUT_BITS = 10
"""A range that is too large is looked at in 2**10 equal parts."""


@dataclass(frozen=True)
class SpillIndex:
    """A session's spill files and their row groups (`RowGroups.file` counts in `files`)."""

    files: tuple[SpillFile, ...]
    groups: RowGroups

    @staticmethod
    def of(surveyed: Sequence[tuple[SpillFile, RowGroups]]) -> SpillIndex:
        """An index of files as `survey` returned them (the position it was given is ignored)."""
        parts = []
        for position, (_, groups) in enumerate(surveyed):
            columns = {**vars(groups), "file": np.full(len(groups), position, np.int64)}
            parts.append(RowGroups(**columns))
        return SpillIndex(tuple(file for file, _ in surveyed), RowGroups.concat(parts))

    def within(self, ranges: Sequence[Prefix]) -> SpillIndex:
        """Only what the ranges need: what a task takes with it."""
        wanted = np.zeros(len(self.groups), np.bool_)
        for prefix in ranges:
            wanted |= self.groups.touch(prefix.lo, prefix.hi)
        groups = self.groups.pick(wanted)
        used, file = np.unique(groups.file, return_inverse=True)
        columns = {**vars(groups), "file": file.astype(np.int64)}
        return SpillIndex(tuple(self.files[i] for i in used), RowGroups(**columns))


@dataclass(frozen=True)
class SpillSource:
    """Where spilled rows are: the `spill` table's folder and what its files hold."""

    folder: Folder
    index: SpillIndex
    spec: TreeSpec
    operator: int = 0
    """The join whose rows are wanted."""
    ends: GenerationEnds | None = None
    """Of a query with windows: the session's cuts. Rows may have been written before their
    generation ended."""
    voided: VoidedCuts | None = None
    """Cuts that were taken back; None: none was."""
    doubtful: frozenset[int] = frozenset()
    """Of an outer join: inputs, by their positions in it, of which rows are lost."""

    @property
    def inputs(self) -> range:
        """The join's inputs."""
        return self.spec.inputs_of(self.operator)

    def touching(self, lo: int, hi: int) -> RowGroups:
        """Row groups that may hold rows of the operator with a hash in [lo, hi)."""
        near = self.index.groups.touching(lo, hi)
        return near.pick((near.operator == self.operator) | (near.operator == -1))

    def rows(
        self, near: RowGroups, lo: int, hi: int, columns: Sequence[str], *, whole: bool = False
    ) -> Iterator[tuple[int, int, pa.Table]]:
        """Rows with a hash in [lo, hi): (file's position, row group, its rows) each.

        `whole`: with the columns that have the rows of their inputs.
        """
        opened: dict[str, Any] = {}
        for file, input_ in np.unique(np.stack([near.file, near.input]), axis=1).T.tolist():
            wanted = columns
            if whole:
                inputs = self.inputs if input_ < 0 else [input_]
                wanted = (*columns, *(row_column(self.spec, i) for i in inputs))
            groups = near.group[(near.file == file) & (near.input == input_)].tolist()
            for group, table in read_rows(
                self.folder,
                self.index.files[file],
                groups,
                lo,
                hi,
                operator=self.operator,
                columns=wanted,
                opened=opened,
            ):
                yield file, group, table


@dataclass(frozen=True)
class SpilledRows:
    """Rows of one file, input and generation, in any order."""

    file: int
    epoch: int
    input: int
    key_hash: U64
    table: pa.Table
    """`partition`, `offset`, and the input's struct as `row`."""

    def only(self, mask: Bool) -> SpilledRows:
        """The rows where `mask` is true."""
        if mask.all():
            return self
        table = self.table.filter(pa.array(mask))
        return SpilledRows(self.file, self.epoch, self.input, self.key_hash[mask], table)


def clean_ranges(
    source: SpillSource,
    ranges: Sequence[Prefix],
    *,
    piece_bytes: int = PIECE_BYTES,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[int, Joined]]:
    """Yield (position of the range, missing results) for disjoint ranges in ascending order.

    Batches are of the source's join and have about `batch_bytes` bytes at most; a range without
    missing results yields nothing. Raises `SpillDamaged`; ValueError for ranges out of order.
    """
    if any(a.hi > b.lo for a, b in pairwise(ranges)):
        raise ValueError("the ranges must be disjoint and in ascending order")
    for first, last, parts in loaded(source, ranges, piece_bytes):
        spilled = generations(source, parts)
        lacking = without_optional(source, parts)
        parts.clear()  # what is not needed any more does not wait in memory for the next piece
        for i, prefix in enumerate(ranges[first:last], first):
            for batch in missing(source, spilled, prefix.lo, prefix.hi, batch_bytes=batch_bytes):
                yield i, batch
            if lacking is not None:
                for batch in lacking.between(prefix.lo, prefix.hi, batch_bytes):
                    yield i, batch


def loaded(
    source: SpillSource, ranges: Sequence[Prefix], piece_bytes: int
) -> Iterator[tuple[int, int, list[SpilledRows]]]:
    """The rows of the ranges, piece after piece in the order of hashes, with the ranges
    [first, last) that the piece is of: of several whole ranges, or a part of one.

    Cut by what row groups hold if their hashes are spread evenly. A piece that turns out to have
    more is put down, and cut again by the hashes themselves. Once one has much less, so are all
    that come after it: else each would read, for few rows, the row groups that reach over it.
    Whoever has done with a piece empties its list, which is held here, too.
    """
    if not ranges:
        return
    near = source.touching(ranges[0].lo, ranges[-1].hi)
    straddling = Straddling(piece_bytes)
    for first, last, held in windows(estimated_weights(near, ranges), piece_bytes):
        if held <= piece_bytes:
            size = PieceSize(MORE_THAN_THOUGHT * piece_bytes)
            try:
                lo, hi = ranges[first].lo, ranges[last - 1].hi
                parts = load(source, lo, hi, straddling, size=size)
            except PieceTooLarge:
                straddling = Straddling(piece_bytes)
            else:
                yield first, last, parts
                if size.bytes >= LESS_THAN_THOUGHT * held:
                    continue
                first, last = last, len(ranges)
        for a, b, parts in _by_hashes(source, ranges[first:last], straddling, piece_bytes):
            yield first + a, first + b, parts
        if last == len(ranges):
            return


def _by_hashes(
    source: SpillSource, ranges: Sequence[Prefix], straddling: Straddling, piece_bytes: int
) -> Iterator[tuple[int, int, list[SpilledRows]]]:
    """As `loaded`, but hashes are read first."""
    if not ranges:
        return
    exact = weights(source, source.touching(ranges[0].lo, ranges[-1].hi), ranges)
    for first, last, held in windows(exact, piece_bytes):
        lo, hi = ranges[first].lo, ranges[last - 1].hi
        pieces = cut(source, lo, hi, piece_bytes) if held > piece_bytes else [(lo, hi)]
        for piece_lo, piece_hi in pieces:
            yield first, last, load(source, piece_lo, piece_hi, straddling)


def windows(sizes: F64, piece_bytes: float) -> Iterator[tuple[int, int, float]]:
    """Cut ranges into [first, last) that are read together, about how many bytes each.

    These are within `piece_bytes`, but where one range alone has more. `sizes`: as `weights`
    gives them.
    """
    first, held, between = 0, 0.0, 0.0
    for last, (own, after) in enumerate(sizes.tolist()):
        # What lies between two ranges is read with them.
        if last > first and held + between + own > piece_bytes:
            yield first, last, held
            first, held, between = last, 0.0, 0.0
        held, between = held + between + own, after
    yield first, len(sizes), held


def estimated_weights(near: RowGroups, ranges: Sequence[Prefix]) -> F64:
    """As `weights`, but reads nothing: right if the hashes of every row group are spread evenly
    between its least and greatest."""
    ends = [each.lo for each in ranges[1:]] + [ranges[-1].hi]
    found = np.zeros((len(ranges), 2))
    for of_range, each, end in zip(found, ranges, ends, strict=True):
        of_range[0] = near.bytes_within(each.lo, each.hi)
        if end > each.hi:
            of_range[1] = near.bytes_within(each.hi, end)
    return found


def weights(source: SpillSource, near: RowGroups, ranges: Sequence[Prefix]) -> F64:
    """About how many bytes of rows each range has, and how many lie after it, before the next one:
    float64 (r, 2). Reads only hashes, and those only of row groups that reach from one such place
    into another."""
    lows = np.array([each.lo for each in ranges], dtype=np.uint64)
    lasts = np.array([each.hi - 1 for each in ranges], dtype=np.uint64)

    def place_of(hashes: U64) -> I64:
        at = np.searchsorted(lows, hashes, side="right") - 1
        return 2 * at + (hashes > lasts[at])

    found: F64 = np.zeros(2 * len(ranges))
    first, last = place_of(near.lo), place_of(near.hi)
    whole = (first == last) & (near.lo >= lows[0])
    found += np.bincount(first[whole], near.bytes[whole], minlength=len(found))
    rest = near.pick(~whole)
    row_bytes = bytes_of_rows(rest)
    for file, group, table in source.rows(rest, ranges[0].lo, ranges[-1].hi, ("key_hash",)):
        place = place_of(table["key_hash"].to_numpy().view(np.uint64))
        found += np.bincount(place, minlength=len(found)) * row_bytes[file, group]
    return found.reshape(-1, 2)


def bytes_of_rows(near: RowGroups) -> dict[tuple[int, int], float]:
    """The mean size of a row, by file and row group."""
    columns = (near.file, near.group, near.bytes, near.rows)
    return {
        (file, group): size / max(rows, 1)
        for file, group, size, rows in zip(*(x.tolist() for x in columns), strict=True)
    }


def cut(source: SpillSource, lo: int, hi: int, piece_bytes: int) -> list[tuple[int, int]]:
    """Cut [lo, hi) into pieces [lo, hi) that hold at most `piece_bytes`, or one single hash.

    Reads only hashes, and those only where the row groups alone do not say that all is small.
    """
    near = source.touching(lo, hi)
    if hi - lo == 1 or int(near.bytes.sum()) <= piece_bytes:
        return [(lo, hi)] if len(near) else []
    width = -(-(hi - lo) // 2**CUT_BITS)
    buckets = -(-(hi - lo) // width)
    weight = np.zeros(buckets)
    least = np.full(buckets, 2**64 - 1, np.uint64)
    greatest = np.zeros(buckets, np.uint64)
    row_bytes = bytes_of_rows(near)
    for file, group, table in source.rows(near, lo, hi, ("key_hash",)):
        hashes = table["key_hash"].to_numpy().view(np.uint64)
        bucket = ((hashes - np.uint64(lo)) // np.uint64(width)).astype(np.int64)
        weight += np.bincount(bucket, minlength=buckets) * row_bytes[(file, group)]
        np.minimum.at(least, bucket, hashes)
        np.maximum.at(greatest, bucket, hashes)
    pieces: list[tuple[int, int]] = []
    start, held = lo, 0.0
    for k in np.flatnonzero(weight).tolist():
        begin = lo + k * width
        large = weight[k] > piece_bytes
        if held and (large or held + weight[k] > piece_bytes):
            pieces.append((start, begin))
            held = 0.0
        if large:
            a, b = int(least[k]), int(greatest[k]) + 1
            # Every level looks at a smaller range, so this ends, at a single hash at the latest.
            pieces += cut(source, a, b, piece_bytes)
        else:
            start = begin if not held else start
            held += float(weight[k])
    if held:
        pieces.append((start, hi))
    return pieces


class PieceTooLarge(Exception):
    """A piece has more rows than its row groups let expect."""


@dataclass
class PieceSize:
    """Bytes of a piece's rows, as spilled: counted while it is loaded."""

    most: float
    bytes: float = 0.0


class Straddling:
    """Rows of row groups that reach beyond the piece for which they were read.

    Pieces come in ascending order, so each row group is decoded once. What exceeds `most_bytes` is
    not kept, and decoded again.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._rows: dict[tuple[int, int], pa.Table] = {}

    def keep(self, file: int, group: int, rows: pa.Table) -> None:
        """Keep rows of a row group, all those from the end of the piece on.

        They count as all that they hold in memory: as a slice the whole row group.
        """
        size = rows.get_total_buffer_size()
        if self._bytes + size <= self._most_bytes:
            self._bytes += size
            self._rows[file, group] = rows

    def taken(self, near: RowGroups) -> tuple[RowGroups, list[tuple[int, int, pa.Table]]]:
        """Of these row groups those that have to be read, and (file, group, rows) of the others,
        which are not kept any longer."""
        places = list(zip(near.file.tolist(), near.group.tolist(), strict=True))
        there = np.array([place in self._rows for place in places], dtype=np.bool_)
        found = [(*place, self._rows.pop(place)) for place in places if place in self._rows]
        self._bytes -= sum(rows.get_total_buffer_size() for _, _, rows in found)
        return near.pick(~there), found


def load(
    source: SpillSource,
    lo: int,
    hi: int,
    straddling: Straddling | None = None,
    *,
    size: PieceSize | None = None,
) -> list[SpilledRows]:
    """All rows with a hash in [lo, hi). `straddling`: what earlier calls, of lower hashes, have
    read beyond their `hi`.

    Raises `PieceTooLarge` once the rows have more than `size` allows, which counts them;
    `straddling` then lacks rows, and is of no use any more.
    """
    near = source.touching(lo, hi)
    columns = ("input", "key_hash", "epoch", "partition", "offset")
    if straddling is None:
        tables = source.rows(near, lo, hi, columns, whole=True)
    else:
        unread, held = straddling.taken(near)
        read = source.rows(unread, lo, HASH_END, columns, whole=True)
        tables = _within(chain(held, read), lo, hi, straddling)
    if size is not None:
        tables = _at_most(tables, bytes_of_rows(near), size)
    parts = []
    for file, _, table in tables:
        if source.voided is not None:
            table = alive(source.voided, table)
        inputs, epochs = table["input"].to_numpy(), table["epoch"].to_numpy()
        hashes = table["key_hash"].to_numpy().view(np.uint64)
        # Our own row groups have one epoch and one input; others are exact, too, only slower.
        for input_ in _distinct(inputs):
            row = table[row_column(source.spec, input_)]
            rest = table.select(["partition", "offset"]).append_column("row", row)
            if source.ends is not None:
                epochs = source.ends.of(hashes, epochs)
            for epoch in _distinct(epochs[inputs == input_]):
                mask: Bool = (epochs == epoch) & (inputs == input_)
                parts.append(SpilledRows(file, epoch, input_, hashes, rest).only(mask))
    return parts


def _within(
    tables: Iterable[tuple[int, int, pa.Table]], lo: int, hi: int, straddling: Straddling
) -> Iterator[tuple[int, int, pa.Table]]:
    """The rows with a hash in [lo, hi); those after it are kept."""
    for file, group, table in tables:
        hashes = table["key_hash"].to_numpy().view(np.uint64)
        after = hashes > np.uint64(hi - 1)
        if after.any():
            straddling.keep(file, group, where(table, after))
        inside = ~after & (hashes >= np.uint64(lo))
        if inside.any():
            yield file, group, table if inside.all() else where(table, inside)


def _at_most(
    tables: Iterable[tuple[int, int, pa.Table]],
    row_bytes: Mapping[tuple[int, int], float],
    size: PieceSize,
) -> Iterator[tuple[int, int, pa.Table]]:
    """The same tables, counted. Raises `PieceTooLarge`."""
    for file, group, table in tables:
        size.bytes += table.num_rows * row_bytes[file, group]
        if size.bytes > size.most:
            raise PieceTooLarge
        yield file, group, table


def _distinct(numbers: npt.NDArray[np.integer[Any]]) -> list[int]:
    """The values that occur, ascending. Mostly it is one."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])]
    found: list[int] = np.unique(numbers).tolist()
    return found


def alive(voided: VoidedCuts, table: pa.Table) -> pa.Table:
    """The rows that no cut which was taken back had written. Of one epoch, in the order of hashes,
    as our own row groups are, they are stretches, which are not copied."""
    hashes, epochs = table["key_hash"].to_numpy().view(np.uint64), table["epoch"].to_numpy()
    if (epochs != epochs[0]).any() or (hashes[1:] < hashes[:-1]).any():
        return table.filter(pa.array(~voided.hold(hashes, epochs)))
    parts, done = [], 0
    for first, end in voided.stretches(hashes, int(epochs[0])):
        parts.append(table.slice(done, first - done))
        done = end
    return pa.concat_tables([*parts, table.slice(done)]) if parts else table


def generations(source: SpillSource, parts: Sequence[SpilledRows]) -> list[InputGenerations] | None:
    """Of each input the rows that can give a result; None: there are none."""
    # In this order, so that the rows of one single hash need no sorting.
    parts = sorted((part for part in parts if len(part.key_hash)), key=lambda part: part.epoch)
    if not parts:
        return None
    hashes = np.concatenate([part.key_hash for part in parts])
    lengths = [len(part.key_hash) for part in parts]
    epoch = np.repeat([part.epoch for part in parts], lengths)
    input_ = np.repeat([part.input for part in parts], lengths)
    found = productive(hashes, epoch, input_, source.inputs)
    if not len(found[0][0]):
        return None
    inputs = []
    for i, (at, generation) in zip(source.inputs, found, strict=True):
        table = rows_of_input(source, [part for part in parts if part.input == i], i)
        place = np.cumsum(input_ == i)[at] - 1  # of a row among those of its input
        inputs.append(InputGenerations(Rows(hashes[at], picked(table, place)), generation))
    return inputs


def without_optional(source: SpillSource, parts: Sequence[SpilledRows]) -> UnmatchedRows | None:
    """The rows of an outer join that give results without all of its inputs; None: there are none,
    or the join is an inner one."""
    join = source.spec.joins[source.operator]
    if not join.is_outer:
        return None
    inputs = []
    for i in source.inputs:
        mine = [part for part in parts if part.input == i]
        hashes = [np.zeros(0, np.uint64), *(part.key_hash for part in mine)]
        rows = rows_of_input(source, mine, i) if mine else source.spec.row_schema(i).empty_table()
        inputs.append((np.concatenate(hashes), rows))
    return unmatched_rows(join, inputs, source.doubtful)


def productive(hashes: U64, epochs: I64, input_: I64, inputs: range) -> list[tuple[I64, I64]]:
    """Of each input its rows of hashes that have rows of every input, and rows of two generations;
    in the order of hashes, then generations: positions (n,) and each row's generation (n,).

    Rows (r,) come in the order of their epochs. One sort by hash, then linear passes: within a hash
    the next generation begins where the epoch changes.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, epochs, input_ = hashes[order], epochs[order], input_[order]
    of_hash, of_generation = begins(hashes, epochs)
    starts = np.flatnonzero(of_hash)
    lengths = np.append(starts[1:], len(hashes)) - starts
    number = np.cumsum(of_generation)
    generation: I64 = number - np.repeat(number[starts], lengths)
    gives: Bool = generation[starts + lengths - 1] > 0
    for i in inputs:
        gives &= np.logical_or.reduceat(input_ == i, starts)
    wanted = np.repeat(gives, lengths)
    found = []
    for i in inputs:
        at = np.flatnonzero(wanted & (input_ == i))
        found.append((order[at], generation[at]))
    return found


def begins(hashes: U64, epochs: I64) -> tuple[Bool, Bool]:
    """Where the rows of a hash begin, and where those of one of its generations do, bool (n,) each.

    Rows (n,) come in the order of hashes, then epochs.
    """
    of_hash = first_of_each(hashes)
    return of_hash, of_hash | first_of_each(epochs)


def missing(
    source: SpillSource,
    spilled: Sequence[InputGenerations] | None,
    lo: int,
    hi: int,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Joined]:
    """Yield the combinations with a hash in [lo, hi) that are not all of one generation."""
    if spilled is None:
        return
    join = source.spec.joins[source.operator]
    own = [_between(each, lo, hi) for each in spilled]
    if not len(own[0].of_row):
        return
    if join.span is None:
        yield from crossing(join, own, batch_bytes=batch_bytes)
    else:
        yield from _in_windows(source, join, own, batch_bytes)


def _in_windows(
    source: SpillSource, join: JoinSpec, own: Sequence[InputGenerations], batch_bytes: int
) -> Iterator[Joined]:
    """As `crossing`, level after level: rows meet slice by slice, so that the cost is that of rows
    which can join."""
    hashes = distinct([own[0].rows.key_hash])  # every input has each
    levels = max(int(of_row.max(initial=0)) for _, of_row in own).bit_length()
    ranks = [each.numbers().astype(np.uint64) << np.uint64(levels) for each in own]
    for level in range(levels):
        sides: list[list[list[Rows]]] = [[], []]
        for input_, (rows, of_row), rank in zip(source.inputs, own, ranks, strict=True):
            met = Rows(rank | (of_row >> (level + 1)).astype(np.uint64), rows.table)
            side = (of_row >> level) & 1
            for each, mine in enumerate(sides):
                runs = _where_true(met, side == each)
                mine.append([part for run in runs for part in sliced(source.spec, input_, run)])
        old, new = sides
        if not (any(old) and any(new)):
            continue
        for batch in join_batches(join, old, new, need_old=True, batch_bytes=batch_bytes):
            at = (batch.hashes >> np.uint64(levels)).astype(np.int64)
            yield replace(batch, hashes=hashes[at])


def _between(spilled: InputGenerations, lo: int, hi: int) -> InputGenerations:
    """The rows with a hash in [lo, hi)."""
    rows, of_row = spilled
    start = int(np.searchsorted(rows.key_hash, np.uint64(lo)))
    end = int(np.searchsorted(rows.key_hash, np.uint64(hi - 1), side="right"))
    found = Rows(rows.key_hash[start:end], rows.table.slice(start, end - start))
    return InputGenerations(found, of_row[start:end])


FEW_STRETCHES = 64
MOST_COPIED_BYTES = 1 << 30
"""A column of text holds at most 2 GiB in one piece; only one hash alone may have so much."""


def _where_true(rows: Rows, wanted: Bool) -> list[Rows]:
    """The wanted rows, as sorted runs: copied to one where they are many stretches."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)
    if len(edges) <= FEW_STRETCHES or rows.table.nbytes > MOST_COPIED_BYTES:
        return [
            Rows(rows.key_hash[start:end], rows.table.slice(start, end - start))
            for start, end in edges.tolist()
        ]
    at = np.flatnonzero(wanted)
    return [Rows(rows.key_hash[at], rows.table.take(pa.array(at)))]


def rows_of_input(source: SpillSource, parts: Sequence[SpilledRows], input_: int) -> pa.Table:
    """The parts' rows, all of one input, as its row schema."""
    spec = source.spec
    for part in parts:
        if problem := _wrong(spec, part.table["row"], input_):
            where = source.folder.path(source.index.files[part.file].path)
            problem = f"a row of input {input_} is not one of this query: {problem}"
            raise SpillDamaged(where, problem)
    table = pa.concat_tables([part.table for part in parts])
    schema = spec.row_schema(input_)
    columns = [pc.struct_field(table["row"], k) for k in range(table["row"].type.num_fields)]
    if not spec.inputs[input_].leaves:
        columns += [table["partition"], table["offset"]]
    # A column whose text would overflow one chunk keeps several.
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()


def _wrong(spec: TreeSpec, rows: pa.ChunkedArray, input_: int) -> str:
    """Why these structs are no rows of an input; empty when they are."""
    wanted = row_struct(spec, input_)
    if not rows.type.equals(wanted):
        return f"it has {rows.type} instead of {wanted}"
    if rows.null_count:
        return "it is not there"
    for k, field in enumerate(spec.join_of_input(input_).keys):
        if not field.nullable and pc.struct_field(rows, k).null_count:
            return f"it has no {field.name}"
    return ""
