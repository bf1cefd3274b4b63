"""Inside Spark's Python workers: every decode and step task writes down its times.

`install` puts a stopwatch around the generators that decode and step. A task's time is

    wait   for its input: Kafka, the JVM, Arrow batches through the socket
    work   in our code
    hand   its output over: until Spark has taken it and asks for more

One JSON line a task in `$BENCH_PROFILE/<pid>.jsonl`; with `BENCH_PROFILE_FUNCTIONS` also
cProfile's statistics of the work, one file a task.
"""

from __future__ import annotations

import cProfile
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = "BENCH_PROFILE"
FUNCTIONS = "BENCH_PROFILE_FUNCTIONS"

Generator = Callable[[Any, Iterable[Any]], Iterator[Any]]


def install() -> None:
    """Replace the workers' generators by timed ones. Call it before any task is unpickled.

    A worker that is used again calls it again: then it does nothing.
    """
    from spillway.stream import decoding, worker

    if hasattr(worker.step_batches, "stopwatch"):
        return
    decoding.decode_chunks = _timed("decode", decoding.decode_chunks)  # type: ignore[assignment]
    worker.step_batches = _timed("step", worker.step_batches)  # type: ignore[assignment]


def _timed(kind: str, original: Generator) -> Generator:
    def timed(task: Any, batches: Iterable[Any]) -> Iterator[Any]:
        watch = _Stopwatch(kind)
        made = original(task, watch.input(batches))
        try:
            while True:
                watch.working(True)
                try:
                    batch = next(made)
                except StopIteration:
                    return
                finally:
                    watch.working(False)
                before = time.perf_counter()
                yield batch
                watch.hand_s += time.perf_counter() - before
        finally:
            watch.write()

    timed.stopwatch = True  # type: ignore[attr-defined]
    return timed


class _Stopwatch:
    """Times of one task."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._began = time.time()
        self._cpu = time.process_time()
        self._profile = cProfile.Profile() if os.environ.get(FUNCTIONS) else None
        self._since = 0.0
        self._cpu_since = 0.0
        self._wait_s = self._work_s = self._work_cpu_s = 0.0
        self.hand_s = 0.0

    def working(self, begins: bool) -> None:
        """Our code begins or pauses."""
        if begins:
            self._since, self._cpu_since = time.perf_counter(), time.process_time()
            if self._profile is not None:
                self._profile.enable()
            return
        if self._profile is not None:
            self._profile.disable()
        self._work_s += time.perf_counter() - self._since
        self._work_cpu_s += time.process_time() - self._cpu_since

    def input(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, each wait for one counted as waiting."""
        source = iter(batches)
        while True:
            self.working(False)
            before = time.perf_counter()
            try:
                batch = next(source, None)
            finally:
                self._wait_s += time.perf_counter() - before
                self.working(True)
            if batch is None:
                return
            yield batch

    def write(self) -> None:
        """One line; with functions also their statistics."""
        folder = Path(os.environ[FOLDER])
        record = {
            "kind": self._kind,
            "began_at_s": self._began,
            "ended_at_s": time.time(),
            "wait_s": self._wait_s,
            "work_s": self._work_s,
            "work_cpu_s": self._work_cpu_s,
            "hand_s": self.hand_s,
            "cpu_s": time.process_time() - self._cpu,
        }
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._profile is not None:
            stamp = time.time_ns()
            self._profile.dump_stats(folder / f"{self._kind}-{os.getpid()}-{stamp}.prof")
