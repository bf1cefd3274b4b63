"""How long a result takes to be seen: `python -m benchmarks.delay [--query pair_window] [--docs]`.

Spillway and Spark's own joins get the same rows at the same pace: half of the greatest rate at
which Spark can join them. That rate is measured first, as `make bench` does (the rows lie in Kafka,
and Spark reads them as fast as it can), or given with `--rate`.

With `--alone` there is no Spark: spillway gets half of its own greatest rate. The producer works on
the same cores, so that is more than half of what they can do.

Then each program runs by itself, on fresh topics: it starts, and once it waits for rows a producer
sends the scenario over `--warm-up` and `--seconds` of real time. When the program has read all of
it, it is sent SIGTERM. Spark begins an epoch as soon as the last one has ended, its default;
spillway every `--trigger` seconds (`stream.trigger_s`), 2 by default.

The scenario is the contest's own with fewer rows, and keys in proportion, so a row meets as many
others as at full size. Its day is sped up: when 6.5 hours pass in 180 s, an hour's window lasts
28 s. That is shorter than the warm-up, so rows expire as fast as they come while results count.

A result counts when its latest row happened after the warm-up. `benchmarks.side_by_side.delays`
says what its delay is. The medians of the first and of the second half of that time should be
alike: then the programs were warm, and they keep up. If the first is the greater, a program was
still working off its start, and `--warm-up` should be longer. No figures are shown unless both
programs have the same results that count, in number and in content.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import ROOT
from benchmarks.side_by_side import report
from benchmarks.side_by_side.__main__ import fill_progress, memory_folder
from benchmarks.side_by_side.contests import CONTESTS, TIME, Contest
from benchmarks.side_by_side.delays import delays_s, quantile, seen, sent
from benchmarks.side_by_side.outcome import Outcome, of_join
from benchmarks.side_by_side.pacing import Pace, Sending, at_spark, at_spillway, pace
from benchmarks.side_by_side.programs import (
    SESSION,
    TITLES,
    Bench,
    folders,
    peer_command,
    run,
    run_command,
    spillway_command,
    written_settings,
)
from benchmarks.side_by_side.summary import Disagreement
from benchmarks.side_by_side.topics import Filled, empty, filled
from benchmarks.side_by_side.watch import ProgramFailed
from spillway.places import var_folder

SHARE = 0.5
"""Of the greatest rate."""
START_S, END_S = 180.0, 600.0
"""How long a program may take to start, and to read what is left once all was sent."""
TIMED = {
    name: each
    for name, each in CONTESTS.items()
    if all(TIME in fields for fields in each.fields.values())
}
"""Contests whose rows have a time, by which they are found again."""
PAGE = ROOT / "docs" / "measured.md"
out = Console(soft_wrap=True)


# --------------------------------------------------------------------------------- one program


@dataclass(frozen=True)
class Delay:
    """What came out for one program."""

    program: str
    sent_per_s: float
    """Rows of all topics a second, as they were sent while results were counted."""
    outcome: Outcome
    """The results that count."""
    p50_s: float
    p99_s: float
    most_s: float
    halves_s: tuple[float, float]
    """Medians of the first and of the second half."""
    cpu_s: float
    """Of the whole program, its start and the warm-up too."""
    peak_bytes: int


def delay(bench: Bench, program: str, wanted: Pace) -> Delay:
    """Run one program beside a paced producer. `bench` has topics without rows."""
    contest, topics = bench.contest, list(bench.contest.fields)
    assert wanted.scenario.duration_s is not None
    timeout_s = START_S + wanted.scenario.duration_s / wanted.speed + END_S
    with folders(bench) as (disk, memory):
        if program == "join":
            command = peer_command(bench, program, disk, memory, endless=True)
            look, table = at_spark(disk / "checkpoint", len(topics)), disk / "table"
        else:
            settings = written_settings(bench, disk, memory, bench.ample_budget)
            command = spillway_command(settings, "stream", "--session", SESSION)
            look, table = at_spillway(disk / "warehouse"), disk / "warehouse" / "results"
        with Sending(wanted, bench.filled.bootstrap, look) as until:
            watched = run_command(
                bench, command, f"delay-{program}.log", timeout_s=timeout_s, until=until
            )
        rows = sent(bench.filled.bootstrap, topics)
        results = seen(table, topics)
        first = delays_s(rows, results, wanted.since_us, wanted.middle_us)
        second = delays_s(rows, results, wanted.middle_us)
        found = np.concatenate([first, second])
        outcome = of_join(table, contest, wanted.since_us)
    if len(found) != outcome.rows or not (len(first) and len(second)):
        raise Disagreement(
            f"{TITLES[program]}: {len(first):,} and {len(second):,} results by its commits, "
            f"{outcome.rows:,} in its table; it must be as many, and some in each half"
        )
    return Delay(
        program=program,
        sent_per_s=sum(each.rate_per_s(wanted.since_us) for each in rows.values()),
        outcome=outcome,
        p50_s=quantile(found, 0.5),
        p99_s=quantile(found, 0.99),
        most_s=quantile(found, 1.0),
        halves_s=(quantile(first, 0.5), quantile(second, 0.5)),
        cpu_s=watched.cpu_s,
        peak_bytes=watched.peak_bytes,
    )


def agree(found: Sequence[Delay]) -> None:
    """Raise `Disagreement` unless all have the same results."""
    if len({(each.outcome.rows, each.outcome.digest) for each in found}) > 1:
        lines = [
            f"{TITLES[each.program]} has {each.outcome.rows:,} results with digest "
            f"{each.outcome.digest}"
            for each in found
        ]
        raise Disagreement("\n  ".join(["The programs disagree:", *lines]))


# ------------------------------------------------------------------------------------- report

HEAD = (
    "program",
    "rows/s sent",
    "results",
    "p50, s",
    "p99, s",
    "most, s",
    "p50 of each half, s",
    "CPU, s",
    "memory, GiB",
)


def cells(each: Delay) -> list[str]:
    """One program's figures, by `HEAD`."""
    return [
        TITLES[each.program],
        f"{each.sent_per_s:,.0f}",
        f"{each.outcome.rows:,}",
        f"{each.p50_s:.2f}",
        f"{each.p99_s:.2f}",
        f"{each.most_s:.2f}",
        " and ".join(f"{half:.2f}" for half in each.halves_s),
        f"{each.cpu_s:.0f}",
        f"{each.peak_bytes / report.GIB:.2f}",
    ]


