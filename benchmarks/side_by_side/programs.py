"""The programs: how each is started, what it leaves, and what that cost.

Each begins with empty folders; nothing of one is there when the next begins.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.side_by_side import epochs
from benchmarks.side_by_side.contests import SYMBOL, Contest
from benchmarks.side_by_side.epochs import EpochRate
from benchmarks.side_by_side.outcome import Outcome, of_copy, of_join
from benchmarks.side_by_side.peer import PeerPlan
from benchmarks.side_by_side.topics import Filled
from benchmarks.side_by_side.watch import Watched, watched
from spillway_schemas.journal import Epoch

NAMES = ("copy", "join", "batch", "ample", "quarter")
TITLES = {
    "copy": "Spark, copy only",
    "join": "Spark, stream-stream joins",
    "batch": "Spark, one batch join",
    "ample": "spillway, ample memory",
    "quarter": "spillway, a quarter of it",
}
SESSION = "2026-01-05"
PLANNED = "planned_s"
"""Of what was found in a cleanup: how long `cleanup --plan` had said that it would take."""
LEAST_BUDGET = 1 << 20
"""The smallest `state.budget_bytes` that settings allow."""


@dataclass(frozen=True)
class Bench:
    """What all programs have in common."""

    filled: Filled
    folder: Path
    """For tables, checkpoints, logs; on disk."""
    memory: Path
    """Folder on tmpfs for state."""
    master: str
    max_rows: int
    slots: int
    driver_memory: str
    join_memory: str
    ample_budget: int
    """Bytes a slot."""
    spark_options: dict[str, str]
    """Further settings of the two programs in plain Spark."""
    local_on_tmpfs: bool
    """Whether RocksDB's working files lie on tmpfs as our state does."""
    more: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Further sections of spillway's settings."""
    contest: Contest = SYMBOL


@dataclass(frozen=True)
class Phase:
    """One process of a program that has several."""

    name: str
    wall_s: float
    cpu_s: float
    peak_bytes: int
    found: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One program, once. Times in seconds."""

    program: str
    repetition: int
    total_s: float
    start_s: float
    run_s: float
    cpu_s: float
    broker_cpu_s: float
    peak_bytes: int
    peak_process_bytes: int
    peak_tmpfs_bytes: int
    outcome: Outcome
    epochs: list[EpochRate]
    phases: list[Phase]
    """What came after the run: seal, cleanup, verify."""
    found: dict[str, Any]
    """What the journal says besides: state, budget, spills."""

    @property
    def rows_per_s(self) -> float:
        """Input rows a second over the run."""
        return sum(e.rows for e in self.epochs) / self.run_s


Beside = Callable[[Path], AbstractContextManager[object]]
"""Something that runs beside spillway's stream, given its settings file."""


def _alone(settings: Path) -> AbstractContextManager[object]:  # noqa: ARG001
    return nullcontext()


def run(
    bench: Bench,
    program: str,
    repetition: int,
    budget: int | None,
    *,
    beside: Beside = _alone,
    keep: Callable[[Path], None] | None = None,
) -> Run:
    """Run one program. `budget`: bytes a slot, for `quarter`; `keep` looks at its warehouse."""
    with folders(bench) as (disk, memory):
        if program in ("copy", "join", "batch"):
            return _peer(bench, program, repetition, disk, memory)
        given = bench.ample_budget if budget is None else budget
        found = _spillway(bench, program, repetition, disk, memory, given, beside)
        if keep is not None:
            keep(disk / "warehouse")
        return found


@contextmanager
def folders(bench: Bench) -> Iterator[tuple[Path, Path]]:
    """Empty folders for one program, on disk and on tmpfs; removed at the end."""
    disk, memory = bench.folder / "program", bench.memory
    for each in (disk, memory):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    try:
        yield disk, memory
    finally:
        for each in (disk, memory):
            shutil.rmtree(each, ignore_errors=True)


