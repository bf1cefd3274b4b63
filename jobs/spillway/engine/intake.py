"""What came to a slot in an epoch: its blocks, decoded and merged per session and input.

Invariant: every row belongs to a group that the slot owns. A block that says otherwise means
that the shuffle is not aligned; the step fails instead of keeping rows that no probe would find.

Rows are merged into few sorted pieces of bounded bytes (`PIECE_BYTES`; Arrow's string columns
end at 2 GiB), disjoint in their hashes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spillway.engine.groups import GroupMap
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.spillfile import quantiles
from spillway.engine.state.runs import merge, part_of
from spillway.engine.state.slices import sliced
from spillway.engine.wire.blocks import (
    CARRIED,
    READ,
    RESTORED,
    ROW_KINDS,
    STAMPED,
    Block,
    Moved,
    decode_counts,
    decode_missing,
    decode_moved,
    decode_rejected,
    decode_rows,
    decode_table,
)
from spillway_schemas.journal import PartitionCount, added

PIECE_BYTES = 256 << 20

INTO = {
    "new": "new",
    "state": "installed",
    "restore": "installed",
    "replay": "replayed",
    "carry": "carried",
}
"""Where the rows of a block go, by its kind."""
NOT_GIVEN = "groups that come from there were not found"
"""What is told of a slot that `Intake.lacking` names."""


@dataclass
class Intake:
    """The epoch's blocks. Lists of rows are per session and input, sorted, in a few pieces."""

    new: dict[str, list[list[Rows]]] = field(default_factory=dict)
    installed: dict[str, list[list[Rows]]] = field(default_factory=dict)
    carried: dict[str, list[list[Rows]]] = field(default_factory=dict)
    """Of the session before."""
    replayed: dict[str, list[list[Rows]]] = field(default_factory=dict)
    """Of a probe: rows of old, with their intervals."""
    rejected: list[tuple[str, pa.Table]] = field(default_factory=list)
    """(session, rows of `REJECTED_SCHEMA`)."""
    read: list[PartitionCount] = field(default_factory=list)
    restored: list[PartitionCount] = field(default_factory=list)
    carried_counts: list[PartitionCount] = field(default_factory=list)
    moved: dict[tuple[int, int], Moved] = field(default_factory=dict)
    """Per slot that groups come from and join, what it says it gave."""
    moved_rows: int = 0
    """Rows of groups that moved here, as far as they came through the shuffle."""
    figures: list[pa.Table] = field(default_factory=list)
    """Of groups that moved here."""
    given: list[pa.Table] = field(default_factory=list)
    """`GIVEN_SCHEMA`: what the joins below the root gave."""
    unfound: dict[int, str] = field(default_factory=dict)
    """Slots whose state a probe below did not find, and what was not there; empty when the slot is
    known only second-hand."""

    def lacking(self, arriving: Iterable[int], joins: Collection[int] = (0,)) -> list[int]:
        """Of the slots that groups shall come from, those whose state was not found. `joins`: those
        that are looked at."""
        told = {key for key, moved in self.moved.items() if moved.found}
        return [s for s in arriving if any((s, join) not in told for join in joins)]

    def demand_all_moved(self, slot: int) -> None:
        """Raise ValueError unless as many rows of groups that moved came as their givers say."""
        given = sum(moved.rows for moved in self.moved.values())
        came = self.moved_rows + sum(f.rows for moved in self.moved.values() for f in moved.files)
        if given != came:
            raise ValueError(
                f"slot {slot} was given {given} rows of groups that moved, {came} came"
            )

    @property
    def installed_rows(self) -> int:
        """Rows that are not new, those in files of other slots' making included."""
        came = (rows for inputs in self.installed.values() for each in inputs for rows in each)
        files = sum(f.rows for moved in self.moved.values() for f in moved.files)
        return files + sum(len(rows.key_hash) for rows in came)

    def sessions(self) -> set[str]:
        """Sessions that rows came for."""
        return {*self.new, *self.installed, *self.carried}


