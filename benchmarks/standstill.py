"""How long a stream stands still when state is lost: `python -m benchmarks.standstill [--docs]`.

One host, whose slots hold `--rows` rows of three streams in memory. While the stream waits for rows
its state is removed; then `--more` rows come to each stream. The epoch that takes them in must
first have the lost rows again (`recovery.mode = restore`), or goes on without (`defer`). Both modes
run in turn on topics of their own with the same rows, `--repeat` times.

Reported are the medians: the time of that epoch's job, of the same rows where nothing was lost (the
next epoch), results at run time, and what the rest of the day takes: sealing, cleanup with what
was deferred read again in Kafka, and the proof.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import ROOT
from benchmarks.side_by_side.__main__ import fill_progress, memory_folder
from benchmarks.side_by_side.contests import SYMBOL
from benchmarks.side_by_side.programs import SESSION, settings_text, spillway_command
from benchmarks.side_by_side.report import replace_section
from benchmarks.side_by_side.topics import Filled, filled
from spillway.places import var_folder
from spillway.produce.run import produce
from spillway.tables import NothingYet, NoWarehouse, Warehouse
from spillway_schemas.journal import Epoch

MODES = ("restore", "defer")
PAGE = ROOT / "docs" / "measured.md"
BUDGET = 1 << 30
WAIT_S = 600.0
out = Console(soft_wrap=True)


@dataclass(frozen=True)
class Stood:
    """One run."""

    mode: str
    lost_rows: int
    """In memory when the state went."""
    standstill_s: float
    """The job of the epoch that met the loss, all its attempts."""
    epoch_s: float
    """The same for as many rows in the next epoch."""
    at_run_time: int
    cleanup_s: float
    complete: bool


def entries(warehouse: Path) -> list[Epoch]:
    """The journal's epochs; none before there is one."""
    try:
        found = Warehouse(str(warehouse)).journal.read()
    except (NoWarehouse, NothingYet):
        return []
    return [entry for entry in found if isinstance(entry, Epoch)]


def until(what: Callable[[], bool], stream: subprocess.Popen[bytes]) -> None:
    """Wait for something that a stream does."""
    give_up = time.monotonic() + WAIT_S
    while not what():
        if stream.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError("the stream has ended, or takes too long: see its log")
        time.sleep(0.25)


def run(mode: str, topics: Filled, folder: Path, memory: Path, more: int, keys: int) -> Stood:
    """One day with a loss."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    warehouse, state, settings = folder / "warehouse", memory / "state", folder / "spillway.toml"
    settings.write_text(
        settings_text(
            topics.bootstrap,
            warehouse,
            state,
            master="local[2]",
            slots=2,
            budget=BUDGET,
            max_rows=600_000,
            more={"recovery": {"mode": mode}},
        )
    )

    def has_read(rows: int) -> bool:
        return rows == sum(part.rows for each in entries(warehouse) for part in each.read)

    def send() -> None:
        produce(SYMBOL.resized(more, keys), topics.bootstrap, speed=None, progress=fill_progress)

    with (folder / "stream.log").open("wb") as log:
        command = spillway_command(settings, "stream", "--session", SESSION)
        stream = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            until(partial(has_read, topics.rows), stream)
            lost_rows = sum(slot.rows for slot in entries(warehouse)[-1].slots)
            shutil.rmtree(state / next(state.iterdir()).name)
            for n in (1, 2):
                send()
                until(partial(has_read, topics.rows + n * 3 * more), stream)
        finally:
            stream.send_signal(signal.SIGTERM)
            stream.wait(60)
    epochs = entries(warehouse)
    (at,) = [n for n, each in enumerate(epochs) if each.restored_slots or each.deferred_slots]
    after = [each.seconds["job"] for each in epochs[at + 1 :] if each.read]
    finish(settings, "seal", "--session", SESSION)
    finish(settings, "stream", "--until-sealed", SESSION)
    began = time.monotonic()
    finish(settings, "cleanup", "--session", SESSION)
    cleanup_s = time.monotonic() - began
    verdict = json.loads(finish(settings, "verify", "--session", SESSION, "--json"))
    shutil.rmtree(state, ignore_errors=True)
    return Stood(
        mode,
        lost_rows,
        epochs[at].seconds["job"],
        statistics.median(after),
        verdict["run_time"],
        cleanup_s,
        verdict["complete"],
    )


def finish(settings: Path, *arguments: str) -> str:
    """Run a command to its end; what it printed."""
    done = subprocess.run(
        spillway_command(settings, *arguments), check=True, capture_output=True, text=True
    )
    return done.stdout


def section(runs: Sequence[Stood], command: str) -> str:
    """The figures for the page."""
    lines = [
        f"`{command}`: {runs[0].lost_rows:,} rows in memory are lost, medians of "
        f"{len(runs) // len(MODES)}:",
        "",
        "| `recovery.mode` | epoch that met the loss | same rows, nothing lost | results at run "
        "time | cleanup | proved |",
        "|---|---|---|---|---|---|",
    ]
    for mode in MODES:
        mine = [each for each in runs if each.mode == mode]
        lost, same, clean = (
            statistics.median(getattr(each, name) for each in mine)
            for name in ("standstill_s", "epoch_s", "cleanup_s")
        )
        lines.append(
            f"| `{mode}` | {lost:.1f} s | {same:.1f} s | {mine[0].at_run_time:,} | {clean:.1f} s | "
            f"{'complete' if all(each.complete for each in mine) else 'NOT COMPLETE'} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run both modes in turn; 1 when a day was not complete."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.standstill",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="rows in memory, of all streams")
    add("--more", type=int, default=10_000, help="rows that each stream gets after the loss")
    add("--repeat", type=int, default=1)
    add("--docs", action="store_true", help="renew the figures under docs/")
    given = parser.parse_args()
    wanted = SYMBOL.resized(given.rows // 3, None)
    assert wanted.keys is not None, "the contest's rows have keys"
    keys = wanted.keys.count or 1
    base = var_folder() / "standstill"
    runs: list[Stood] = []
    for _ in range(given.repeat):
        for mode in MODES:
            with (
                memory_folder() as memory,
                filled(base / "kafka", wanted, keep=False, report=fill_progress) as topics,
            ):
                done = run(mode, topics, base / "day", memory, given.more, keys)
            out.print(asdict(done))
            runs.append(done)
    command = f"python -m benchmarks.standstill --rows {given.rows} --repeat {given.repeat}"
    text = section(runs, command)
    out.print(text, markup=False)
    if given.docs:
        PAGE.write_text(replace_section(PAGE.read_text(), "standstill", text))
    return 0 if all(each.complete for each in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
