"""What one slot's step costs, without Spark and Kafka: `python -m benchmarks.step`.

Fills a slot with `--state` rows over `--keys` keys in epochs of `--rows` new rows (three inputs
together), then measures steps of the same size: wall seconds of each phase on one core. The new
rows arrive as blocks, as decoders make them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

import numpy as np
import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.groups import GroupMap
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.statistics import statistics_every_s
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, Coordinates, route
from spillway.policy.automatic import fraction_for
from spillway.policy.reactivation import DEFAULT_REACTIVATION
from spillway.policy.reactivation import POLICIES as REACTIVATIONS
from spillway.storage import LocalFolder, folder
from spillway_schemas.setting_fields import SpillSettings

EPOCH_S = 2
TS = pa.timestamp("us", tz="UTC")
SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        (
            InputSpec(
                "stock", pa.schema([("ts", TS), ("price", pa.float64()), ("currency", pa.string())])
            ),
            InputSpec("volume", pa.schema([("ts", TS), ("shares", pa.int64())])),
            InputSpec(
                "review",
                pa.schema(
                    [
                        ("ts", TS),
                        ("reviewer", pa.string()),
                        ("rating", pa.int64()),
                        ("text", pa.string()),
                    ]
                ),
            ),
        ),
    )
)


def rows_of(
    input_: int, rows: int, keys: int, offset: int, rng: np.random.Generator
) -> tuple[pa.RecordBatch, Coordinates]:
    """Rows of one input as a decoder gives them."""
    symbols = pa.array([f"S{k:07d}" for k in rng.integers(0, keys, rows).tolist()])
    ts = pa.array(1_767_600_000_000_000 + np.arange(offset, offset + rows), TS)
    numbers = rng.integers(1, 500, rows)
    columns = {
        0: [pa.array(numbers / 7), pa.array([None] * rows, pa.string())],
        1: [pa.array(numbers)],
        2: [
            pa.array([f"r{n}" for n in numbers.tolist()]),
            pa.array(numbers % 5 + 1),
            pa.array([None] * rows, pa.string()),
        ],
    }[input_]
    schema = pa.schema([*SPEC.root.keys, *SPEC.inputs[input_].payload])
    where = Coordinates(
        np.zeros(rows, np.int32),
        np.arange(offset, offset + rows),
        np.full(rows, 1_767_600_000_000),
    )
    return pa.RecordBatch.from_arrays([symbols, ts, *columns], schema=schema), where


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="new rows an epoch")
    parser.add_argument("--state", type=int, default=3_000_000, help="rows in state to begin with")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured")
    parser.add_argument("--budget", type=int, default=4 << 30, help="bytes")
    parser.add_argument("--fraction", type=float)
    parser.add_argument("--reactivation", choices=REACTIVATIONS, default=DEFAULT_REACTIVATION)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=4, help="decoders per input")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="profile the measured steps")
    args = parser.parse_args()
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    pa.set_cpu_count(1)
    rng = np.random.default_rng(7)
    groups = GroupMap.initial(args.groups, 1)
    lines = []
    profiler = None
    if args.profile:
        import cProfile

        profiler = cProfile.Profile(time.process_time)
    with tempfile.TemporaryDirectory(dir=shm) as root:
        state, warehouse = LocalFolder(root).child("slot"), folder(root).child("warehouse")
        manifest, epoch, offset = None, 0, 0
        fill = -(-args.state // args.rows)
        while epoch < fill + args.steps:
            per_input = args.rows // 3
            blocks: list[Block] = []
            decode_s = 0.0
            for input_ in range(3):
                batch, where = rows_of(input_, per_input, args.keys, offset, rng)
                share = -(-per_input // args.blocks)
                for at in range(0, per_input, share):
                    part = slice(at, at + share)
                    own = Coordinates(
                        where.partition[part], where.offset[part], where.kafka_ms[part]
                    )
                    start = time.perf_counter()
                    blocks += route(
                        SPEC, input_, groups, batch.slice(at, share), own, session="2026-01-05"
                    )
                    decode_s += time.perf_counter() - start
            task = StepTask(
                key=SecretBytes(b"k" * 32),
                slot=0,
                epoch=epoch,
                attempt=f"{epoch:016x}",
                warehouse_id="bench",
                session="2026-01-05",
                manifest=manifest,
                groups=groups,
                threshold=SpillSettings().threshold,
                budget_bytes=args.budget,
                fraction=fraction_for(args.fraction or "automatic", args.reactivation),
                reactivation=args.reactivation,
                now_ms=epoch * EPOCH_S * 1000,
                written_at_us=1_767_600_001_000_000,
                statistics=epoch * EPOCH_S % statistics_every_s(args.groups) < EPOCH_S,
            )
            if profiler and epoch >= fill:
                profiler.enable()
            cpu, start = time.process_time(), time.perf_counter()
            report = step(SPEC, task, blocks, state, warehouse.child)
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            if profiler:
                profiler.disable()
            assert report.totals is not None
            manifest = report.manifest
            offset += per_input
            if epoch >= fill:
                lines.append(
                    {
                        "epoch": epoch,
                        "wall_s": round(wall, 3),
                        "cpu_s": round(cpu, 3),
                        "route_s": round(decode_s, 3),
                        "results": report.totals.results,
                        "state_rows": report.totals.rows,
                        "state_bytes": report.totals.state_bytes,
                        "spilled_bytes": report.totals.spilled_bytes,
                        "returned_bytes": report.totals.returned_bytes,
                        "overflow_bytes": report.totals.overflow_bytes,
                        "files": sum(1 for _ in state.list()),
                        **{k: round(v, 3) for k, v in report.totals.seconds.items()},
                    }
                )
            for file in list(warehouse.list()):
                if not file.name.startswith("spill/"):  # what was spilled may come back
                    warehouse.delete(file.name)
            epoch += 1
    if args.json:
        print(json.dumps(lines))
    else:
        for line in lines:
            print("  ".join(f"{k}={v}" for k, v in line.items()))
        spent = sum(line["statistics"] for line in lines)
        print(f"statistics: {spent / sum(line['wall_s'] for line in lines):.2%} of the steps' time")
        held = [line["state_bytes"] / args.budget for line in lines[len(lines) // 3 :]]
        lost = sum(line["overflow_bytes"] for line in lines) / args.budget
        print(
            f"together: {sum(line['results'] for line in lines):,} results, "
            f"{sum(line['cpu_s'] for line in lines):.1f} CPU s; of the budget in use in the last "
            f"two thirds: mean {np.mean(held):.2f}, least {min(held):.2f}; spilled for want of "
            f"room: {lost:.2f} budgets"
        )
    if profiler:
        import pstats

        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
