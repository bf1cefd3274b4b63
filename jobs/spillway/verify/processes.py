"""The processes of a proof: the tasks of `tasks`, several at a time on this host."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from spillway.verify.sums import SumPlan
from spillway.verify.tasks import ProofSource, ProofTasks
from spillway_schemas.exits import FAILED

_T = TypeVar("_T")
_A = TypeVar("_A")

ROWS_A_PROCESS = 500_000
"""For fewer rows another process is not worth its start."""
PROOF_LOOK_S = 1.0
"""How often a process looks whether the proof's is there."""


class ProofProcessDied(Exception):
    """A process of the proof is gone, and with it what it had summed."""

    exit_code = FAILED


def processes_for(rows: int, cores: int) -> int:
    """How many processes so many rows ask for."""
    return max(1, min(cores, rows // ROWS_A_PROCESS))


class ProofProcesses:
    """Runs tasks. One process: this one. A context manager; not for several threads."""

    def __init__(self, plan: SumPlan, source: ProofSource, processes: int) -> None:
        self._done = self._of = 0
        self._own: ProofTasks | None = None
        self._pool: ProcessPoolExecutor | None = None
        if processes == 1:
            self._own = ProofTasks(plan, source)
            return
        # Not forked from here: that would copy the locks of Kafka's threads as they happen to be.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([ProofTasks.__module__])
        self._pool = ProcessPoolExecutor(processes, context, _begin, (plan, source, os.getpid()))

    def each(self, task: Callable[[ProofTasks, _A], _T], given: Iterable[_A]) -> Iterator[_T]:
        """What a task makes of each argument, as they are done. Raises what a task raises."""
        given = list(given)
        self._done, self._of = 0, len(given)
        if self._own is not None:
            for each in given:
                yield task(self._own, each)
                self._done += 1
            return
        assert self._pool is not None
        left: set[Future[_T]] = {self._pool.submit(_run, task, each) for each in given}
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    self._done += 1
                    yield future.result()
        except BrokenProcessPool as error:
            raise ProofProcessDied(
                "a process of the proof was ended from outside, by the system for want of memory "
                "perhaps: it takes about 0.5 GiB for each core. Verify again, with fewer cores "
                "(spark.master = 'local[1]') if need be"
            ) from error
        finally:
            for future in left:
                future.cancel()

    def how_far(self) -> str:
        """`12 of 40 tasks`."""
        return f"{self._done:,} of {self._of:,} tasks" if self._of else ""

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


_tasks: ProofTasks | None = None


def _begin(plan: SumPlan, source: ProofSource, parent: int) -> None:
    """In a process of the pool, before its first task."""
    global _tasks
    os.environ["POLARS_MAX_THREADS"] = "1"  # the processes are as many as the cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began the proof ends it
    _ends_with(parent)  # nor does it go on when that was killed
    _tasks = ProofTasks(plan, source)


def _ends_with(parent: int) -> None:
    """End this process once another is gone: the server that forked it does not."""

    def watch() -> None:
        while os.path.exists(f"/proc/{parent}"):
            time.sleep(PROOF_LOOK_S)
        os._exit(1)

    if os.path.exists("/proc"):
        threading.Thread(target=watch, name="parent", daemon=True).start()


def _run(task: Callable[[ProofTasks, Any], _T], given: Any) -> _T:
    assert _tasks is not None, "the process has begun"
    return task(_tasks, given)
