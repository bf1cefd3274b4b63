"""Spilled generations read back: what a step needs of files that it, or another slot, once wrote.

Cost: the row groups that the wanted hash ranges touch are decoded, one at a time, whatever else
they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64, U64, Bool, range_index
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.source import SpilledRows, SpillIndex, SpillSource, rows_of_input
from spillway.engine.spill.spillfile import SpillDamaged, SpillFile, row_column, row_groups
from spillway.engine.state.runs import merge
from spillway.storage import Folder
from spillway_schemas.journal import Prefix


@dataclass(frozen=True)
class Returned:
    """What was found of some generations."""

    rows: list[list[Rows]]
    """Per input of the tree, sorted, a piece a file."""
    there: Bool
    """Which of the generations were read, bool (k,)."""
    damaged: Bool
    """Which never will be: their file is gone, or is not what it was."""
    problems: list[str]
    """Why, once for each file."""


def spilled_generations(
    spec: TreeSpec, folder: Folder, kept: pa.Table, ranges: Sequence[Prefix]
) -> Returned:
    """The rows of k generations of the root. `kept`: `KEPT_FIELDS` of each; `ranges`: where its
    hashes lie."""
    rows: list[list[Rows]] = [[] for _ in spec.inputs]
    there: Bool = np.zeros(len(ranges), dtype=np.bool_)
    damaged: Bool = np.zeros(len(ranges), dtype=np.bool_)
    problems: list[str] = []
    paths = kept["path"].to_pylist()
    for path in sorted(set(paths)):
        at = [i for i, each in enumerate(paths) if each == path]
        at.sort(key=lambda i: ranges[i].lo)
        try:
            found = _read(spec, folder, kept.take(pa.array(at)), [ranges[i] for i in at])
        except SpillDamaged as problem:
            damaged[at] = True
            problems.append(str(problem))
            continue
        except OSError as problem:
            problems.append(f"{folder.path(path)}: {problem}")
            continue
        there[at] = True
        for held, more in zip(rows, found, strict=True):
            held += more
    return Returned(rows, there, damaged, problems)


def _read(
    spec: TreeSpec, folder: Folder, kept: pa.Table, ranges: Sequence[Prefix]
) -> list[list[Rows]]:
    """What one file has. Raises `SpillDamaged`, also where it does not hold as many rows of a range
    as were spilled."""
    file = SpillFile(kept["path"][0].as_py(), kept["file_bytes"][0].as_py())
    index = SpillIndex.of([(file, row_groups(folder, file, 0))]).within(ranges)
    source = SpillSource(folder, index, spec, spec.root.operator)
    epochs = kept["epoch"].to_numpy()
    counts: I64 = np.zeros(len(ranges), dtype=np.int64)
    parts: list[SpilledRows] = []
    columns = ("input", "key_hash", "epoch", "partition", "offset")
    near = source.touching(0, 1 << 64)
    for _, _, table in source.rows(near, 0, 1 << 64, columns, whole=True):
        hashes = table["key_hash"].to_numpy().view(np.uint64)
        at = range_index(hashes, ranges)
        mine = (at >= 0) & (epochs[np.maximum(at, 0)] == table["epoch"].to_numpy())
        counts += np.bincount(at[mine], minlength=len(ranges))
        inputs = table["input"].to_numpy()
        for input_ in np.unique(inputs[mine]).tolist():
            own = mine & (inputs == input_)
            row = table[row_column(spec, input_)]
            rest = table.select(["partition", "offset"]).append_column("row", row)
            parts.append(SpilledRows(0, 0, input_, hashes, rest).only(own))
    wanted = kept["rows"].to_numpy()
    if (counts != wanted).any():
        wrong = int(np.flatnonzero(counts != wanted)[0])
        found_rows = f"it has {counts[wrong]} rows of group {ranges[wrong].text}"
        raise SpillDamaged(
            folder.path(file.path), f"{found_rows}, {wanted[wrong]} were spilled to it"
        )
    found: list[list[Rows]] = [[] for _ in spec.inputs]
    for input_ in source.inputs:
        pieces = [
            Rows(part.key_hash, rows_of_input(source, [part], input_))
            for part in parts
            if part.input == input_
        ]
        if pieces:
            found[input_].append(_in_order(pieces))
    return found


def _in_order(pieces: Sequence[Rows]) -> Rows:
    """One piece. Row groups of a file are in the order of hashes already."""
    hashes: U64 = np.concatenate([piece.key_hash for piece in pieces])
    if (hashes[1:] >= hashes[:-1]).all():
        return Rows(hashes, pa.concat_tables([piece.table for piece in pieces]).combine_chunks())
    return merge(pieces)
