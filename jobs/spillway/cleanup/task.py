"""What runs in workers (`spillway.cleanup.workers`). Numpy and pyarrow only, no deltalake.

A task surveys one spill file, or writes the missing results of some ranges into files under
fresh names. Nothing that it writes counts before the driver commits it, so a task may run
twice, or fail half-way, and leave orphans that vacuum removes.

What a person must mend (damage, a disk that is full) is *returned*, not raised: Spark would try
again, on a full disk leave more files behind, and bury the reason in a Java trace.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from spillway.engine.join.batches import BATCH_BYTES, Joined
from spillway.engine.join.results import complete, file_schema
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.cleanup import clean_ranges
from spillway.engine.spill.generations import GenerationEnds, VoidedCuts
from spillway.engine.spill.pieces import PIECE_BYTES
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.spill.spillfile import (
    RowGroups,
    SpillDamaged,
    SpillFile,
    survey,
    write_generation,
)
from spillway.engine.wire.datafile import FILE_BYTES, write_data_files
from spillway.storage import Folder, StorageError
from spillway_schemas.filenames import cleanup_name
from spillway_schemas.journal import FileRecord, Prefix


@dataclass(frozen=True)
class SurveyTask:
    """Verify one spill file and say what it holds."""

    folder: Folder
    file: SpillFile


@dataclass(frozen=True)
class CleanTask:
    """Write the missing results of some ranges of one join."""

    spec: TreeSpec
    operator: int
    """The join that the ranges are of."""
    session: str
    epoch: int
    """The seal's: what cleanup's rows carry."""
    units: tuple[tuple[int, Prefix], ...]
    """(n, range), ascending in both."""
    index: SpillIndex
    spill: Folder
    results: Folder
    committed_us: int
    ends: GenerationEnds | None = None
    """Of a query with windows."""
    voided: VoidedCuts | None = None
    doubtful: frozenset[int] = frozenset()
    """As in `SpillSource`."""
    piece_bytes: int = PIECE_BYTES
    batch_bytes: int = BATCH_BYTES
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True)
class RangeDone:
    """The missing results of range n, written but not committed."""

    n: int
    files: tuple[FileRecord, ...]
    seconds: float

    @property
    def rows(self) -> int:
        """Results in the files."""
        return sum(file.rows for file in self.files)


def run_survey(task: SurveyTask) -> RowGroups | SpillDamaged | StorageError:
    """See `spillway.engine.spill.spillfile.survey`."""
    try:
        return survey(task.folder, task.file, 0)
    except (SpillDamaged, StorageError) as problem:
        return problem


def run_clean(task: CleanTask) -> list[RangeDone] | SpillDamaged | StorageError:
    """Compute and write all ranges of a task; one `RangeDone` for each, in order."""
    source = SpillSource(
        task.spill,
        task.index,
        task.spec,
        task.operator,
        ends=task.ends,
        voided=task.voided,
        doubtful=task.doubtful,
    )
    found = clean_ranges(
        source,
        [prefix for _, prefix in task.units],
        piece_bytes=task.piece_bytes,
        batch_bytes=task.batch_bytes,
    )
    ahead = _RangeBatches(found)
    done = []
    for position, (n, _) in enumerate(task.units):
        began = time.perf_counter()
        try:
            files = _written(task, n, ahead.of(position))
        except (SpillDamaged, StorageError) as problem:
            return problem
        done.append(RangeDone(n, tuple(files), time.perf_counter() - began))
    return done


def generation_of(epoch: int, operator: int) -> int:
    """The generation that a join's missing results are in the join above: after all that were
    spilled until the seal's `epoch`, and each child's one of its own."""
    return epoch + 1 + operator


def _written(task: CleanTask, n: int, found: Iterable[Joined]) -> list[FileRecord]:
    """Write range n's missing results: as results, or as rows of the join above."""
    spec = task.spec
    name = partial(cleanup_name, task.session, n, uuid.uuid4().hex[:12])
    up = spec.upward[task.operator]
    if up is not None:
        return write_generation(
            task.spill,
            name,
            spec,
            task.session,
            generation_of(task.epoch, task.operator),
            up.input,
            (spec.rows_up(task.operator, batch) for batch in found),
            file_bytes=task.file_bytes,
        )
    return write_data_files(
        task.results,
        "results",
        name,
        file_schema(spec),
        (
            complete(
                spec.results(batch.table),
                epoch=task.epoch,
                phase="cleanup",
                committed_us=task.committed_us,
            )
            for batch in found
        ),
        {"session_date": task.session},
        file_bytes=task.file_bytes,
    )


class _RangeBatches:
    """Hands out the batches of one range after the other."""

    def __init__(self, found: Iterator[tuple[int, Joined]]) -> None:
        self._found = found
        self._next: tuple[int, Joined] | None = None

    def of(self, position: int) -> Iterator[Joined]:
        """The batches of range `position`; positions are asked for in ascending order."""
        while True:
            if self._next is None:
                self._next = next(self._found, None)
            if self._next is None or self._next[0] != position:
                return
            batch = self._next[1]
            self._next = None
            yield batch