def markdown(about: dict[str, Any], found: Sequence[Delay]) -> str:
    """The section of docs/measured.md. `about`: as `_about` makes it."""
    where, sizes = about["machine"], about["sizes"]
    alone = len(found) == 1
    fastest = TITLES[sizes["fastest"]]
    known = (
        f"measured just before, on {sizes['rate_rows']:,} rows of each topic"
        if sizes["rate_rows"]
        else "given"
    )
    window = f" A window is {sizes['window_s']:.0f} s of real time." if sizes["window_s"] else ""
    trigger_s = sizes["trigger_s"]
    began = f"every {trigger_s:g} s" if trigger_s else "as soon as the last one has ended"
    lines = [
        f"`{about['command']}` on {about['date']}: {where['cores']} cores ({where['cpu']}), query "
        f"`{about['query']}`.",
        "",
        f"The greatest rate of {fastest}: {sizes['rate_per_s']:,.0f} rows/s of all topics "
        f"({known}). {'It' if alone else 'Both programs'} got half of it, "
        f"{sizes['aim_per_s']:,.0f} rows/s, for {sizes['seconds']:g} s after "
        f"{sizes['warm_up_s']:g} s that do not count.{window} Spillway begins an epoch {began}."
        f"{'' if alone else ' They have the same results.'}",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|---" + "|--:" * (len(HEAD) - 1) + "|",
        *("| " + " | ".join(cells(each)) + " |" for each in found),
    ]
    return "\n".join(lines) + "\n"


def section(query: str) -> str:
    """The name of a query's section of docs/measured.md, and of its file of JSON."""
    return "delay" if query == "symbol_window" else f"delay-{query}"


