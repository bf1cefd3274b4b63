"""Spilled generations read back: what a step needs of files that it, or another slot, once wrote.

Cost: the row groups that the wanted hash ranges touch are decoded, whatever else they hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64, U64, range_index
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.cleanup import SpillIndex, SpillSource, load, rows_of_input
from spillway.engine.spill.spillfile import SpillDamaged, SpillFile, row_groups
from spillway.engine.state.runs import merge
from spillway.storage import Folder
from spillway_schemas.journal import Prefix


def spilled_generations(
    spec: TreeSpec, folder: Folder, kept: pa.Table, ranges: Sequence[Prefix]
) -> list[list[Rows]]:
    """The rows of some generations of the root, per input of the tree, sorted, a piece a file.

    `kept`: `KEPT_FIELDS` of each; `ranges`: where its hashes lie. Raises `SpillDamaged`, also for a
    file that does not hold as many rows of a range as were spilled.
    """
    found: list[list[Rows]] = [[] for _ in spec.inputs]
    paths = kept["path"].to_pylist()
    for path in sorted(set(paths)):
        at = [i for i, each in enumerate(paths) if each == path]
        at.sort(key=lambda i: ranges[i].lo)
        mine = kept.take(pa.array(at))
        _read(spec, folder, mine, [ranges[i] for i in at], found)
    return found


def _read(
    spec: TreeSpec,
    folder: Folder,
    kept: pa.Table,
    ranges: Sequence[Prefix],
    found: list[list[Rows]],
) -> None:
    """Add what one file has."""
    file = SpillFile(kept["path"][0].as_py(), kept["file_bytes"][0].as_py())
    index = SpillIndex.of([(file, row_groups(folder, file, 0))]).within(ranges)
    source = SpillSource(folder, index, spec, spec.root.operator)
    epochs = kept["epoch"].to_numpy()
    counts: I64 = np.zeros(len(ranges), dtype=np.int64)
    parts = []
    for part in load(source, 0, 1 << 64):
        at = range_index(part.key_hash, ranges)
        mine = (at >= 0) & (epochs[np.maximum(at, 0)] == part.epoch)
        counts += np.bincount(at[mine], minlength=len(ranges))
        if mine.any():
            parts.append(part.only(mine))
    wanted = kept["rows"].to_numpy()
    if (counts != wanted).any():
        wrong = int(np.flatnonzero(counts != wanted)[0])
        found_rows = f"it has {counts[wrong]} rows of group {ranges[wrong].text}"
        raise SpillDamaged(
            folder.path(file.path), f"{found_rows}, {wanted[wrong]} were spilled to it"
        )
    for input_ in source.inputs:
        own = [part for part in parts if part.input == input_]
        pieces = [Rows(part.key_hash, rows_of_input(source, [part], input_)) for part in own]
        if pieces:
            found[input_].append(_in_order(pieces))


def _in_order(pieces: Sequence[Rows]) -> Rows:
    """One piece. Row groups of a file are in the order of hashes already."""
    hashes: U64 = np.concatenate([piece.key_hash for piece in pieces])
    if (hashes[1:] >= hashes[:-1]).all():
        return Rows(hashes, pa.concat_tables([piece.table for piece in pieces]).combine_chunks())
    return merge(pieces)
