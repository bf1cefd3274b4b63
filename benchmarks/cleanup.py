"""What cleanup's tasks cost, without processes, tables and commits: `python -m benchmarks.cleanup`.

Spills `--rows` rows of three inputs over `--keys` keys in `--generations` cuts of each of two
slots, and computes and writes what is missing, in one process: CPU seconds of it.
"""

from __future__ import annotations

import argparse
import cProfile
import tempfile
import time

import numpy as np
import pyarrow as pa

from benchmarks.step import SPEC, rows_of
from spillway.cleanup.plan import shares
from spillway.cleanup.task import CleanTask, RangeDone, SurveyTask, run_clean, run_survey
from spillway.engine.join.kernel import Rows
from spillway.engine.spill.source import SpillIndex
from spillway.engine.spill.spillfile import SpillFile, write_spill
from spillway.protocol.seal import CLEANUP_DEPTH
from spillway.storage import Folder, folder
from spillway_schemas.journal import Prefix

SESSION = "2026-01-05"


def spill(place: Folder, rows: int, keys: int, generations: int) -> SpillIndex:
    """Write the cuts; what they hold."""
    rng = np.random.default_rng(7)
    surveyed = []
    each = rows // 3 // generations
    for epoch in range(generations):
        inputs = []
        for input_ in range(3):
            batch, where = rows_of(input_, each, keys, epoch * each, rng)
            table = pa.table(
                [*batch.columns, pa.array(where.partition), pa.array(where.offset)],
                schema=SPEC.row_schema(input_),
            )
            hashes = SPEC.hashes(0, [batch.column(0)])
            order = np.argsort(hashes)
            inputs.append((hashes[order], table.take(pa.array(order))))
        for half in (Prefix(1, 0), Prefix(1, 1)):
            halves = []
            for hashes, table in inputs:
                first, last = np.searchsorted(hashes, np.array([half.lo, half.hi - 1], np.uint64))
                own = table.slice(first, last - first)
                halves.append([Rows(hashes[first:last], own)])
            record = write_spill(
                place, f"{epoch}-{half.value}.parquet", SPEC, SESSION, epoch, halves
            )
            assert record is not None
            file = SpillFile(record.path, record.bytes, record.digest)
            groups = run_survey(SurveyTask(place, file))
            if isinstance(groups, Exception):
                raise groups
            surveyed.append((file, groups))
    return SpillIndex.of(surveyed)


def main() -> None:
    """Run it and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="spilled, of three inputs")
    parser.add_argument("--keys", type=int, default=600_000)
    parser.add_argument("--generations", type=int, default=13, help="cuts of each slot")
    parser.add_argument("--cores", type=int, default=2, help="the tasks are cut for so many")
    parser.add_argument("--tasks", type=int, help="even ones instead")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as root:
        place = folder(root)
        index = spill(place.child("spill"), args.rows, args.keys, args.generations)
        units = [(n, Prefix(CLEANUP_DEPTH, n)) for n in range(1 << CLEANUP_DEPTH)]
        profiler = cProfile.Profile(time.process_time)
        began, results, files = time.process_time(), 0, 0
        if args.profile:
            profiler.enable()
        shared = [share.units for share in shares(units, index, args.cores)]
        if args.tasks:
            even = np.array_split(np.arange(len(units)), args.tasks)
            shared = [tuple(units[n] for n in some.tolist()) for some in even]
        for mine in shared:
            task = CleanTask(
                spec=SPEC,
                operator=0,
                session=SESSION,
                epoch=args.generations,
                units=mine,
                index=index.within([prefix for _, prefix in mine]),
                spill=place.child("spill"),
                results=place.child("results"),
                committed_us=1_767_600_000_000_000,
            )
            done: list[RangeDone] | Exception = run_clean(task)
            if isinstance(done, Exception):
                raise done
            results += sum(each.rows for each in done)
            files += sum(len(each.files) for each in done)
        cpu_s = time.process_time() - began
        profiler.disable()
    print(
        f"{args.rows:,} rows in {args.generations} generations, {len(shared)} tasks: "
        f"{results:,} missing results in {files} files, {cpu_s:.2f} CPU s, "
        f"{results / cpu_s / 1e6:.2f} million a second"
    )
    if args.profile:
        profiler.print_stats("tottime")


if __name__ == "__main__":
    main()
