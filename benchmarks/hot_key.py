"""A hot key in bounded memory: `python -m benchmarks.hot_key`.

One key has `--rows` rows in the first input and `--others` in each of the other two, so it gives
rows x others x others results (10^6 x 10 x 10 = 10^8 by default). The rows of the first input
are in state; the others come in one epoch, so that one step must give all results. Printed: the
results, the bytes written, the time, and the peak resident memory of the process that ran the
step (a process of its own), beside its memory before the step.

Results go to Parquet files in a temporary folder below `--folder` (by default not on tmpfs, whose
pages would be nobody's memory); each file is deleted once it is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.groups import GroupMap
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Coordinates, route
from spillway.storage import Folder, LocalFolder, folder
from spillway_schemas.setting_fields import SpillSettings

SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        tuple(InputSpec(n, pa.schema([("v", pa.int64())])) for n in ("stock", "volume", "review")),
    )
)
SESSION = "2026-01-05"


def peak_mib() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rows_of(input_: int, rows: int) -> tuple[pa.RecordBatch, Coordinates]:
    schema = pa.schema([*SPEC.root.keys, *SPEC.inputs[input_].payload])
    columns = [pa.repeat("HOT", rows), pa.array(np.arange(rows))]
    where = Coordinates(np.zeros(rows, np.int32), np.arange(rows), np.zeros(rows, np.int64))
    return pa.RecordBatch.from_arrays(columns, schema=schema), where


def sweep(warehouse: Folder, done: threading.Event) -> None:
    """Delete result files that are complete (the next one has begun), as disks are finite."""
    while not done.wait(0.5):
        files = sorted(warehouse.list(), key=lambda f: f.modified_s)
        for file in files[:-1]:
            warehouse.delete(file.name)


def measure(rows: int, others: int, batch_bytes: int, place: str) -> dict[str, float]:
    """Run the step in this process."""
    groups = GroupMap.initial(512, 1)
    manifest = None
    report = None
    # State is mapped from this folder, so its pages count as resident memory of this process.
    with tempfile.TemporaryDirectory(dir=place) as root:
        state, warehouse = LocalFolder(root).child("slot"), folder(root).child("warehouse")
        for epoch, inputs in enumerate(((0,), (1, 2))):
            blocks = []
            for input_ in inputs:
                batch, where = rows_of(input_, rows if input_ == 0 else others)
                blocks += route(SPEC, input_, groups, batch, where, session=SESSION)
            task = StepTask(
                key=SecretBytes(b"k" * 32),
                slot=0,
                epoch=epoch,
                attempt=f"{epoch:016x}",
                warehouse_id="bench",
                session=SESSION,
                manifest=manifest,
                groups=groups,
                threshold=SpillSettings().threshold,
                budget_bytes=2 << 30,
                batch_bytes=batch_bytes,
            )
            before = peak_mib()
            done = threading.Event()
            sweeper = threading.Thread(target=sweep, args=(warehouse, done))
            sweeper.start()
            start = time.perf_counter()
            report = step(SPEC, task, blocks, state, warehouse.child)
            wall = time.perf_counter() - start
            done.set()
            sweeper.join()
            manifest = report.manifest
    assert report is not None
    assert report.totals is not None
    return {
        "results": report.totals.results,
        "expected": rows * others * others,
        "files": len(report.files),
        "written_mib": round(sum(f.bytes for f in report.files) / 2**20, 1),
        "wall_s": round(wall, 1),
        "batch_mib": batch_bytes / 2**20,
        "state_mib": round(report.totals.state_bytes / 2**20, 1),
        "peak_before_mib": round(before, 1),
        "peak_mib": round(peak_mib(), 1),
    }


def main() -> None:
    """Measure in a process of its own and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--others", type=int, default=10)
    parser.add_argument("--batch-bytes", type=int, default=16 << 20)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--here", action="store_true", help="measure in this process")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.rows, args.others, args.batch_bytes, args.folder)))
        return
    command = [sys.executable, "-m", "benchmarks.hot_key", "--here", *sys.argv[1:]]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ, text=True)
    for name, value in json.loads(done.stdout).items():
        print(f"{name:16} {value:>14,}")


if __name__ == "__main__":
    main()
