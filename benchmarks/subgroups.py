"""What sub-groups and an order of sending change of how rows reach slots.

python -m benchmarks.subgroups

Source: Chakraborty & Singh, Parallelizing Windowed Stream Joins in a Shared-Nothing Cluster,
section V-B. A master sends each slot its rows of a distribution epoch, one slot after the other.
With g sub-groups the epoch has g parts, and the slots of one sub-group get their rows in each.

By formula: how much of an epoch's rows the master holds at the most, and how much of the time that
all rows take on its line each slot waits in vain. Measured: blocks of one epoch, as the routing of
the windowed join makes them, over sockets of this host: one slot after the other, all at once, and
by sub-groups. A slot's wait is from when its sub-group's turn comes until it has its last byte.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.lab.cluster import SESSION
from benchmarks.lab.window_cluster import windowed
from benchmarks.lab.window_control import GROUPS
from benchmarks.lab.window_workload import STREAMS, WindowWorkload, generate_window
from benchmarks.lab.workload import F64
from spillway.engine.groups import GroupMap
from spillway.engine.wire.blocks import Coordinates, route

Send = Callable[[int], None]
"""Sends a slot its rows, all of them."""


def held(groups: int) -> float:
    """The share of an epoch's rows that a master holds at the most, with so many sub-groups.

    Before a sub-group's turn its rows are a whole epoch old, those of the one after it a g-th of an
    epoch less, and so on: 1/g + 2/g + ... + g/g of a g-th each.
    """
    return (1 + 1 / groups) / 2


def waits(slots: int, groups: int, *, at_once: bool = False) -> F64:
    """(s,) until each slot of a sub-group has its rows, in parts of the time that the rows of all
    take on the line. Raises ValueError where sub-groups are not of one size.

    One after the other a slot waits for those before it, and for its own rows. At once the line is
    shared, and all are done with the last.
    """
    if slots % groups:
        raise ValueError(f"{slots} slots are not {groups} sub-groups of one size")
    together = slots // groups
    found: F64 = np.arange(1, together + 1) / slots
    return np.full(together, together / slots) if at_once else found


def payloads(rate: float, slots: int, epoch_s: float) -> list[bytes]:
    """What each slot gets of an epoch at the paper's full size: the blocks of both streams."""
    day = generate_window(WindowWorkload(rate, minutes=epoch_s / 60, factor=1.0))
    spec, groups = windowed(600), GroupMap.initial(GROUPS, slots)
    found = [b""] * slots
    for stream in range(STREAMS):
        times = day.time_us[stream]
        rows = np.arange(len(times))
        where = Coordinates(np.zeros(len(rows), np.int32), rows, times // 1000, times)
        keys = pa.RecordBatch.from_arrays([pa.array(day.keys[stream])], schema=spec.root.keys)
        for block in route(spec, stream, groups, keys, where, session=SESSION):
            found[block.slot] += bytes(block.data)
    return found


def one_after_the_other(send: Send, slots: Sequence[int]) -> None:
    """In a fixed order."""
    for slot in slots:
        send(slot)


def at_once(send: Send, slots: Sequence[int]) -> None:
    """Each by a thread of its own."""
    threads = [threading.Thread(target=send, args=(slot,)) for slot in slots]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def measured(
    rows: Sequence[bytes], slots: Sequence[int], way: Callable[[Send, Sequence[int]], None]
) -> list[float]:
    """Seconds until each of some slots has its rows, over sockets of this host."""
    done = dict.fromkeys(slots, 0.0)
    with ExitStack() as stack:
        pairs = {slot: socket.socketpair() for slot in slots}
        for each in pairs.values():
            for end in each:
                stack.enter_context(end)

        def receive(slot: int) -> None:
            left = len(rows[slot])
            while left:
                left -= len(pairs[slot][1].recv(min(left, 1 << 20)))
            done[slot] = time.perf_counter()

        receivers = [threading.Thread(target=receive, args=(slot,)) for slot in slots]
        for each_receiver in receivers:
            each_receiver.start()
        began = time.perf_counter()
        way(lambda slot: pairs[slot][0].sendall(rows[slot]), slots)
        for each_receiver in receivers:
            each_receiver.join()
    return [done[slot] - began for slot in slots]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--rate", type=float, default=8000.0, help="tuples a second and stream")
    parser.add_argument("--epoch-s", type=float, default=2.0)
    parser.add_argument("--times", type=int, default=51, help="the median of so many counts")
    given = parser.parse_args(arguments)
    rows = payloads(given.rate, given.slots, given.epoch_s)
    size = sum(map(len, rows))
    gigabit_s = size * 8 / 1e9
    say = sys.stdout.write
    say(f"{given.slots} slots, {given.rate:,.0f} tuples a second and stream, epochs of ")
    say(f"{given.epoch_s:g} s: {size:,} bytes an epoch, {gigabit_s * 1000:.1f} ms at 1 Gb/s\n\n")
    say("| way | held at most | wait, mean | longest | at 1 Gb/s | measured, mean | longest |\n")
    say("|---|--:|--:|--:|--:|--:|--:|\n")
    for name, groups, way in (
        ("one after the other", 1, one_after_the_other),
        ("all at once", 1, at_once),
        ("2 sub-groups", 2, one_after_the_other),
        ("4 sub-groups", 4, one_after_the_other),
    ):
        share = waits(given.slots, groups, at_once=way is at_once)
        some = range(given.slots // groups)
        took = np.array([measured(rows, some, way) for _ in range(given.times)])
        mean, longest = (median(each.tolist()) for each in (took.mean(axis=1), took.max(axis=1)))
        say(
            f"| {name} | {held(groups):.0%} | {share.mean():.0%} | {share.max():.0%} | "
            f"{share.mean() * gigabit_s * 1000:.1f} ms | {mean * 1000:.1f} ms | "
            f"{longest * 1000:.1f} ms |\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