# ------------------------------------------------------------------------------------- program


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.delay",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("--query", default="symbol_window", choices=list(TIMED), help="what is joined")
    known = parser.add_mutually_exclusive_group()
    known.add_argument(
        "--rows",
        type=int,
        default=600_000,
        help="rows of each topic that the greatest rate is measured on",
    )
    known.add_argument("--rate", type=float, help="the greatest rate, rows/s of all topics")
    add("--alone", action="store_true", help="spillway alone, at half of its own greatest rate")
    add("--max-rows", type=int, default=200_000, help="rows an epoch, of all topics")
    add("--warm-up", type=float, default=60.0, help="seconds that are not counted")
    add("--seconds", type=float, default=120.0, help="seconds that are counted, after it")
    add("--trigger", type=float, default=2.0, help="spillway's stream.trigger_s, in seconds")
    add("--docs", action="store_true", help="renew the figures in docs/measured.md")
    given = parser.parse_args(arguments)
    given.programs = ("ample",) if given.alone else ("join", "ample")
    above_0 = [each for each in (given.seconds, given.rate) if each is not None]
    if min(above_0) <= 0 or min(given.warm_up, given.trigger) < 0:
        parser.error("--seconds and --rate must be above 0, --warm-up and --trigger not below it")
    if given.docs:
        try:
            report.replace_section(PAGE.read_text(), section(given.query), "")
        except ValueError as error:
            parser.error(f"--docs: {error}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the greatest rate, then the delays. 1: they disagree; 3: a program failed."""
    given = options(arguments)
    contest = TIMED[given.query]
    name = section(given.query)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does
    folder = var_folder() / "bench-delay"
    folder.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()
    load = os.getloadavg()[0]
    if load > 0.5:
        out.print(f"[yellow]The machine is busy (load {load:.1f}): the figures will suffer.[/]")
    try:
        with memory_folder() as memory:
            rate = given.rate or _greatest_rate(given, contest, folder, memory)
            fastest = TITLES[given.programs[0]]
            out.print(f"The greatest rate of {fastest}: {rate:,.0f} rows/s", highlight=False)
            wanted = pace(contest, rate * SHARE, given.warm_up, given.seconds)
            found = []
            for program in given.programs:
                with empty(folder / "kafka", wanted.scenario) as topics:
                    found.append(
                        delay(_bench(given, contest, folder, memory, topics), program, wanted)
                    )
        about = _about(given, contest, wanted, rate, load)
        text = json.dumps({**about, "delays": [asdict(each) for each in found]}, indent=1)
        (folder.parent / "bench").mkdir(exist_ok=True)
        (folder.parent / "bench" / f"{name}.json").write_text(text + "\n")
        agree(found)  # after the JSON is written: a disagreement wants to be looked into
    except (Disagreement, ProgramFailed) as error:
        out.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1 if isinstance(error, Disagreement) else 3
    except KeyboardInterrupt:
        out.print("stopped")
        return 130
    shown = markdown(about, found)
    out.print(shown, markup=False, highlight=False)
    if given.docs:
        PAGE.write_text(report.replace_section(PAGE.read_text(), name, shown))
    return 0


def _bench(
    given: argparse.Namespace, contest: Contest, folder: Path, memory: Path, topics: Filled
) -> Bench:
    return Bench(
        filled=topics,
        folder=folder,
        memory=memory,
        master="local[*]",
        max_rows=given.max_rows,
        slots=len(os.sched_getaffinity(0)),
        driver_memory="2g",
        join_memory="4g",
        ample_budget=report.GIB,
        spark_options={},
        local_on_tmpfs=True,
        contest=contest,
        more={"stream": {"trigger_s": given.trigger}},
    )


def _greatest_rate(
    given: argparse.Namespace, contest: Contest, folder: Path, memory: Path
) -> float:
    wanted = contest.resized(given.rows, None)
    with filled(folder / "kafka", wanted, keep=False, report=fill_progress) as topics:
        bench = _bench(given, contest, folder, memory, topics)
        return run(bench, given.programs[0], 0, None).rows_per_s


def _about(
    given: argparse.Namespace, contest: Contest, wanted: Pace, rate: float, load: float
) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m benchmarks.delay", *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": report.machine(),
        "load_before": load,
        "query": contest.name,
        "sizes": {
            "fastest": given.programs[0],
            "rate_per_s": rate,
            "rate_rows": given.rows if given.rate is None else None,
            "aim_per_s": rate * SHARE,
            "rows": wanted.scenario.rows,
            "topics": len(contest.fields),
            "max_rows": given.max_rows,
            "warm_up_s": given.warm_up,
            "seconds": given.seconds,
            "trigger_s": given.trigger,
            "speed": wanted.speed,
            "window_s": contest.window_s and contest.window_s / wanted.speed,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