def environment() -> dict[str, str]:
    """This environment without settings of spillway that would win over the written ones."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SPILLWAY_") or name == "SPILLWAY_VAR"
    }
    return {
        **kept,
        "PYTHONPATH": ":".join(str(ROOT / each) for each in ("", "jobs", "schemas")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run_command(
    bench: Bench,
    command: Sequence[str],
    log: str,
    *,
    timeout_s: float = 3600.0,
    until: Callable[[], bool] | None = None,
) -> Watched:
    """Run a command of a program; its output goes to the file `log` (see `watched`)."""
    return watched(
        command,
        env=environment(),
        cwd=bench.folder,
        log=bench.folder / log,
        tmpfs=[bench.memory],
        others=[bench.filled.broker_pid],
        timeout_s=timeout_s,
        until=until,
    )


def _last_commit_s(*tables: Path) -> float:
    """When the newest commit of some tables was written, seconds since 1970."""
    return max(
        commit.stat().st_mtime
        for table in tables
        for commit in (table / "_delta_log").glob("*.json")
    )


# ------------------------------------------------------------------------------- plain Spark


def peer_command(
    bench: Bench, program: str, disk: Path, memory: Path, *, endless: bool = False
) -> list[str]:
    """Write a peer's plan into its folder; what runs it.

    It writes the table `disk/table` with the checkpoint `disk/checkpoint`, and `disk/outcome.json`.
    """
    local = (memory if bench.local_on_tmpfs else disk) / "local"
    plan = PeerPlan(
        contest=bench.contest.name,
        bootstrap=bench.filled.bootstrap,
        table=str(disk / "table"),
        scratch=str(disk),
        local=str(local),
        outcome=str(disk / "outcome.json"),
        master=bench.master,
        max_rows=bench.max_rows,
        driver_memory=bench.driver_memory if program == "copy" else bench.join_memory,
        endless=endless,
        options=bench.spark_options,
    )
    plan.write(disk / "plan.json")
    return [
        sys.executable,
        "-m",
        "benchmarks.side_by_side.peer",
        program,
        str(disk / "plan.json"),
    ]


def _peer(bench: Bench, program: str, repetition: int, disk: Path, memory: Path) -> Run:
    command = peer_command(bench, program, disk, memory)
    seen = run_command(bench, command, f"{program}.log")
    said = json.loads((disk / "outcome.json").read_text())
    begun_s: float = said["begun_at_s"]
    done_s = _last_commit_s(disk / "table")
    whole = [EpochRate(bench.filled.rows, done_s - begun_s, done_s - begun_s)]
    return _run(
        program,
        repetition,
        seen,
        begun_s,
        done_s,
        outcome=of_copy(disk / "table")
        if program == "copy"
        else of_join(disk / "table", bench.contest),
        epochs=whole if program == "batch" else epochs.of_progress(begun_s, said["progress"]),
        found=_state_of_spark(said["progress"]),
    )


def _state_of_spark(progress: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not progress or not progress[-1].get("stateOperators"):
        return {}
    operators = progress[-1]["stateOperators"]
    return {
        "state_rows": sum(each["numRowsTotal"] for each in operators),
        "state_bytes": sum(
            each.get("customMetrics", {}).get("rocksdbTotalBytesWritten", 0) for each in operators
        ),
    }


def _run(
    program: str,
    repetition: int,
    seen: Watched,
    begun_s: float,
    done_s: float,
    *,
    outcome: Outcome,
    epochs: list[EpochRate],
    phases: list[Phase] | None = None,
    found: dict[str, Any],
) -> Run:
    return Run(
        program=program,
        repetition=repetition,
        total_s=seen.wall_s,
        start_s=begun_s - seen.started_at_s,
        run_s=done_s - begun_s,
        cpu_s=seen.cpu_s,
        broker_cpu_s=seen.other_cpu_s,
        peak_bytes=seen.peak_bytes,
        peak_process_bytes=seen.peak_process_bytes,
        peak_tmpfs_bytes=seen.peak_tmpfs_bytes,
        outcome=outcome,
        epochs=epochs,
        phases=phases or [],
        found=found,
    )


# --------------------------------------------------------------------------------- spillway


def _spillway(
    bench: Bench,
    program: str,
    repetition: int,
    disk: Path,
    memory: Path,
    budget: int,
    beside: Beside,
) -> Run:
    from spillway.tables import Warehouse

    warehouse = disk / "warehouse"
    settings = written_settings(bench, disk, memory, budget)
    stream = ("stream", "--session", SESSION, "--available-now")
    with beside(settings):
        seen = _command(bench, settings, f"{program}.log", *stream)
    entries = Warehouse(str(warehouse)).journal.read()
    begun_s, rates = epochs.of_journal(entries)
    done_s = _last_commit_s(warehouse / "journal", warehouse / "results", warehouse / "spill")
    at_run_time = [entry for entry in entries if isinstance(entry, Epoch)]
    found = _state_of_spillway(at_run_time, budget)
    phases = _finish(bench, settings) if program == "quarter" else []
    return _run(
        program,
        repetition,
        seen,
        begun_s,
        done_s,
        outcome=of_join(warehouse / "results", bench.contest),
        epochs=rates,
        phases=phases,
        found=found,
    )


def written_settings(bench: Bench, disk: Path, memory: Path, budget: int) -> Path:
    """Write spillway's settings for the warehouse `disk/warehouse`. `budget`: bytes a slot."""
    settings = disk / "spillway.toml"
    settings.write_text(
        settings_text(
            bench.filled.bootstrap,
            disk / "warehouse",
            memory / "state",
            master=bench.master,
            slots=bench.slots,
            budget=budget,
            max_rows=bench.max_rows,
            more=bench.more,
            query=bench.contest.query,
        )
    )
    return settings


