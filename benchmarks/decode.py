"""How fast one core decodes: the columnar path, batches with bad values, the contract alone.

    python -m benchmarks.decode [--rows 300000] [--json]
    python -m benchmarks.decode --against ../other/checkout [--rows 100000]

`--against` decodes the same messages with this tree and with another one in turns, each in a
process of its own, and says how many times as fast this one is: the median of the pairs' ratios,
for what else the machine does hits both of a pair.

Messages are stock trades of about 110 bytes with two fields that the contract does not know.
Every figure is the best of a few runs, in milliseconds of CPU and rows per CPU second, so that a
busy machine does not spoil it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from spillway.decode import compile_streams, decode, partition_digest, value_digest
from spillway.worker_processes import keep_freed_memory
from spillway_schemas.query import load_query


def messages(rows: int, seed: int = 7) -> list[bytes]:
    """`rows` trades; the same for the same seed."""
    rng = random.Random(seed)
    return [
        (
            f'{{"symbol":"S{rng.randrange(10**6):06}","ts":"2026-01-05T14:{rng.randrange(60):02}'
            f':{rng.randrange(60):02}.{rng.randrange(10**6):06}Z","price":{rng.random() * 500:.2f}'
            f',"currency":"USD","venue":"XNYS","seq":{i}}}'
        ).encode()
        for i in range(rows)
    ]


def spoiled(values: list[bytes], every: int, bad: bytes | None = None) -> list[bytes]:
    """One value in `every` has a text for a price (or is `bad`)."""
    wrong = list(values)
    for at in range(every // 2, len(wrong), every):
        wrong[at] = bad or wrong[at].replace(b'"price":', b'"price":"x","was":')
    return wrong


def varied(values: list[bytes]) -> list[bytes]:
    """Each value with a list of another length than its neighbours'."""
    return [value[:-1] + b',"x":[1%s]}' % (b",1" * (i % 97)) for i, value in enumerate(values)]


def best_s(run: Callable[[], object], times: int) -> float:
    """CPU seconds of the fastest of `times` runs."""
    seconds = []
    for _ in range(times):
        begin = time.process_time()
        run()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def measure(rows: int) -> list[dict[str, object]]:
    keep_freed_memory()  # as a worker does
    stock = compile_streams(load_query("symbol"))[0]
    minute = compile_streams(load_query("symbol_minute"))[0]
    values = messages(rows)
    good = pa.array(values, pa.binary())
    cases: list[tuple[str, int, int, Callable[[], object]]] = [
        ("columns", rows, 5, lambda: decode(stock, good)),
        ("columns, key by minute", rows, 5, lambda: decode(minute, good)),
        ("contract only", rows, 1, lambda: decode(stock, good, few_rows=rows)),
    ]
    for name, every, bad in [
        ("one bad value", rows, None),
        ("one bad value in 10,000", 10_000, None),
        ("one bad value in 100", 100, None),
        ("one value in 100 is no JSON", 100, b"oops"),
        ("every value is bad", 1, None),
    ]:
        array = pa.array(spoiled(values, every, bad), pa.binary())
        cases.append((name, rows, 2, partial(decode, stock, array)))
    nested = pa.array(varied(values), pa.binary())
    cases.append(("every value has another form", rows, 2, lambda: decode(stock, nested)))
    for few in (1, 10, 100, 1_000, 10_000):
        part = good.slice(0, few)
        cases.append((f"batch of {few}", few, 50, partial(decode, stock, part)))
    offsets = np.arange(rows)
    cases.append(("digest", rows, 5, lambda: partition_digest(value_digest(good), offsets)))
    report: list[dict[str, object]] = []
    for name, count, times, run in cases:
        seconds = best_s(run, times)
        report.append(
            {"case": name, "rows": count, "ms": round(seconds * 1e3, 2)}
            | {"rows_per_s": round(count / seconds)}
        )
    return report


_RUNNER = """
import pickle, sys, time
sys.path.insert(0, sys.argv[1])
import spillway.decode, numpy, pyarrow
from spillway_schemas.query import load_query
assert spillway.decode.__file__.startswith(sys.argv[1]), spillway.decode.__file__
stock = spillway.decode.compile_streams(load_query("symbol"))[0]
numpy.empty(16 << 20, numpy.uint8)  # what `keep_freed_memory` does, which not every version has
values = pyarrow.array(pickle.load(sys.stdin.buffer), pyarrow.binary())
while sys.stdin.buffer.readline():
    begin = time.process_time()
    spillway.decode.decode(stock, values)
    print(time.process_time() - begin, flush=True)
"""
PAIRS = 30


def compare(other: Path, rows: int) -> dict[str, object]:
    """This tree's `decode` and another's in turns: CPU ms of each, and how many times as fast."""
    values = pickle.dumps(messages(rows))
    runs: list[subprocess.Popen[bytes]] = []
    for tree in (Path(__file__).parents[1], other.resolve()):
        command = [sys.executable, "-c", _RUNNER, str(tree)]
        runs.append(subprocess.Popen(command, stdin=-1, stdout=-1, cwd=tree))
    seconds = np.zeros((PAIRS, len(runs)))
    for run in runs:
        assert run.stdin is not None
        run.stdin.write(values)
    for pair in range(PAIRS):
        for i, run in enumerate(runs):
            assert run.stdin is not None
            assert run.stdout is not None
            run.stdin.write(b"\n")
            run.stdin.flush()
            seconds[pair, i] = float(run.stdout.readline())
    for run in runs:
        run.communicate()
    here, there = np.median(seconds, axis=0) * 1e3
    times = float(np.median(seconds[:, 1] / seconds[:, 0]))
    return {
        "rows": rows,
        "ms": round(here, 1),
        "ms_other": round(there, 1),
        "times_as_fast": round(times, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    arguments = parser.parse_args()
    if arguments.against:
        print(json.dumps(compare(arguments.against, min(arguments.rows, 100_000))))
        return
    report = measure(arguments.rows)
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for line in report:
        print(
            f"{line['case']:32} {line['rows']:>9,} {line['ms']:>10,} ms {line['rows_per_s']:>12,}/s"
        )


if __name__ == "__main__":
    main()
