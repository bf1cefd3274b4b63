"""What it costs to count through which groups results came: `python -m benchmarks.lineage`.

Fills a slot with the papers' five-way tree up to an epoch, with room for all. Then the same epoch,
from the same state and the same new rows, is done over and over, in turn without counting, with
counting, and with a sample of each batch: a step changes nothing that counts until its report is
kept. Seconds are CPU time of routing, probes and step in one process; decoding and Spark are left
out, so in a real epoch the share is lower. What is compared is a ratio for each turn; their median
counts. The hashes that rows carry for it (8 bytes a join below) are there either way.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import pyarrow as pa

from benchmarks.lab.cluster import Spilling
from benchmarks.lab.lines import scratch
from benchmarks.lab.tree_cluster import TreeCluster
from benchmarks.lab.tree_workload import TreeWorkload, generate_tree

MOST = 0.10
"""What counting may cost."""
EPOCH_S = 60.0
AMPLE = 1 << 30
WAYS = {"not counted": (False, 0), "counted": (True, 0), "sampled": (True, 10_000)}
"""Whether results are traced, and at most how many of a batch (0: all)."""


@dataclass(frozen=True)
class Cost:
    """What one way costs, as a part of an epoch without it."""

    way: str
    seconds: float
    """Of an epoch, median."""
    share: float
    """Median of the turns' ratios, less 1."""
    low: float
    high: float
    """The quartiles of these."""


def costs(seconds: dict[str, Sequence[float]]) -> list[Cost]:
    """Each way's cost. `seconds`: of each turn, by `WAYS`; two turns at least."""
    plain = seconds[next(iter(WAYS))]
    found = []
    for way, each in seconds.items():
        ratios = [one / other - 1 for one, other in zip(each, plain, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        found.append(Cost(way, median(each), median(ratios), low, high))
    return found


def measured(cluster: TreeCluster, turns: int) -> dict[str, Sequence[float]]:
    """CPU seconds of the cluster's next epoch, over and over."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    ways = list(WAYS.items())
    for turn in range(turns + 1):
        first = turn % len(ways)  # none is always the first, or after the same one
        for way, (traces, most) in ways[first:] + ways[:first]:
            start = time.process_time()
            cluster.attempt(traces=traces, trace_most=most)
            if turn:  # the first turn warms up
                seconds[way].append(time.process_time() - start)
    return {way: tuple(each) for way, each in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print a table. 1: counting costs more than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lineage", description=__doc__)
    parser.add_argument("--scenario", default="papers-five-way-3-1-1")
    parser.add_argument("--factor", type=float, default=1.0, help="of the scenario's size")
    parser.add_argument("--epoch", type=int, default=30, help="which minute is measured")
    parser.add_argument("--groups", type=int, default=512, help="of each join")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    day = generate_tree(TreeWorkload(given.scenario, given.factor, given.groups), EPOCH_S)
    with scratch() as root:
        cluster = TreeCluster(day, root, (1.0,), Spilling(AMPLE, victims="global-output-penalty"))
        for _ in range(given.epoch):
            held = cluster.run()
        found = costs(measured(cluster, given.turns))
    if given.json:
        print(json.dumps([vars(each) for each in found]))
    else:
        print(f"state: {held[0].rows:,} rows, {held[0].state_bytes / 1e6:.0f} MB")
        for each in found:
            print(
                f"{each.way:12} {each.seconds:.3f} CPU s an epoch, {each.share:+.1%} "
                f"(quartiles {each.low:+.1%} and {each.high:+.1%})"
            )
    return int(found[1].share >= MOST)


if __name__ == "__main__":
    sys.exit(main())