def settings_text(
    bootstrap: str,
    warehouse: Path,
    state: Path,
    *,
    master: str,
    slots: int,
    budget: int,
    max_rows: int,
    more: Mapping[str, Mapping[str, object]] | None = None,
    query: str = SYMBOL.name,
) -> str:
    """A settings file: what belongs to a benchmark, everything else at its default."""
    values: dict[str, Mapping[str, object]] = {
        "kafka": {"bootstrap_servers": bootstrap},
        "warehouse": {"root": str(warehouse)},
        "state": {"root": str(state), "slots": slots, "budget_bytes": budget},
        "stream": {"start": "earliest", "max_rows_per_epoch": max_rows},
        "spark": {"master": master},
    }
    for section, pairs in (more or {}).items():
        values[section] = {**values.get(section, {}), **pairs}
    lines = [f"query = {json.dumps(query)}"]
    for section, pairs in values.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in pairs.items()]
    return "\n".join(lines) + "\n"


def spillway_command(settings: Path, *arguments: str) -> list[str]:
    """What runs a command of spillway."""
    entry = "from spillway.cli import main; main()"
    return [sys.executable, "-c", entry, "--config", str(settings), *arguments]


def _command(bench: Bench, settings: Path, log: str, *arguments: str) -> Watched:
    return run_command(bench, spillway_command(settings, *arguments), log)


def _finish(bench: Bench, settings: Path) -> list[Phase]:
    """Seal, cleanup, verify: each as a process of its own, as an operator would run them."""
    steps = {
        "seal": ("seal", "--session", SESSION),
        "stream to the seal": ("stream", "--until-sealed", SESSION),
        "cleanup": ("cleanup", "--session", SESSION, "--json"),
        "verify": ("verify", "--session", SESSION, "--json"),
    }
    phases = []
    for name, arguments in steps.items():
        log = f"quarter-{name.replace(' ', '-')}.log"
        # Not a phase: cleanup does without it.
        planned = {PLANNED: _planned_s(bench, settings)} if name == "cleanup" else {}
        (bench.folder / log).unlink(missing_ok=True)
        seen = _command(bench, settings, log, *arguments)
        found = _json_line(bench.folder / log) if "--json" in arguments else {}
        phases.append(Phase(name, seen.wall_s, seen.cpu_s, seen.peak_bytes, {**found, **planned}))
    return phases


def _planned_s(bench: Bench, settings: Path) -> float | None:
    """How long `cleanup --plan` says that cleanup will take; None where it does not know."""
    log = "quarter-plan.log"
    (bench.folder / log).unlink(missing_ok=True)
    _command(bench, settings, log, "cleanup", "--session", SESSION, "--plan", "--json")
    seconds: float | None = _json_line(bench.folder / log)["seconds"]
    return seconds


def _json_line(log: Path) -> dict[str, Any]:
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{log} has no line of JSON")
    found: dict[str, Any] = json.loads(lines[-1])
    found.pop("details", None)
    return found


def _state_of_spillway(entries: Sequence[Epoch], budget: int) -> dict[str, Any]:
    last = entries[-1]
    return {
        "budget_bytes": budget,
        "state_bytes": sum(slot.state_bytes for slot in last.slots),
        "state_rows": sum(slot.rows for slot in last.slots),
        "peak_folder_bytes": max(sum(s.folder_bytes for s in e.slots) for e in entries),
        "spilled_bytes": sum(slot.spilled_bytes for e in entries for slot in e.slots),
        "spilled_rows": sum(sum(e.spilled_rows.values()) for e in entries),
        "cuts": sum(len(e.cuts) for e in entries),
        "results_at_run_time": sum(sum(e.results.values()) for e in entries),
        "epochs": len(entries),
    }
