"""The processes of a proof: the tasks of `tasks`, several at a time on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from spillway.verify.sums import SumPlan
from spillway.verify.tasks import ProofSource, ProofTasks
from spillway.worker_processes import WorkerProcesses
from spillway_schemas.exits import FAILED

_T = TypeVar("_T")
_A = TypeVar("_A")

ROWS_A_PROCESS = 500_000
"""For fewer rows another process is not worth its start."""


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
        self._pool = WorkerProcesses(processes, ProofTasks.__module__, _begin, plan, source)

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


def _begin(plan: SumPlan, source: ProofSource) -> None:
    """In a process of the pool, before its first task."""
    global _tasks
    _tasks = ProofTasks(plan, source)


def _run(task: Callable[[ProofTasks, Any], _T], given: Any) -> _T:
    assert _tasks is not None, "the process has begun"
    return task(_tasks, given)
