"""What moving groups costs: `python -m benchmarks.relocation [--docs]`.

The stream of `make bench` with ample memory, in interleaved pairs: once alone, once while every
`--every` seconds groups of `--bytes` move from the slot that holds more to the other, all in one
epoch; with `--exchange` half of them, and as much comes back, so that the slots stay even and
what is measured is moving alone. Reported are the medians of both, their CPU seconds, and what
an epoch that moves takes longer than its neighbours that move nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import ROOT
from benchmarks.side_by_side.__main__ import fill_progress, memory_folder
from benchmarks.side_by_side.contests import SYMBOL
from benchmarks.side_by_side.programs import Bench, Run, run
from benchmarks.side_by_side.report import replace_section
from benchmarks.side_by_side.summary import Disagreement, agree
from benchmarks.side_by_side.topics import filled
from spillway.clock import system_clock
from spillway.places import var_folder
from spillway.readmodel.groups import group_states
from spillway.rebalance.asking import RequestRefused, look
from spillway.rebalance.by_hand import RebalanceRequest, request
from spillway.tables import NothingYet, NoWarehouse, Warehouse
from spillway_schemas.journal import Epoch
from spillway_schemas.settings import Settings, load_settings

MIB = 1 << 20
out = Console(soft_wrap=True)


def wishes(settings: Settings, wanted: int, *, exchange: bool) -> RebalanceRequest | None:
    """Moves of about `wanted` bytes between two slots; None: not enough yet."""
    seen = look(settings, clock=system_clock)
    sizes = group_states(seen.warehouse, seen.model, 0.0).bytes
    held = [slot.state_bytes for _, slot in sorted(seen.model.tally.slots.items())]
    fuller = held.index(max(held))
    moves: list[str] = []
    for source in (0, 1) if exchange else (fuller,):
        some = wanted // 2 if exchange else wanted
        owned = [slot == source for _, slot in seen.model.state.groups]
        known = int(sizes[owned].sum())
        if not known or held[source] < 1.2 * some:
            return None
        scale, total = held[source] / known, 0.0
        for (group, slot), size in zip(seen.model.state.groups, sizes.tolist(), strict=True):
            if slot == source and total < some:
                total += size * scale
                moves.append(f"{group.text}:{1 - source}")
    return RebalanceRequest(moves=tuple(moves))


@contextlib.contextmanager
def moving(config: Path, every_s: float, wanted: int, *, exchange: bool) -> Iterator[None]:
    """Ask for moves every so often while the block runs."""
    settings = load_settings(config, environ={})[0]
    done = threading.Event()

    def ask() -> None:
        while not done.wait(every_s):
            with contextlib.suppress(NoWarehouse, NothingYet, RequestRefused):
                found = wishes(settings, wanted, exchange=exchange)
                if found is not None:
                    request(settings, found, "benchmark", "benchmark", clock=system_clock)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def extra(epochs: Sequence[Epoch]) -> list[tuple[int, float]]:
    """(bytes moved, seconds longer than its neighbours) of each epoch that moved.

    Neighbours are the nearest epochs before and after that moved nothing and read as many rows
    (within 1 %: markers of transactions count as offsets, and are no rows).
    """
    took = [_seconds(e.written_at) - _seconds(e.started_at) for e in epochs]
    rows = [sum(part.rows for part in e.read) for e in epochs]
    found = []
    for at, epoch in enumerate(epochs):
        if not epoch.moved:
            continue
        alike = [
            i
            for i, e in enumerate(epochs)
            if not e.moved and abs(rows[i] - rows[at]) <= rows[at] // 100 and i > 1
        ]
        near = sorted(alike, key=lambda i: abs(i - at))[:2]
        if near:
            size = sum(move.bytes for move in epoch.moved)
            found.append((size, took[at] - statistics.mean(took[i] for i in near)))
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of each topic")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between relocations")
    parser.add_argument("--bytes", type=int, default=100 * MIB, help="state that each moves")
    parser.add_argument("--exchange", action="store_true", help="move half of it each way")
    parser.add_argument("--docs", action="store_true", help="renew the figures in docs/measured.md")
    given = parser.parse_args(arguments)
    folder = var_folder() / "bench-relocation"
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[Run]] = {"alone": [], "moving": []}
    epochs: list[list[Epoch]] = []

    def look_at(warehouse: Path) -> None:
        entries = Warehouse(str(warehouse)).journal.read()
        epochs.append([entry for entry in entries if isinstance(entry, Epoch)])

    wanted = SYMBOL.resized(given.rows, given.rows // 2)
    with (
        memory_folder() as memory,
        filled(folder / "kafka", wanted, keep=True, report=fill_progress) as topics,
    ):
        bench = Bench(
            filled=topics,
            folder=folder,
            memory=memory,
            master="local[*]",
            max_rows=600_000,
            slots=2,
            driver_memory="2g",
            join_memory="4g",
            ample_budget=2 << 30,
            spark_options={},
            local_on_tmpfs=True,
            more={"rebalance": {"max_bytes_per_epoch": 4 * given.bytes}},
        )
        for pair in range(given.pairs):
            for kind in ("alone", "moving") if pair % 2 == 0 else ("moving", "alone"):
                runs[kind].append(
                    run(bench, "ample", pair, None)
                    if kind == "alone"
                    else run(
                        bench,
                        "ample",
                        pair,
                        None,
                        beside=lambda config: moving(
                            config, given.every, given.bytes, exchange=given.exchange
                        ),
                        keep=look_at,
                    )
                )
                last = runs[kind][-1]
                out.print(f"pair {pair + 1}, {kind}: {last.run_s:.1f} s, {last.cpu_s:.1f} CPU s")
    try:
        agree([each for both in runs.values() for each in both], topics.rows)
    except Disagreement as error:
        out.print(str(error), style="red")
        return 1
    text = report(given, runs, epochs)
    out.print(text, markup=False, highlight=False)
    if given.docs:
        page = ROOT / "docs" / "measured.md"
        page.write_text(replace_section(page.read_text(), "relocation", text))
    return 0


def report(given: argparse.Namespace, runs: dict[str, list[Run]], epochs: list[list[Epoch]]) -> str:
    """The section of docs/measured.md."""
    alone, moved = runs["alone"], runs["moving"]
    wall = [statistics.median(r.run_s for r in each) for each in (moved, alone)]
    cpu = [statistics.median(r.cpu_s for r in each) for each in (moved, alone)]
    longer = [pair for each in epochs for pair in extra(each)]
    relocations = sum(bool(e.moved) for each in epochs for e in each)
    lines = [
        f"`python -m benchmarks.relocation --every {given.every:g}"
        f"{' --exchange' if given.exchange else ''} --rows {given.rows} --pairs {given.pairs}` "
        f"on {datetime.now(UTC).date()}, {len(os.sched_getaffinity(0))} cores: "
        f"{given.pairs} interleaved pairs of the same stream (3 x {given.rows:,} rows), alone and "
        f"with a relocation every {given.every:g} s ({relocations} in all).",
        "",
        "| | alone | with relocations | ratio |",
        "|---|--:|--:|--:|",
        f"| run, seconds (median) | {wall[1]:.1f} | {wall[0]:.1f} | {wall[0] / wall[1]:.2f} |",
        f"| CPU seconds (median) | {cpu[1]:.1f} | {cpu[0]:.1f} | {cpu[0] / cpu[1]:.2f} |",
        "",
    ]
    if longer:
        sizes = [size for size, _ in longer]
        seconds = [s for _, s in longer]
        size, least, most = (f(sizes) / MIB for f in (statistics.median, min, max))
        lines.append(
            f"An epoch that moved {size:.0f} MiB (median of {len(longer)}; {least:.0f} to "
            f"{most:.0f}) took {statistics.median(seconds):.2f} s longer than its neighbours of as "
            f"many rows (median; {min(seconds):.2f} to {max(seconds):.2f})."
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
