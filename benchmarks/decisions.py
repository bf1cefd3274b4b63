"""What deciding costs at 1,024 slots and 32,768 groups: `python -m benchmarks.decisions [--docs]`.

Every policy on two drawn views, with memory for all and with too little, the change of the number
of slots, the plan of an epoch, and the fold of its entry: with nothing cut, and with every group
cut. The least of `--repeat` runs, one process, no Spark. What a policy takes depends on what it
finds: the view has slots from idle to overloaded, a fifth of the groups spilled, and work drawn
evenly.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks import ROOT
from benchmarks.side_by_side.report import replace_section
from spillway.policy.registry import POLICIES, Policy, settings_for_policies
from spillway.policy.slots import rearranged
from spillway.policy.view import View
from spillway.protocol.plan import plan_epoch
from spillway.protocol.state import JournalState, fold, replay
from spillway_schemas.journal import Claim, Cut, Epoch, Genesis, Prefix, Topic
from spillway_schemas.settings import Settings

SESSION, NEXT = "2026-01-05", "2026-01-06"
PAGE = ROOT / "docs" / "measured.md"
out = Console(soft_wrap=True)


def view(slots: int, groups: int, room: float = 30e6) -> View:
    """A drawn moment. `room`: bytes that a slot may have."""
    draw = np.random.default_rng(1)
    depth = groups.bit_length() - 1
    return View(
        groups=tuple(Prefix(depth, value) for value in range(groups)),
        slot=np.arange(groups) * slots // groups,
        bytes=draw.integers(100_000, 1_000_000, groups),
        results=draw.integers(0, 100_000, groups),
        processed=draw.integers(0, 1000, groups),
        spilled=draw.random(groups) < 0.2,
        spilled_bytes=draw.integers(0, 1_000_000, groups),
        budget=np.full(slots, round(room)),
        idle_s=draw.random(slots) * 60,
        sampled=draw.integers(0, 1000, slots),
        occupancy=draw.random(slots),
        collection_s=60.0,
        elapsed_s=1000.0,
        left_s=5000.0,
        session_bytes=10**10,
        rate=draw.random(groups),
        loss=draw.random(groups) * 100_000,
        hot_share=draw.random(groups) / 10,
        cores=2 * slots,
    )


def state(slots: int, groups: int) -> JournalState:
    """A journal after one epoch."""
    depth = groups.bit_length() - 1
    found = replay(
        [
            Genesis(
                warehouse_id="w",
                cluster_id="c",
                topics=[Topic(name="t", id="t", partitions=8)],
                query="q",
                session=SESSION,
                start={"t": [0] * 8},
                start_rule="earliest",
                inputs=3,
                groups=[(Prefix(depth, value), value * slots // groups) for value in range(groups)],
                written_at="",
            ),
            Claim(n=1, term=1, driver="d", written_at=""),
            epoch(0, slots, []),
        ]
    )
    assert found is not None
    return found


def epoch(number: int, slots: int, cuts: list[Cut]) -> Epoch:
    """An entry."""
    return Epoch(
        n=number + 2,
        term=1,
        epoch=number,
        session=SESSION,
        end={"t": [10 * (number + 1)] * 8},
        manifests={slot: f"m-{number}-{slot}" for slot in range(slots)},
        files=[],
        cuts=cuts,
        read=[],
        results={},
        slots=[],
        started_at="",
        written_at="",
    )


def measured(
    slots: int, groups: int, repeat: int, clock: Callable[[], float] = time.perf_counter
) -> list[tuple[str, float]]:
    """What is done, and the ms that it takes at the least, by `clock` (seconds)."""

    def least(make: Callable[[], Callable[[], object]]) -> float:
        found = []
        for _ in range(repeat):
            do = make()
            began = clock()
            do()
            found.append((clock() - began) * 1000)
        return min(found)

    settings = settings_for_policies(Settings()) | {"groups": groups}

    def asked(policy: Policy, room: float) -> Callable[[], object]:
        seen = view(slots, groups, room)  # which keeps what it has reckoned
        return lambda: policy.advise(seen, settings)

    found = []
    for name, policy in POLICIES.items():
        found.append((f"`{name}`", least(partial(asked, policy, 30e6))))
        found.append((f"`{name}`, memory is short", least(partial(asked, policy, 16e6))))
    seen = view(slots, groups)
    sizes = dict(zip(seen.groups, seen.bytes.tolist(), strict=True))
    owners = list(zip(seen.groups, seen.slot.tolist(), strict=True))
    fewer = slots - slots // 8
    found.append(
        (
            f"moves from {slots:,} to {fewer:,} slots",
            least(lambda: lambda: rearranged(owners, sizes, fewer)),
        )
    )
    known = state(slots, groups)
    end = {"t": [20] * 8}
    found.append(("plan of an epoch", least(lambda: lambda: plan_epoch(known, end, [], NEXT))))
    plain = epoch(1, slots, [])
    found.append(("fold of its entry", least(lambda: lambda: fold(known, plain))))
    cuts = [Cut(session=SESSION, operator=0, range=each, epoch=1) for each in seen.groups]
    every = epoch(1, slots, cuts)
    found.append(("fold, all groups cut", least(lambda: lambda: fold(known, every))))
    return found


def main() -> int:
    """Measure, and say it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decisions",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("--slots", type=int, default=1024)
    add("--groups", type=int, default=32_768, help="a power of two")
    add("--repeat", type=int, default=5)
    add("--docs", action="store_true", help="renew the figures under docs/")
    given = parser.parse_args()
    rows = measured(given.slots, given.groups, given.repeat)
    lines = [f"| {given.slots:,} slots, {given.groups:,} groups | ms |", "|---|--:|"]
    lines += [f"| {what} | {ms:,.0f} |" for what, ms in rows]
    text = "\n".join(lines)
    out.print(text, markup=False)
    if given.docs:
        page = Path(PAGE)
        page.write_text(replace_section(page.read_text(), "decisions", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
