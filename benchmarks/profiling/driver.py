"""The streaming job in this process, with its calls timed.

    python -m benchmarks.profiling.driver SETTINGS.toml SESSION OUT.json

It is `spillway stream --available-now` with stopwatches around the driver's instructions and
the epoch's job. What Spark does between two batches is read from its progress reports.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import psutil

DAEMON = "benchmarks.profiling.daemon"


class Clock:
    """Intervals by name: (name, begin, end) in seconds since 1970."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []

    def around(self, function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        """The function, each call written down under the name that its arguments give."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            before = time.time()
            try:
                return function(*arguments, **named)
            finally:
                self.spans.append((name(*arguments, **named), before, time.time()))

        return timed


def hook(clock: Clock, query_class: Any, driver_class: Any, job_class: Any) -> None:
    """Time a batch, an instruction, a job."""
    query_class._on_batch = clock.around(query_class._on_batch, lambda *_: "batch")
    driver_class._do = clock.around(driver_class._do, lambda _, what: _named(what))
    job_class.run = clock.around(job_class.run, lambda *_, **__: "job")


def _named(instruction: Any) -> str:
    table = getattr(instruction, "table", "")
    return type(instruction).__name__ + (f" {table}" if table else "")


def main(arguments: list[str]) -> int:
    """Run the stream until it has read everything; write what was timed."""
    settings_path, session, target = arguments
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.python.daemon.module={DAEMON} pyspark-shell"

    from spillway.clock import system_clock
    from spillway.stream.driver import StreamDriver
    from spillway.stream.job import EpochJob
    from spillway.stream.run import Wanted, Watcher
    from spillway.stream.service import Stream
    from spillway.stream.supervised import SupervisedQuery
    from spillway_schemas.query import load_query
    from spillway_schemas.settings import load_settings

    settings, _ = load_settings(Path(settings_path))
    clock = Clock()
    hook(clock, SupervisedQuery, StreamDriver, EpochJob)
    progress: dict[int, Any] = {}
    cpu: dict[str, float] = {}
    watcher = Watcher()
    stream = Stream(
        settings, load_query(settings.query), Wanted(session, None, True), watcher, system_clock
    )

    def look(_: Any) -> None:
        for each in stream.supervised.recent_progress:
            report = json.loads(each.json)
            progress[report["batchId"]] = report
        cpu.update(processes())  # the last look stands; Spark ends its workers with its session

    watcher.on_epoch = look
    stream.run()
    found = {"spans": clock.spans, "progress": list(progress.values()), "cpu_s": cpu}
    Path(target).write_text(json.dumps(found) + "\n")
    return 0


def processes() -> dict[str, float]:
    """CPU seconds so far: the driver, Python workers, and each kind of JVM thread."""
    found: dict[str, float] = defaultdict(float)
    found["driver (Python)"] = time.process_time()
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        if process.name() != "java":
            found["Python workers"] += times.user + times.system
            continue
        threads = _threads(process.pid)
        for name, seconds in threads.items():
            found[f"JVM: {name}"] += seconds
        ended = times.user + times.system - sum(threads.values())
        found["JVM: threads that have ended"] += max(ended, 0.0)
    return dict(found)


KINDS = (
    ("C1 CompilerThre", "JIT compiler"),
    ("C2 CompilerThre", "JIT compiler"),
    ("GC Thread", "garbage collector"),
    ("G1 ", "garbage collector"),
    ("VM ", "virtual machine"),
    ("Executor task l", "tasks (Kafka, Arrow, shuffle)"),
    ("stdout writer", "rows to Python as Arrow"),
    ("Writer for", "rows to Python as Arrow"),
    ("stream executio", "the query's own thread"),
    ("shuffle-", "shuffle"),
    ("dag-scheduler", "scheduling"),
    ("dispatcher", "scheduling"),
    ("task-result-get", "scheduling"),
    ("broadcast", "scheduling"),
    ("Thread-", "calls from Python (py4j)"),
    ("kafka", "Kafka's clients"),
)


def _threads(pid: int) -> dict[str, float]:
    """CPU seconds of a process's living threads, by kind."""
    found: dict[str, float] = defaultdict(float)
    ticks = os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        kind = next((kind for begin, kind in KINDS if name.startswith(begin)), "other threads")
        found[kind] += (int(fields[11]) + int(fields[12])) / ticks
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
