"""An epoch's job and a cleanup's, without Spark: what `spillway.stream.job` and
`spillway.cleanup.job` have done on a cluster, one task after the other in one process.

Nothing is decided here, and nothing is kept: tasks and blocks in, reports and files out. So both
serve whoever has slots on folders, with a journal or without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from spillway.cleanup.plan import stages
from spillway.cleanup.task import CleanTask, run_clean
from spillway.engine.join.tree import TreeSpec
from spillway.engine.probe import probe
from spillway.engine.relocation import extract
from spillway.engine.spill.pieces import PIECE_BYTES
from spillway.engine.spill.source import SpillIndex
from spillway.engine.spill.spillfile import SpillFile, survey
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import PROBED, UNSTEPPED, Block
from spillway.storage import Folder, StateFolder
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import FileRecord, Prefix, SlotReport

Tasks = Mapping[int, StepTask]
"""By slot."""
Folders = Callable[[int], StateFolder]
"""A slot's own."""


def ordered(
    task: StepTask, going: Mapping[tuple[int, int], Sequence[Prefix]], forced: Mapping[int, int]
) -> StepTask:
    """A slot's task with what goes from slot to slot (`going`), and what slots must spill."""
    return replace(
        task,
        leaving=tuple(p for (giver, _), ps in going.items() if giver == task.slot for p in ps),
        arriving=tuple(giver for giver, taker in going if taker == task.slot),
        forced_bytes=forced.get(task.slot, 0),
    )


def sifted(
    files: Iterable[FileRecord], tables: Callable[[str], Folder]
) -> tuple[list[FileRecord], pa.Table | None]:
    """Of an epoch's files those of spills, and the statistics that it wrote, if any. The others are
    deleted."""
    spilled, found = [], []
    for file in files:
        place = tables(file.table)
        if file.table == "spill":
            spilled.append(file)
            continue
        if file.table == "statistics":
            with place.open(file.path) as source:
                found.append(pq.ParquetFile(source).read(use_threads=False))
        place.delete(file.path)
    return spilled, pa.concat_tables(found) if found else None


def extracted(
    spec: TreeSpec,
    tasks: Tasks,
    state: Folders,
    elsewhere: Set[int] = frozenset(),
    givers: Collection[int] | None = None,
) -> Iterator[Block]:
    """What leaves slots in this epoch. `elsewhere`: slots on another host, which get blocks.
    `givers`: slots that are looked at; None: all."""

    def neighbour(slot: int) -> tuple[StepTask, StateFolder] | None:
        return None if slot in elsewhere else (tasks[slot], state(slot))

    for slot, task in tasks.items():
        if task.leaving and (givers is None or slot in givers):
            yield from extract(spec, task, state(slot), neighbour)


def carried_out(
    spec: TreeSpec,
    tasks: Tasks,
    came: Iterable[Block],
    state: Folders,
    tables: Callable[[str], Folder],
) -> list[SlotReport]:
    """The probes of every level below the root's, then the steps. `came`: the blocks of all."""
    blocks = list(came)
    given = probed(spec, tasks, blocks, state)
    return stepped(spec, tasks, [*blocks, *chain(*given.values())], state, tables)


Given = dict[tuple[int, int], list[Block]]
"""By level and slot, what a probe gave."""


def probed(
    spec: TreeSpec,
    tasks: Tasks,
    came: Collection[Block],
    state: Folders,
    known: Mapping[tuple[int, int], list[Block]] = MappingProxyType({}),
) -> Given:
    """What the probes of every level below the root's give. `known`: those not run again."""
    given: Given = {}
    for level in range(1, spec.height):
        joins = spec.at_level(level)
        below = [*came, *chain(*given.values())]
        wanted = [b for b in below if b.kind in PROBED and b.operator in joins]
        for slot, task in tasks.items():
            if (made := known.get((level, slot))) is None:
                mine = [b for b in wanted if b.slot == slot]
                made = list(probe(spec, task, level, mine, state(slot)))
            given[level, slot] = made
    return given


def stepped(
    spec: TreeSpec,
    tasks: Tasks,
    blocks: Collection[Block],
    state: Folders,
    tables: Callable[[str], Folder],
) -> list[SlotReport]:
    """The steps. `blocks`: of all slots."""
    wanted = [b for b in blocks if b.kind not in UNSTEPPED]
    return [
        step(spec, task, [b for b in wanted if b.slot == slot], state(slot), tables)
        for slot, task in tasks.items()
    ]


@dataclass(frozen=True)
class JoinCleaned:
    """What the cleanup of one join of a sealed session wrote."""

    join: int
    files: tuple[FileRecord, ...]
    cpu_s: float
    """Of reading its generations, joining, and writing what was missing."""


def cleaned(
    spec: TreeSpec,
    ranges: Sequence[Prefix],
    spilled: Collection[SpillFile],
    tables: Callable[[str], Folder],
    *,
    session: str,
    epoch: int,
    committed_us: int = 0,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[JoinCleaned]:
    """The joins of a sealed session, those below a join before it. Raises what a task returns.

    `ranges`: those that its seal names; `epoch`: the seal's.
    """
    place, files = tables("spill"), list(spilled)
    for stage in stages(ranges, spec.parents):
        found = []
        for join in stage:
            start = time.process_time()
            index = SpillIndex.of([(file, survey(place, file, 0)) for file in files])
            units = tuple(
                (n, each) for n, each in enumerate(ranges) if join_of(each, len(spec.joins)) == join
            )
            task = CleanTask(
                spec=spec,
                operator=join,
                session=session,
                epoch=epoch,
                units=units,
                index=index.within([each for _, each in units]),
                spill=place,
                results=tables("results"),
                committed_us=committed_us,
                piece_bytes=piece_bytes,
            )
            done = run_clean(task)
            if isinstance(done, Exception):
                raise done
            made = tuple(file for each in done for file in each.files)
            found.append(JoinCleaned(join, made, time.process_time() - start))
        files += [SpillFile(f.path, f.bytes) for c in found for f in c.files if f.table == "spill"]
        yield from found
