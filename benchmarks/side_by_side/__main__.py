"""Spark's copy, Spark's joins, and spillway with ample and with little memory, side by side.

make bench                                     3 x 2,000,000 rows over 1,000,000 keys
make bench ARGS="--query five_way"             5 x 300,000 rows of a tree of three joins
make bench ARGS="--query symbol_window"        3 x 2,000,000 rows, within an hour of each other
make bench ARGS="--query pair_window"          2 x 2,000,000 rows, the same with two streams
make bench ARGS="--rows 100000"                a minute or two
make bench ARGS="--repeat 3 --docs"            also renews docs/measured.md and its chart
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import ROOT
from benchmarks.side_by_side import report
from benchmarks.side_by_side.chart import chart
from benchmarks.side_by_side.contests import CONTESTS
from benchmarks.side_by_side.programs import LEAST_BUDGET, NAMES, TITLES, Bench, Run, run
from benchmarks.side_by_side.summary import Disagreement, agree, lines, targets
from benchmarks.side_by_side.topics import Filled, filled
from benchmarks.side_by_side.watch import ProgramFailed
from spillway.places import var_folder
from spillway.private import private_folder
from spillway.produce.summary import ProduceProgress

GIB = 1 << 30
STATE_ROW_BYTES = 100
"""A slot's budget for each row of its share: with 56 of state it stays below the threshold."""
out = Console(soft_wrap=True)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--query", default="symbol", choices=list(CONTESTS), help="what is joined")
    add("--rows", type=int, help="rows of each topic; as many as the query's scenario has")
    add("--keys", type=int, help="keys; in proportion to --rows when not given")
    add("--programs", help="which, in this order; all when not given (of a tree no copy)")
    add("--repeat", type=int, default=1, help="rounds over all programs")
    add("--max-rows", type=int, default=600_000, help="rows an epoch, of all topics")
    add("--master", default="local[*]", help="spark.master of all programs")
    add("--slots", type=int, default=len(os.sched_getaffinity(0)), help="spillway's slots")
    add("--budget", type=int, help="bytes a slot of spillway with ample memory")
    add("--quarter-budget", type=int, help="bytes a slot, instead of a quarter of the ample run's")
    add("--driver-memory", default="2g", help="heap of Spark's copy (spillway has 2g too)")
    add("--join-memory", default="4g", help="heap of Spark's join")
    add("--spark", action="append", default=[], metavar="NAME=VALUE", help="setting for the peers")
    add("--local-on-disk", action="store_true", help="RocksDB's working files on disk, not tmpfs")
    add("--folder", type=Path, help="where everything is kept; var/bench when not given")
    add("--keep", action="store_true", help="keep the filled topics for the next time")
    add("--docs", action="store_true", help="renew the figures and the chart under docs/")
    given = parser.parse_args(arguments)
    given.contest = CONTESTS[given.query]
    given.rows = given.rows or given.contest.rows
    given.budget = given.budget or max(GIB, STATE_ROW_BYTES * 3 * given.rows // given.slots)
    named = given.programs or ",".join(NAMES if given.query == "symbol" else NAMES[1:])
    given.programs = [name.strip() for name in named.split(",")]
    unknown = set(given.programs) - set(NAMES)
    if unknown:
        parser.error(f"--programs: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if "quarter" in given.programs and given.quarter_budget is None:
        before = given.programs[: given.programs.index("quarter")]
        if "ample" not in before:
            parser.error("quarter needs ample before it, or --quarter-budget")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the topics, run the programs, report. 1: they disagree; 3: a program failed."""
    given = options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does
    folder = (given.folder or var_folder() / "bench").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5:
        out.print(f"[yellow]The machine is busy (load {load:.1f}): the figures will suffer.[/]")
    try:
        wanted = given.contest.resized(given.rows, given.keys)
        with (
            memory_folder() as memory,
            filled(
                folder / f"kafka-{given.query}", wanted, keep=given.keep, report=fill_progress
            ) as topics,
        ):
            runs = _all(given, _bench(given, folder, memory, topics))
            about = _about(given, topics, wanted.partitions, load)
        return _report(given, folder, about, runs, topics)
    except (Disagreement, ProgramFailed) as error:
        out.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1 if isinstance(error, Disagreement) else 3
    except KeyboardInterrupt:
        out.print("stopped")
        return 130


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder on tmpfs of this process's own, removed at the end."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        raise ProgramFailed("There is no /dev/shm: the benchmark keeps state there")
    folder = shared / f"spillway-bench-{os.getpid()}"
    private_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill_progress(progress: ProduceProgress) -> None:
    if sys.stdout.isatty():
        done = f"filling the topics: {progress.rows:,} of {progress.total:,}"
        out.print(done, end="\r", highlight=False)


def _bench(given: argparse.Namespace, folder: Path, memory: Path, topics: Filled) -> Bench:
    return Bench(
        filled=topics,
        folder=folder,
        memory=memory,
        master=given.master,
        max_rows=given.max_rows,
        slots=given.slots,
        driver_memory=given.driver_memory,
        join_memory=given.join_memory,
        ample_budget=given.budget,
        spark_options=dict(each.split("=", 1) for each in given.spark),
        local_on_tmpfs=not given.local_on_disk,
        contest=given.contest,
    )


def _all(given: argparse.Namespace, bench: Bench) -> list[Run]:
    runs: list[Run] = []
    for name in NAMES:
        (bench.folder / f"{name}.log").unlink(missing_ok=True)
    for repetition in range(given.repeat):
        for program in given.programs:
            budget = _quarter(given, runs, bench.slots) if program == "quarter" else None
            done = run(bench, program, repetition, budget)
            runs.append(done)
            out.print(
                f"{TITLES[program]}: run {done.run_s:.1f} s, {done.rows_per_s:,.0f} rows/s, "
                f"total {done.total_s:.1f} s, CPU {done.cpu_s:.0f} s",
                highlight=False,
            )
    return runs


def _quarter(given: argparse.Namespace, runs: Sequence[Run], slots: int) -> int:
    """A slot's share of a quarter of the state that the last ample run ended with."""
    if given.quarter_budget is not None:
        return int(given.quarter_budget)
    ample = [r for r in runs if r.program == "ample"][-1]
    return max(int(ample.found["state_bytes"]) // 4 // slots, LEAST_BUDGET)


def _about(
    given: argparse.Namespace, topics: Filled, partitions: int, load: float
) -> dict[str, Any]:
    said = " ".join(sys.argv[1:])
    return {
        "command": f'make bench ARGS="{said}"' if said else "make bench",
        "date": datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d"),
        "machine": report.machine(),
        "load_before": load,
        "sizes": {
            "rows": topics.rows,
            "topics": len(given.contest.fields),
            "value_bytes": topics.value_bytes,
            "partitions": partitions,
            "max_rows": given.max_rows,
            "repetitions": given.repeat,
        },
        "options": {
            k: v if isinstance(v, int | str | list | bool | None) else str(v)
            for k, v in vars(given).items()
            if k != "contest"
        },
    }


def _report(
    given: argparse.Namespace,
    folder: Path,
    about: dict[str, Any],
    runs: Sequence[Run],
    topics: Filled,
) -> int:
    found = lines(runs)
    goals = targets(found, given.contest.join_factor)
    series = [(each.program, TITLES[each.program], each.shown.epochs) for each in found]
    drawing = chart(series, f"{topics.rows:,} rows from Kafka, query {given.query}")
    text = report.as_json(about, runs, goals)
    name = "bench" if given.query == "symbol" else f"bench-{given.query}"
    (folder / f"{name}.json").write_text(text + "\n")
    (folder / f"{name}.svg").write_text(drawing)
    agree(runs, topics.rows)  # after the JSON is written: a disagreement wants to be looked into
    out.print(report.table(found))
    for line in [*report.target_lines(goals), *report.details(found)]:
        out.print(line, highlight=False)
    if given.docs:
        docs = ROOT / "docs"
        page = docs / "measured.md"
        page.write_text(
            report.replace_section(page.read_text(), name, report.markdown(about, found, goals))
        )
        (docs / "measured").mkdir(exist_ok=True)
        (docs / "measured" / f"{name}.json").write_text(text + "\n")
        (docs / "measured" / f"{name}.svg").write_text(drawing)
    out.print(f"JSON and chart: {folder / name}.json, {folder / name}.svg", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
