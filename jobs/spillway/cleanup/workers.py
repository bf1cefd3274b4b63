"""Where a cleanup's tasks run: in processes of this host, or on the executors of a Spark cluster.

The tasks are the same. One host's cores do not need Spark, whose start takes as long as joining
some millions of results, and whose workers import it (decision 50).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from spillway.worker_processes import WorkerProcesses, keep_freed_memory
from spillway_schemas.exits import FAILED

PROCESS_BYTES = 4 * 2**20
"""For fewer spilled bytes processes are not worth their start: the server that they are forked from
imports for 0.4 seconds of a core."""


def processes_for(spilled_bytes: int, cores: int) -> int:
    """How many processes so much asks for; 1: the command itself."""
    return max(1, min(cores, spilled_bytes // PROCESS_BYTES))


class CleanupProcessDied(Exception):
    """A process of the cleanup is gone; what is committed stays."""

    exit_code = FAILED


class CleanupWorkers(Protocol):
    """What runs tasks. For several threads."""

    cores: int

    def run(
        self, name: str, tasks: Sequence[Any], parts: int, work: Callable[[Any], Any]
    ) -> list[Any]:
        """What `work` makes of each task, in their order, done in so many parts."""

    def cancel(self) -> None:
        """Begin nothing more."""

    def close(self) -> None:
        """Nobody asks for more."""


class ClusterWorkers:
    """Python workers of Spark."""

    def __init__(self, spark: Any, session: str) -> None:
        self._context = spark.sparkContext
        self._session = session
        self._job_group = f"cleanup/{session}/{uuid.uuid4().hex[:8]}"
        self.cores = max(1, int(self._context.defaultParallelism))

    def run(
        self, name: str, tasks: Sequence[Any], parts: int, work: Callable[[Any], Any]
    ) -> list[Any]:
        """One Spark job."""
        self._context.setJobGroup(
            self._job_group, f"cleanup of {self._session}: {name}", interruptOnCancel=True
        )
        found: list[Any] = self._context.parallelize(tasks, parts).map(work).collect()
        return found

    def cancel(self) -> None:
        """End the jobs that run, too."""
        self._context.cancelJobGroup(self._job_group)

    def close(self) -> None:
        """The session is whose it was."""


class HostWorkers:
    """Processes of this host; where few bytes are spilled, this process alone."""

    def __init__(self, cores: int, spilled_bytes: int) -> None:
        self.cores = processes_for(spilled_bytes, cores)
        self._pool: WorkerProcesses | None = None
        if self.cores > 1:
            self._pool = WorkerProcesses(self.cores, "spillway.cleanup.task", keep_freed_memory)

    def run(
        self, name: str, tasks: Sequence[Any], parts: int, work: Callable[[Any], Any]
    ) -> list[Any]:
        """Raises `CleanupProcessDied`."""
        if self._pool is None:
            return [work(task) for task in tasks]
        size = max(1, -(-len(tasks) // parts))
        pieces = [tasks[at : at + size] for at in range(0, len(tasks), size)]
        try:
            running = [self._pool.submit(_each, work, piece) for piece in pieces]
            return [found for future in running for found in future.result()]
        except BrokenProcessPool as error:
            raise CleanupProcessDied(
                f"a process of the cleanup has ended ({name}: {error}), by the system for want of "
                "memory perhaps: it takes about 0.7 GiB for each core. What is committed stays: "
                "run the same command again, with fewer cores (spark.master = 'local[1]') if need "
                "be"
            ) from error

    def cancel(self) -> None:
        """End what runs, too: what it has written is nobody's."""
        if self._pool is not None:
            self._pool.end()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _each(work: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
    return [work(task) for task in tasks]
