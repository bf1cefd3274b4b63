"""The rows of hash ranges, loaded in pieces that fit into memory.

Invariants:

* Bounded memory: a piece has about `piece_bytes` at most (as spilled, uncompressed). Several
  ranges share a piece when they are small, and a range is cut by further bits of the hash when it
  is large. Only the rows of one single hash are never cut.
* Rows are read once, where what reaches over a piece's end fits beside it (`Straddling`; the rest
  is read again with the next piece), and once more where a piece is put down because it has more
  than its row groups let expect. Where hashes are not spread evenly within these, and in a range
  that is larger than a piece, hashes are read before the rows, to see how many each range has, and
  once more for each range that is cut.

Failure paths: a spill file that is missing or damaged raises `SpillDamaged`, which names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.engine.groups import I64, U64, Bool
from spillway.engine.spill.source import SpilledRows, SpillSource, alive
from spillway.engine.spill.spillfile import RowGroups, row_column, where
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


def loaded(
    source: SpillSource, ranges: Sequence[Prefix], piece_bytes: int
) -> Iterator[tuple[int, int, list[SpilledRows]]]:
    """The rows of the ranges, piece after piece in the order of hashes, with the ranges
    [first, last) that the piece is of: of several whole ranges, or a part of one.

    Cut by what row groups hold if their hashes are spread evenly. A piece that turns out to have
    more is put down, and cut again by the hashes themselves. Once one has much less, so are all
    that come after it: else each would read, for few rows, the row groups that reach over it.
    A caller that is done with a piece empties its list: the generator still holds it.
    """
    if not ranges:
        return
    near = source.touching(ranges[0].lo, ranges[-1].hi)
    straddling = Straddling(piece_bytes)
    for first, last, held in packed(estimated_weights(near, ranges), piece_bytes):
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
    for first, last, held in packed(exact, piece_bytes):
        lo, hi = ranges[first].lo, ranges[last - 1].hi
        pieces = cut(source, lo, hi, piece_bytes) if held > piece_bytes else [(lo, hi)]
        for piece_lo, piece_hi in pieces:
            yield first, last, load(source, piece_lo, piece_hi, straddling)


def packed(sizes: F64, piece_bytes: float) -> Iterator[tuple[int, int, float]]:
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
    `straddling` has then lost rows, and must not be used again.
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
        if source.ends is not None:
            epochs = source.ends.of(hashes, epochs)
        # Our own row groups have one epoch and one input; others are exact, too, only slower.
        for input_ in _distinct(inputs):
            row = table[row_column(source.spec, input_)]
            rest = table.select(["partition", "offset"]).append_column("row", row)
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
