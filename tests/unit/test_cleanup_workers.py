"""Who runs a cleanup's tasks: this process, several of this host, or Spark's."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from spillway.cleanup import workers as module
from spillway.cleanup.job import run_cleanup
from spillway.cleanup.workers import (
    PROCESS_BYTES,
    CleanupProcessDied,
    ClusterWorkers,
    HostWorkers,
)
from tests.integration.spilled_day import DAY, SPEC, brute_force, make_day, random_rows, results_of
from tests.killed import assert_ends_with_its_own


def pid_of(_: object) -> int:
    return os.getpid()


def doubled(task: int) -> int:
    if task < 0:
        raise ValueError(f"{task} is less than nothing")
    return 2 * task


def kill_itself(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_more_for_every_4_mib_and_no_more_than_cores() -> None:
    sizes = (0, 2 * PROCESS_BYTES - 1, 2 * PROCESS_BYTES, 10**12)
    found = []
    for size in sizes:
        workers = HostWorkers(4, size)
        found.append(workers.cores)
        workers.close()
    assert found == [1, 1, 2, 4]


def test_little_is_done_in_this_process() -> None:
    workers = HostWorkers(4, PROCESS_BYTES)
    assert workers.run("some", [1, 2], 1, pid_of) == [os.getpid()] * 2
    assert workers.run("none", [], 1, doubled) == []
    workers.cancel()
    workers.close()


@pytest.mark.server
def test_processes_do_tasks_in_their_order_and_raise_what_a_task_raises() -> None:
    """Two real processes."""
    workers = HostWorkers(2, 10**9)
    try:
        assert workers.run("some", list(range(7)), 3, doubled) == [2 * n for n in range(7)]
        assert workers.run("none", [], 3, doubled) == []
        assert os.getpid() not in workers.run("some", [1, 2, 3, 4], 4, pid_of)
        with pytest.raises(ValueError, match="-1 is less than nothing"):
            workers.run("some", [1, -1], 2, doubled)
        with pytest.raises(CleanupProcessDied, match=r"has ended \(ranges 0-3: .*again"):
            workers.run("ranges 0-3", [1], 1, kill_itself)
    finally:
        workers.close()


@pytest.mark.server
def test_what_is_given_up_ends_at_once() -> None:
    """On Ctrl-C nobody waits for a task that takes minutes."""
    workers = HostWorkers(2, 10**9)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            workers.run("a long one", [60], 1, time.sleep)
        except CleanupProcessDied as error:
            raised.append(error)

    running = threading.Thread(target=run)
    assert workers.run("one", [0], 1, doubled) == [0]
    running.start()
    time.sleep(0.5)
    workers.cancel()
    running.join(20)
    assert not running.is_alive()
    assert len(raised) == 1
    workers.close()


@pytest.mark.server
def test_no_process_outlives_a_cleanup_that_is_killed() -> None:
    program = (
        "import time\n"
        "from spillway.cleanup.workers import HostWorkers\n"
        "from tests.unit.test_cleanup_workers import pid_of\n"
        "print(*HostWorkers(2, 10**9).run('one', [0], 1, pid_of), flush=True)\n"
        "time.sleep(60)\n"
    )
    assert_ends_with_its_own(program)


@pytest.mark.server
def test_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole cleanup, without Spark."""
    day = make_day(str(tmp_path), random_rows(1, 400, 40, 4), depth=3)

    def never() -> None:
        pytest.fail("Spark is started")

    monkeypatch.setattr(module, "PROCESS_BYTES", 1)
    made: list[HostWorkers] = []

    def workers(spilled_bytes: int) -> HostWorkers:
        made.append(HostWorkers(2, spilled_bytes))
        return made[-1]

    cleaned = run_cleanup(never, day.warehouse(), SPEC, DAY, workers=workers, task_bytes=1)
    assert [each.cores for each in made] == [2]
    assert cleaned.cleanup > 0
    assert results_of(day.warehouse()) == brute_force(day.rows)
    with pytest.raises(RuntimeError, match="after shutdown"):
        made[0].run("more", [1], 1, doubled)


def test_a_spark_job_has_the_cleanup_s_group_and_name() -> None:
    spark = MagicMock()
    context = spark.sparkContext
    context.defaultParallelism = 3
    context.parallelize.return_value.map.return_value.collect.return_value = [4]
    workers = ClusterWorkers(spark, DAY)
    assert workers.cores == 3
    assert workers.run("ranges 0-3", [2], 1, doubled) == [4]
    group, name = context.setJobGroup.call_args.args
    assert name == f"cleanup of {DAY}: ranges 0-3"
    context.parallelize.assert_called_once_with([2], 1)
    workers.cancel()
    context.cancelJobGroup.assert_called_once_with(group)
    workers.close()
