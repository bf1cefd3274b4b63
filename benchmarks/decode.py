"""How fast one core decodes: the columnar path, batches with bad values, the contract alone.

    python -m benchmarks.decode [--rows 300000] [--json]

Messages are stock trades of about 110 bytes with two fields that the contract does not know.
Every figure is the best of a few runs, in milliseconds of CPU and rows per CPU second, so that a
busy machine does not spoil it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from jobs.decode import compile_streams, decode, partition_digest, value_digest
from schemas.query import load_query


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


def best_s(run: Callable[[], object], times: int) -> float:
    """CPU seconds of the fastest of `times` runs."""
    seconds = []
    for _ in range(times):
        begin = time.process_time()
        run()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def measure(rows: int) -> list[dict[str, object]]:
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
        cases.append((name, rows, 2, lambda array=array: decode(stock, array)))  # type: ignore[misc]
    for few in (1, 10, 100, 1_000, 10_000):
        part = good.slice(0, few)
        cases.append((f"batch of {few}", few, 50, lambda part=part: decode(stock, part)))  # type: ignore[misc]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
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