def take_in(
    spec: TreeSpec, groups: GroupMap, slot: int, blocks: Iterable[Block], piece_bytes: int
) -> Intake:
    """Decode the slot's blocks. Raises ValueError for a block that is not for this slot."""
    intake = Intake()
    parts: dict[tuple[str, str], list[list[Rows]]] = {}
    for block in blocks:
        if block.kind == "anchor":
            continue
        if block.slot != slot:
            raise ValueError(f"slot {slot} got a block for slot {block.slot}")
        if block.kind in ROW_KINDS and block.operator != spec.operators[block.input]:
            raise ValueError(
                f"a block of input {block.input} says that it is for join {block.operator}, not "
                f"{spec.operators[block.input]}"
            )
        if block.kind == "count":
            counts = {READ: intake.read, RESTORED: intake.restored, CARRIED: intake.carried_counts}
            if block.input not in counts:
                raise ValueError(f"slot {slot} got counts of an unknown kind, {block.input}")
            counts[block.input].extend(decode_counts(block))
        elif block.kind == "moved":
            intake.moved[block.input, block.operator] = decode_moved(block)
        elif block.kind == "figures":
            intake.figures.append(decode_table(block))
        elif block.kind == "rejected":
            intake.rejected.append(decode_rejected(block))
        elif block.kind == "given":
            intake.given.append(decode_table(block))
        elif block.kind == "missing":
            for lacking, what in decode_missing(block).items():
                intake.unfound[lacking] = intake.unfound.get(lacking) or what
        else:
            session, table = decode_rows(spec, block)
            kind = INTO[block.kind]
            intake.moved_rows += table.num_rows if block.kind == "state" else 0
            inputs = parts.setdefault((kind, session), [[] for _ in spec.inputs])
            inputs[block.input].append(rows_of(table, stamped=block.kind in STAMPED))
    for (kind, session), inputs in parts.items():
        pieces = [merge_bounded(rows, piece_bytes) for rows in inputs]
        if kind != "replayed":  # which no state keeps
            pieces = [
                [part for piece in some for part in sliced(spec, i, piece)]
                for i, some in enumerate(pieces)
            ]
        for piece in (piece for input_ in pieces for piece in input_):
            if (groups.slot_of(piece.key_hash) != slot).any():
                raise ValueError(
                    f"slot {slot} got rows of groups that it does not own: blocks were routed "
                    "with another assignment than the step's"
                )
        getattr(intake, kind)[session] = pieces
    intake.demand_all_moved(slot)
    intake.read = added(intake.read)
    intake.restored = added(intake.restored)
    intake.carried_counts = added(intake.carried_counts)
    return intake


def merge_bounded(parts: Sequence[Rows], piece_bytes: int) -> list[Rows]:
    """Sorted runs as disjoint sorted pieces of about `piece_bytes` (one hash may be larger)."""
    filled = [part for part in parts if len(part.key_hash)]
    total = sum(part.table.nbytes for part in filled)
    rows = sum(len(part.key_hash) for part in filled)
    if not rows:
        return []
    if total <= piece_bytes:
        return [merge(filled)]
    bounds = quantiles([part.key_hash for part in filled], max(1, rows * piece_bytes // total))
    cuts = [
        np.concatenate([[0], np.searchsorted(p.key_hash, bounds), [len(p.key_hash)]])
        for p in filled
    ]
    pieces = [
        merge([part_of(p, int(c[k]), int(c[k + 1])) for p, c in zip(filled, cuts, strict=True)])
        for k in range(len(bounds) + 1)
    ]
    return [piece for piece in pieces if len(piece.key_hash)]


def rows_of(table: pa.Table, *, stamped: bool) -> Rows:
    """The rows of a block. `stamped`: its last column is no part of them."""
    hashes = table.column(0).combine_chunks().to_numpy()
    if not stamped:
        return Rows(hashes, table.select(range(1, table.num_columns)))
    stamps = table.column(table.num_columns - 1).combine_chunks().to_numpy()
    return Rows(hashes, table.select(range(1, table.num_columns - 1)), stamps)
